// The life of one request: where its time went.

import { fill, h } from "../dom.js";
import { KeyedList, setText } from "../fleet/keyed.js";
import { KINDS, lifeOf } from "./life.js";
import { Axis, Strip } from "./strip.js";

const AGAIN_MS = 1000;

/** The view. It asks again while the request runs and somebody looks. */
export class RequestView {
  #isShown = false;
  #timer = 0;
  #abort = null;
  #isAsking = false;

  constructor(root, frame) {
    Object.assign(this, { root, frame, id: "" });
    this.input = h("input", { id: "request-id", name: "request", required: true, autocomplete: "off", spellcheck: "false" });
    const submit = (event) => {
      event.preventDefault();
      const hash = `#request/${encodeURIComponent(this.input.value.trim())}`;
      if (location.hash === hash) this.show(this.input.value.trim());
      else location.hash = hash;
    };
    this.note = h("p.note", { role: "status", "data-testid": "note" });
    this.axis = new Axis();
    const list = h("div.sequences", {});
    this.strips = new KeyedList(list, ({ sequence }) => String(sequence.index), ({ sequence }) => new Strip(sequence.index),
      (strip, { sequence, life }) => strip.show(sequence, life, this.span, this.isOnly));
    this.legend = h("ul.legend", { "aria-label": "Colours" },
      ...Object.entries(KINDS).map(([kind, label]) => h("li", {}, h(`span.swatch.${kind}`, {}), label)));
    this.life = h("div.life", { hidden: true, "data-testid": "life" }, this.legend, this.axis.node, list);
    fill(root, h("div.request", {},
      h("h1.unseen", {}, "One request"),
      h("form", { on: { submit } }, h("label", { for: "request-id" }, "Request id"), this.input,
        h("button.primary", { type: "submit" }, "Look")),
      this.note, this.life));
    document.addEventListener("visibilitychange", () => this.#lookedAt());
  }

  show(id) {
    this.#isShown = true;
    if (id !== this.id) this.life.hidden = true;
    this.id = id;
    if (id) this.input.value = id;
    this.#stop();
    setText(this.note, id ? "" : "An answer's id names its request. The Fleet view has links to those that are open.");
    if (id) this.#ask();
    else this.input.focus();
  }

  hide() {
    this.#isShown = false;
    this.#stop();
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#isAsking = false;
    this.#abort?.abort();
  }

  async #ask() {
    const abort = (this.#abort = new AbortController());
    let isOver = false;
    this.#isAsking = true;
    try {
      const answer = await this.frame.api.json(`page/requests/${encodeURIComponent(this.id)}`, { signal: abort.signal });
      if (abort.signal.aborted) return;
      isOver = this.#render(answer);
      setText(this.note, isOver ? "" : "It is open; what is shown follows it.");
    } catch (error) {
      if (abort.signal.aborted) return;
      if (error.status === 404) this.life.hidden = true;
      isOver = !error.mayPass;
      setText(this.note, error.status === 404 ? this.#notKnown() : `${error.message}${isOver ? "" : " Trying again."}`);
    }
    this.#isAsking = false;
    // one that is over is not asked for again when the page is looked at again
    this.#timer = isOver ? -1 : setTimeout(() => this.#again(), AGAIN_MS);
  }

  #again() {
    this.#timer = 0;
    this.#lookedAt();
  }

  /** Ask, if somebody looks, and nothing else is going to. */
  #lookedAt() {
    if (this.#isShown && this.id && !document.hidden && this.#timer === 0 && !this.#isAsking) this.#ask();
  }

  #notKnown() {
    const others = this.frame.about.may_read_status ? "" : ", or it is not one of yours";
    return `No request with the id ${this.id} is known: it ended long ago, or never was${others}.`;
  }

  /** Show the answer. Returns whether the request has ended. */
  #render({ now, sequences }) {
    const items = sequences.map((sequence) => ({ sequence, life: lifeOf(sequence, now) }));
    this.isOnly = items.length === 1;
    this.span = {
      begin: Math.min(...items.map(({ life }) => life.begin)),
      end: Math.max(...items.map(({ life }) => life.now)),
    };
    this.strips.show(items);
    this.axis.show(this.span);
    this.life.hidden = false;
    return items.every(({ life }) => life.end !== null);
  }
}
