// A column: its settings and its conversation, which stays at its end while the reader is there.

import { button, h } from "../dom.js";
import { AnswerView } from "./answer-view.js";
import { MessageView } from "./message-view.js";
import { nowMs } from "./run.js";
import { SettingsView } from "./settings-view.js";

/** So near to the end counts as being there, in pixels. */
const NEAR = 48;

export class ColumnView {
  #views = new Map(); // by key of the message
  #changed = new Set();
  #atEnd = true;
  #last = null; // the view of the last answer
  #list = h("ol.messages");

  /** @param {import("./view.js").TalkView} talk the whole view. */
  constructor(column, name, model, talk) {
    this.column = column;
    this.name = name;
    this.model = model;
    this.talk = talk;
    const clear = button("Clear", () => this.#clear(), { "aria-label": "Clear conversation" });
    this.empty = h("p.empty.quiet", {},
      `Talk to ${model}. If the executor that writes an answer dies, another one goes on with it, and the ticks below `
      + "the answer show the pause.");
    const id = name.toLowerCase();
    this.settings = new SettingsView(column, id);
    this.log = h("div.log", { role: "region", "aria-label": `Conversation ${name}`, tabindex: 0 },
      this.empty, this.#list);
    this.element = h("section.column", { "aria-label": `Column ${name}`, "data-testid": `column-${id}` },
      h("div.head", {}, h("span.name", { "aria-hidden": "true" }, name), this.settings.element, clear), this.log);
    this.log.addEventListener("scroll", () => {
      this.#stay(this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR);
    }, { passive: true });
    // messages out of sight have an estimated height until they are scrolled to, so the end may move at any time
    const resized = new ResizeObserver(() => { if (this.#atEnd) this.scrollToEnd(); });
    resized.observe(this.#list);
    resized.observe(this.log);
    column.on = {
      added: (message) => this.#add(message),
      removed: (messages) => this.#remove(messages),
      changed: (answer) => this.#change(answer),
      begun: () => this.#begin(),
      ended: (answer) => this.#end(answer),
    };
    for (const message of column.conversation.messages) this.#append(message);
    this.#setLast();
  }

  /** Write into the page what has changed since the last frame. */
  flush() {
    for (const key of this.#changed) this.#views.get(key)?.update();
    this.#changed.clear();
    if (this.#atEnd) this.scrollToEnd(); // in the same frame, or what stands below the text would count as moved
  }

  /** The numbers of the answer in progress: they change with time, too. */
  flushFigures() {
    const { running } = this.column.conversation;
    if (running) this.#views.get(running.key)?.updateFigures(nowMs());
  }

  /** Go to the end, and stay there while the conversation grows. */
  scrollToEnd() {
    this.#stay(true);
    this.log.scrollTop = this.log.scrollHeight;
  }

  /** Whether to stay at the end. The browser then keeps the end in its place, and else what is read. */
  #stay(atEnd) {
    this.#atEnd = atEnd;
    this.log.classList.toggle("at-end", atEnd);
  }

  #clear() {
    this.column.clear();
    this.talk.done();
  }

  #add(message) {
    this.#append(message);
    this.#setLast();
    this.scrollToEnd();
  }

  #append(message) {
    const view = message.role === "assistant"
      ? new AnswerView(message, this.column, this.model)
      : new MessageView(message, this.column);
    this.#views.set(message.key, view);
    this.#list.append(view.element);
  }

  #remove(messages) {
    for (const { key } of messages) {
      this.#views.get(key)?.element.remove();
      this.#views.delete(key);
    }
    this.#setLast();
    this.talk.changedState();
  }

  #change(answer) {
    this.#changed.add(answer.key);
    this.talk.schedule(this);
  }

  #begin() {
    this.#setLast();
    this.talk.changedState();
    this.talk.announce(this, "Answer begins.");
    this.talk.done();
  }

  #end(answer) {
    this.#views.get(answer.key)?.updateFigures(nowMs());
    this.#setLast();
    this.talk.changedState();
    const how = { done: "Answer ends.", stopped: "Answer stopped." }[answer.state];
    this.talk.announce(this, how ?? `Answer failed: ${answer.error.message}`);
  }

  #setLast() {
    const { messages, last } = this.column.conversation;
    this.empty.hidden = messages.length > 0;
    const view = last?.role === "assistant" ? this.#views.get(last.key) : null;
    if (this.#last !== view) this.#last?.setLast(false);
    view?.setLast(true);
    this.#last = view;
  }
}
