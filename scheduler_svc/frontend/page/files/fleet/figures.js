// The fleet in figures and charts.

import { fill, h } from "../dom.js";
import { Chart } from "./chart.js";
import { count, percent, rate, span } from "./format.js";
import { setText } from "./keyed.js";
import { scaleReason } from "./words.js";

const TILES = {
  output: "Output tokens/s",
  prompt: "Prompt tokens/s",
  running: "Running",
  waiting: "Waiting",
  hits: "Cache hit rate",
  finished: "Requests finished",
  failed: "Requests failed",
  lost: "Executors lost",
  first: "Time to first token",
  between: "Between tokens",
  journal: "Journal",
};

/** The part of the view above the executors. */
export class Figures {
  constructor() {
    this.tiles = Object.fromEntries(Object.entries(TILES).map(([name, label]) => [name, tile(name, label)]));
    this.alarm = h("p.alarm", { role: "alert", hidden: true, "data-testid": "alarm" });
    this.scale = h("p.scale.quiet", { hidden: true, "data-testid": "scale" });
    this.charts = [
      new Chart("Tokens per second", [{ name: "output", index: 1 }, { name: "prompt", index: 2 }], rate, { least: 10 }),
      new Chart("Cache hit rate", [{ name: "hits", index: 3 }], percent, { most: 1 }),
      new Chart("Sequences", [{ name: "running", index: 4 }, { name: "waiting", index: 5 }], count, { least: 5 }),
    ];
    this.node = h("div", {}, this.alarm,
      h("dl.tiles", {}, ...Object.values(this.tiles).map(({ node }) => node)), this.scale,
      h("div.charts", {}, ...this.charts.map(({ node }) => node)));
  }

  /** Show the report, which is so many seconds old. */
  showReport(report, history, ageS) {
    const { tiles } = this;
    const say = (name, value, note = "") => {
      setText(tiles[name].value, value);
      setText(tiles[name].note, note);
    };
    say("output", rate(report.output_tokens_per_s), `${count(report.output_tokens)} in all`);
    say("prompt", rate(report.prefill_tokens_per_s), `${count(report.prompt_tokens)} in all`);
    say("running", count(report.running), report.preemptions ? `${count(report.preemptions)} preempted so far` : "");
    say("waiting", count(report.waiting));
    const hits = history.length ? history[history.length - 1][3] : -1;
    const all = report.prompt_tokens ? percent(report.cached_prompt_tokens / report.prompt_tokens) : "–";
    say("hits", hits < 0 ? "–" : percent(hits), `${all} since the start`);
    say("finished", count(report.requests_finished), `up for ${span(Math.floor(report.uptime_s + ageS))}`);
    say("failed", count(report.requests_failed));
    say("lost", count(report.executors_lost), `${count(report.sequences_resumed)} resumed elsewhere`);
    say("first", ...quantiles(report.first_token));
    say("between", ...quantiles(report.between_tokens));
    const lag = report.journal === "off" ? "nothing is kept" : `${span(report.journal_lag_s)} behind`;
    say("journal", report.journal, lag);
    tiles.journal.node.classList.toggle("bad", report.journal === "failed");
    tiles.failed.node.classList.toggle("bad", report.requests_failed > 0);
    this.#showAlarm(report);
    this.#showScale(report);
  }

  /** Show the last five minutes. */
  showHistory(history, events, end) {
    for (const chart of this.charts) chart.show(history, events, end);
  }

  /** An alert is read out when its text comes, so the same text must not come again. */
  #showAlarm({ journal, keys_unreadable: unreadable = {} }) {
    const troubles = Object.entries(unreadable).map(([whose, why]) =>
      `Keys of ${whose} cannot be read, those of before stay: ${why}.`);
    if (journal === "failed") {
      troubles.unshift("The journal cannot be written. Requests that are accepted now are lost if the scheduler ends.");
    }
    const text = troubles.join(" ");
    if (this.alarm.textContent === text) return;
    this.alarm.hidden = !text;
    fill(this.alarm, text);
  }

  #showScale({ scale, executors }) {
    this.scale.hidden = !scale;
    if (!scale) return;
    const long = scale.forecast_ttft_s >= 3600;
    const first = scale.drain_first.length ? ` If fewer are wanted: ${scale.drain_first.join(", ")}.` : "";
    setText(this.scale,
      `Executors wanted: ${count(scale.wanted)}; ${count(executors.length)} are there (${scaleReason(scale.reason)}). ` +
      `First token of a request that comes now: in ${long ? "more than an hour" : span(scale.forecast_ttft_s)}.${first}`);
  }
}

function quantiles(percentiles) {
  if (!percentiles) return ["–", "none in five minutes"];
  const { p50, p90, p99 } = percentiles;
  return [span(p50), `p90 ${span(p90)}, p99 ${span(p99)}`];
}

function tile(name, label) {
  const value = h("dd.value", { "data-testid": `figure-${name}` }, "–");
  const note = h("dd.note.quiet", {}, "");
  return { node: h("div.tile", {}, h("dt", {}, label), value, note), value, note };
}
