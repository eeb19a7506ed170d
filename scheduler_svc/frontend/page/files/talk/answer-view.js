// An answer. Text is appended to text nodes as it comes; nothing that stands there is written again.

import { button, h } from "../dom.js";
import { asksForJson } from "./answer.js";
import { CallsView } from "./calls-view.js";
import { Indenter } from "./indent.js";
import { TicksView } from "./ticks-view.js";
import { duration, figuresOf } from "./timing.js";

const ENDS = { stopped: "stopped", failed: "failed", gone: "lost", away: "broken off" };
const PROBLEMS = {
  gone: "The service does not know this request any more. What came of the answer is kept.",
  away: "The answer broke off, and may still go on. ",
  failed: "",
};

export class AnswerView {
  #answer;
  #column;
  #shown = { text: 0, thought: 0, state: "" };
  #text = document.createTextNode("");
  #thought = document.createTextNode("");
  #indenter;
  #calls;
  #ticks = new TicksView();

  /** @param {string} model its name. */
  constructor(answer, column, model) {
    this.#answer = answer;
    this.#column = column;
    this.#indenter = asksForJson(answer.sent) ? new Indenter() : null;
    this.#calls = new CallsView(answer.key, (results) => column.giveResults(results));
    this.#build(model);
    this.update();
  }

  #build(model) {
    const { key, request } = this.#answer;
    this.summary = h("summary", {}, "Thought");
    this.thought = h("details.thought", { hidden: true }, this.summary, h("div.text", {}, this.#thought));
    this.problem = h("p.problem", { "data-testid": "problem" });
    this.trouble = h("div.trouble", { hidden: true }, this.problem, button("Retry", () => this.#column.retry(key)));
    this.stats = Object.fromEntries(["first", "rate", "tokens", "finish"].map((name) => (
      [name, h("span", { "data-testid": `stat-${name}` })]
    )));
    this.continue = button("Continue", () => this.#column.goOn());
    this.actions = h("div.actions", {},
      button("Regenerate", () => this.#column.regenerate(key)), this.continue,
      navigator.clipboard ? button("Copy", () => navigator.clipboard.writeText(this.#answer.text)) : null,
      h("a", { href: `#request/${request}` }, "Request"));
    this.element = h("li.message", { "data-role": "assistant", "data-testid": "answer", "data-request": request },
      h("h3.who", {}, model), this.thought,
      h(this.#indenter ? "pre.text" : "div.text", { "data-testid": "text" }, this.#text),
      this.#calls.element, this.trouble, this.#ticks.element,
      h("p.stats", {}, Object.values(this.stats)), this.actions);
  }

  /** Show what has come: cheap, for every frame. */
  update() {
    const { text, thought, calls } = this.#answer;
    if (text.length > this.#shown.text) {
      const piece = text.slice(this.#shown.text);
      this.#text.appendData(this.#indenter ? this.#indenter.feed(piece) : piece);
      this.#shown.text = text.length;
    }
    if (thought.length > this.#shown.thought) {
      this.#thought.appendData(thought.slice(this.#shown.thought));
      this.thought.hidden = false;
      this.#shown.thought = thought.length;
    }
    this.#calls.update(calls);
    if (this.#shown.state !== this.#stateShown) this.updateFigures(this.#answer.sentAt);
  }

  /** Show numbers, ticks and state: a few times a second while the answer comes. */
  updateFigures(now) {
    const answer = this.#answer;
    this.#shown.state = this.#stateShown;
    this.element.dataset.state = answer.state;
    this.summary.textContent = answer.state === "running" && !answer.text ? "Thinking…" : "Thought";
    this.trouble.hidden = !(answer.state in PROBLEMS);
    this.problem.textContent = this.trouble.hidden ? "" : PROBLEMS[answer.state] + (answer.error?.message ?? "");
    this.#ticks.update(answer, now - answer.sentAt);
    this.#showStats(now);
  }

  /** Whether this is the conversation's last message: only that one can be continued, and only its calls wait. */
  setLast(isLast) {
    const { canGoOn, openCalls } = this.#column.conversation;
    this.continue.hidden = !(isLast && canGoOn && this.#answer.finish !== "stop");
    this.#calls.ask(isLast ? openCalls : []);
  }

  get #stateShown() {
    return `${this.#answer.state} ${this.#column.isBroken} ${this.#answer.gaps.map((gap) => gap.label)}`;
  }

  #showStats(now) {
    const answer = this.#answer;
    const { firstMs, rate, tokens } = answer.figures ?? figuresOf(answer.arrivals);
    const { first, rate: speed, tokens: count, finish } = this.stats;
    first.textContent = firstMs === null ? "" : `first token after ${duration(firstMs)}`;
    speed.textContent = rate === null ? "" : `${rate.toFixed(1)} tokens/s`;
    count.textContent = tokens ? `${tokens} token${tokens === 1 ? "" : "s"}` : "";
    finish.toggleAttribute("data-warns", answer.state === "running" && this.#column.isBroken);
    if (answer.state !== "running") finish.textContent = answer.state === "done" ? answer.finish : ENDS[answer.state];
    else if (this.#column.isBroken) finish.textContent = "reconnecting…";
    else if (firstMs === null) finish.textContent = `waiting for ${duration(Math.max(0, now - answer.sentAt))}`;
    else finish.textContent = "";
  }
}
