// A card for each executor.

import { h } from "../dom.js";
import { BlockView } from "./block-view.js";
import { count, countOf, span } from "./format.js";
import { setText } from "./keyed.js";
import { stateOf } from "./words.js";

const FACTS = {
  node: "Node",
  build: "Build",
  weights: "Weights",
  device: "Device",
  tasks: "Tasks",
  pool: "KV pool",
  step: "Step",
  steps: "Steps",
  uptime: "Up for",
};
const SHORT_FINGERPRINT = 12;

/** What one executor is shown with. */
export class Card {
  /**
   * @param {Object} executor as in the report.
   * @param {{api: Object, mayAsk: boolean, onDrain: function|null}} options `onDrain` is null where nobody may drain.
   */
  constructor(executor, { api, mayAsk, onDrain }) {
    const { epoch, executor: name } = executor;
    this.epoch = epoch;
    this.blocks = new BlockView({ api, epoch, name, mayAsk });
    this.mark = h("span", { "aria-hidden": "true" });
    this.word = h("span", {});
    this.badge = h("span.state", { "data-testid": "state" }, this.mark, this.word);
    this.lanes = h("span.number", {});
    this.fill = h("span.fill", {});
    this.bar = h("span.bar-of-lanes", { role: "meter", "aria-label": "Lanes taken", "aria-valuemin": 0 }, this.fill);
    this.facts = Object.fromEntries(Object.keys(FACTS).map((fact) => [fact, h("dd", {})]));
    this.drain = onDrain && h("button.danger", {
      type: "button", "aria-label": `Drain ${name}, epoch ${epoch}`, on: { click: () => onDrain(this.epoch) },
    }, "Drain …");
    const title = `executor-${epoch}`;
    this.node = h("li.card", { "aria-labelledby": title, "data-testid": "executor", "data-epoch": epoch },
      h("div.head", {},
        h("h3", { id: title }, name, h("span.quiet", {}, ` epoch ${epoch}`)), this.badge, this.drain),
      h("div.lanes", {}, h("span", {}, "Lanes"), this.bar, this.lanes),
      h("dl.facts", {}, ...Object.entries(FACTS).map(([fact, label]) => h("div", {}, h("dt", {}, label), this.facts[fact]))),
      this.blocks.node);
  }

  /** Show what it has become; the report is so many seconds old. */
  update(executor, ageS) {
    const { tone, mark, word } = stateOf(executor.state);
    this.badge.className = `state ${tone}`;
    setText(this.mark, `${mark} `);
    setText(this.word, word);
    if (this.drain) this.drain.disabled = executor.state === "draining";
    setText(this.lanes, `${count(executor.running)} / ${count(executor.max_num_seqs)}`);
    this.bar.setAttribute("aria-valuemax", executor.max_num_seqs);
    this.bar.setAttribute("aria-valuenow", executor.running);
    this.fill.style.width = `${100 * Math.min(1, executor.running / Math.max(1, executor.max_num_seqs))}%`;
    const values = {
      node: executor.node || "not said",
      build: executor.build,
      weights: executor.fingerprint.slice(0, SHORT_FINGERPRINT),
      device: `${executor.device}, ${executor.dtype}`,
      tasks: executor.tasks?.join(", ") || "–",
      pool: poolOf(executor),
      step: span(executor.step_ms / 1000),
      steps: count(executor.steps),
      uptime: span(Math.floor(executor.uptime_s + ageS)),
    };
    for (const [fact, value] of Object.entries(values)) setText(this.facts[fact], value);
    this.facts.weights.title = executor.fingerprint;
  }
}

function poolOf(executor) {
  const kept = executor.keeps_pool ? `kept, ${executor.has_standby ? "with" : "no"} standby` : "not kept";
  return `${countOf(executor.num_blocks, "block")} of ${countOf(executor.block_size, "token")}; ${kept}`;
}
