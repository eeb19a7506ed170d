// What the reader does in a column: messages go, answers come. Views are told by `on`.

import { newAnswer } from "./answer.js";
import { randomName } from "./conversation.js";
import { readAll } from "./parameters.js";
import { nowMs, Run } from "./run.js";

/** One conversation with the service, and its answer in progress if there is one. */
export class Column {
  #api;
  #about;
  #keeper;
  #run = null;
  /** What views want to know. `changed` comes with every chunk. */
  on = { added: () => {}, removed: () => {}, changed: () => {}, ended: () => {}, begun: () => {} };

  constructor(conversation, { api, about, keeper }) {
    this.conversation = conversation;
    this.#api = api;
    this.#about = about;
    this.#keeper = keeper;
  }

  get isRunning() {
    return this.conversation.running !== null;
  }

  /** Whether the connection of the answer in progress is broken at the moment. */
  get isBroken() {
    return this.#run?.isBroken ?? false;
  }

  get parameters() {
    return this.#about.parameters;
  }

  /** What is wrong with the settings, by name. */
  get problems() {
    return readAll(this.parameters, this.conversation.values).problems;
  }

  set(name, text) {
    if (text === "") delete this.conversation.values[name];
    else this.conversation.values[name] = text;
    this.#keeper.note();
  }

  setSystem(text) {
    this.conversation.system = text;
    this.#keeper.note();
  }

  /** Say something. Without a text an answer goes on with the last message, if that is the assistant's. */
  say(text) {
    if (text === "") {
      if (this.conversation.canGoOn) this.goOn();
      return;
    }
    this.#added(this.conversation.say(text));
    this.#answer();
  }

  goOn() {
    this.#answer({ continues: true });
  }

  giveResults(texts) {
    for (const result of this.conversation.giveResults(texts)) this.#added(result);
    this.#answer();
  }

  edit(key, text) {
    this.stop();
    this.#removed(this.conversation.edit(key, text));
    this.#keeper.note(this.conversation.last);
    this.#answer();
  }

  /** Have this answer written anew. */
  regenerate(key) {
    this.stop();
    const [old, ...others] = this.conversation.takeBack(key);
    this.#removed([old, ...others]);
    this.#answer({ continues: old.continues });
  }

  /** After an error: read on where the request may still be there, else ask again. */
  retry(key) {
    const answer = this.conversation.last;
    if (answer?.key !== key || answer.state !== "away") return this.regenerate(key);
    answer.state = "running";
    answer.error = answer.figures = null;
    return this.#follow(answer, true);
  }

  stop() {
    this.#run?.stop();
    this.#run = null;
  }

  clear() {
    this.stop();
    this.#removed(this.conversation.clear());
  }

  /** Go on with an answer that was in progress when the page went. */
  resume() {
    if (this.conversation.running) this.#follow(this.conversation.running, true);
  }

  #answer({ continues = false } = {}) {
    const sent = readAll(this.parameters, this.conversation.values).body;
    if (continues) sent.continue_final_message = true;
    const answer = newAnswer(`page-${randomName()}`, sent, nowMs(), { key: randomName(), continues });
    this.#added(this.conversation.add(answer));
    this.#follow(answer, false);
  }

  #follow(answer, mayBeKnown) {
    const run = new Run(this.#api, answer, this.#bodyOf(answer));
    this.#run = run;
    run.onChange = () => {
      if (!this.conversation.messages.includes(answer)) return;
      this.#keeper.note(answer);
      this.on.changed(answer);
    };
    run.onEnd = () => {
      if (this.#run === run) this.#run = null;
      run.onChange();
      if (this.conversation.messages.includes(answer)) this.on.ended(answer);
    };
    this.#keeper.note(answer);
    this.on.begun(answer);
    run.go(mayBeKnown);
  }

  #bodyOf(answer) {
    return {
      model: this.#about.model,
      messages: this.conversation.wire(this.conversation.indexOf(answer.key)),
      ...answer.sent,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      request_id: answer.request,
      resumable: true,
    };
  }

  #added(message) {
    this.#keeper.note(message);
    this.on.added(message);
  }

  #removed(messages) {
    this.#keeper.forget(messages);
    if (messages.length) this.on.removed(messages);
  }
}
