// The view "Talk": one or two conversations with one input.

import { button, fill, h, isOfInputMethod } from "../dom.js";
import { Column } from "./column.js";
import { ColumnView } from "./column-view.js";
import { Keeper, stored } from "./storage.js";

const FIGURES_MS = 250;

export class TalkView {
  #state;
  #keeper;
  #views;
  #scheduled = new Set();
  #live = h("div.unseen", { "aria-live": "polite", "data-testid": "live" });

  constructor(root, { api, about }) {
    this.#state = stored(sessionStorage);
    this.#keeper = new Keeper(sessionStorage, this.#state);
    this.#keeper.onFull = (isFull) => { this.full.hidden = !isFull; };
    const service = { api, about, keeper: this.#keeper };
    this.#views = this.#state.columns.map((conversation, index) => (
      new ColumnView(new Column(conversation, service), "AB"[index], about.model, this)
    ));
    this.#build(root);
    root.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !isOfInputMethod(event)) this.#stop();
    });
    addEventListener("pagehide", () => this.#keeper.flush());
    addEventListener("visibilitychange", () => this.#keeper.flush());
    setInterval(() => this.#shown.forEach((view) => view.flushFigures()), FIGURES_MS);
    this.#setCompares(this.#state.compares);
    for (const view of this.#shown) view.column.resume();
  }

  show() {
    for (const view of this.#shown) view.scrollToEnd();
    this.input.focus();
  }

  hide() {}

  /** Have a column write what has changed, with the next frame. */
  schedule(view) {
    if (!this.#scheduled.size) {
      requestAnimationFrame(() => {
        const views = [...this.#scheduled];
        this.#scheduled.clear();
        views.forEach((each) => each.flush());
      });
    }
    this.#scheduled.add(view);
  }

  /** Tell a screen reader. */
  announce(view, text) {
    this.#live.textContent = this.#state.compares ? `${view.name}: ${text}` : text;
  }

  /** The reader has done something elsewhere, and goes on in the input. */
  done() {
    this.input.focus({ preventScroll: true });
  }

  /** An answer has begun or ended, or a conversation has changed. */
  changedState() {
    const isRunning = this.#shown.some((view) => view.column.isRunning);
    this.send.disabled = isRunning;
    this.stop.disabled = !isRunning;
  }

  get #shown() {
    return this.#state.compares ? this.#views : this.#views.slice(0, 1);
  }

  #build(root) {
    this.columns = h("div.columns", {}, this.#views.map((view) => view.element));
    this.input = h("textarea", {
      id: "talk-input", rows: 2, placeholder: "Say something", "aria-describedby": "talk-keys", enterkeyhint: "send",
    });
    this.input.value = this.#state.draft;
    this.input.addEventListener("input", () => {
      this.#state.draft = this.input.value;
      this.#keeper.note();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || isOfInputMethod(event)) return;
      event.preventDefault();
      this.#say();
    });
    this.send = h("button.primary", { type: "submit" }, "Send");
    this.stop = button("Stop", () => this.#stop(), { disabled: true });
    this.compare = button("Compare", () => this.#setCompares(!this.#state.compares), {
      title: "Send each message to a second conversation too, which has its own settings.",
    });
    this.full = h("p.quiet", { role: "status", hidden: true },
      "This tab has no room for more: a reload would lose the newest part of the conversation.");
    const submit = (event) => {
      event.preventDefault();
      this.#say();
    };
    fill(root, this.columns, this.full,
      h("form.composer", { on: { submit } },
        h("label.unseen", { for: "talk-input" }, "Message"), this.input,
        h("div.buttons", {}, this.send, this.stop, this.compare,
          h("p.keys.quiet", { id: "talk-keys" }, "Enter sends, Shift+Enter makes a new line, Escape stops."))),
      this.#live);
  }

  #say() {
    const shown = this.#shown;
    if (shown.some((view) => view.column.isRunning) || shown.some((view) => view.settings.showProblem())) return;
    const text = this.input.value;
    if (text.trim() === "" && !shown.some((view) => view.column.conversation.canGoOn)) return;
    this.input.value = this.#state.draft = "";
    for (const view of shown) view.column.say(text.trim() === "" ? "" : text);
  }

  #stop() {
    for (const view of this.#shown) view.column.stop();
  }

  #setCompares(compares) {
    const [first, second] = this.#views;
    if (compares && !this.#state.compares) this.#begin(first.column.conversation, second);
    if (!compares) second.column.stop();
    this.#state.compares = compares;
    this.columns.classList.toggle("two", compares);
    second.element.hidden = !compares;
    this.compare.setAttribute("aria-pressed", String(compares));
    this.#shown.forEach((view) => view.scrollToEnd());
    this.#keeper.note();
    this.changedState();
  }

  /** A second column that has nothing yet begins with the first one's settings: then one of them is changed. */
  #begin({ system, values }, second) {
    const { conversation } = second.column;
    if (conversation.messages.length || conversation.system || Object.keys(conversation.values).length) return;
    conversation.system = system;
    conversation.values = { ...values };
    second.settings.reload();
  }
}
