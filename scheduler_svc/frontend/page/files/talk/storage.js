// Keeps the conversations in the tab, so that a reload goes on with them.
//
// Each message has an entry of its own: while an answer comes only its entry is written, however long the conversation.

import { Conversation } from "./conversation.js";

const PREFIX = "baton.talk.";
const INDEX = `${PREFIX}index`;
const INTERVAL_MS = 500;

/**
 * @typedef {Object} State what is kept.
 * @property {boolean} compares whether the second column is shown.
 * @property {string} draft what stands in the input.
 * @property {Conversation[]} columns
 */

/** Writes what has changed, at most every half second. */
export class Keeper {
  #storage;
  #state;
  #keys; // of the messages that the index has
  #dirty = new Set();
  #isIndexDirty = false;
  #timer = null;
  /** Is called with whether the storage is full, when that changes. */
  onFull = () => {};
  isFull = false;

  /** @param {Storage} storage @param {State} state that is kept; its owner changes it. */
  constructor(storage, state) {
    this.#storage = storage;
    this.#state = state;
    this.#keys = new Set(state.columns.flatMap(({ messages }) => messages.map(({ key }) => key)));
  }

  /** These messages have changed, or anything else has if there are none. Written soon. */
  note(...messages) {
    for (const message of messages) {
      this.#isIndexDirty ||= !this.#keys.has(message.key);
      this.#keys.add(message.key);
      this.#dirty.add(message);
    }
    this.#isIndexDirty ||= !messages.length;
    this.#timer ??= setTimeout(() => this.flush(), INTERVAL_MS);
  }

  /** Write now: the page may be about to go. */
  flush() {
    clearTimeout(this.#timer);
    this.#timer = null;
    let fits = true;
    for (const message of this.#dirty) {
      if (this.#put(PREFIX + message.key, message)) this.#dirty.delete(message);
      else fits = false;
    }
    if (this.#isIndexDirty) this.#isIndexDirty = !this.#put(INDEX, this.#index());
    fits &&= !this.#isIndexDirty;
    if (fits === !this.isFull) return;
    this.isFull = !fits;
    this.onFull(this.isFull);
  }

  /** These messages are no longer in a conversation. */
  forget(messages) {
    for (const message of messages) {
      this.#dirty.delete(message);
      try {
        this.#storage.removeItem(PREFIX + message.key);
      } catch {
        // a browser that lets nothing be stored
      }
    }
    this.note();
  }

  #index() {
    const { compares, draft, columns } = this.#state;
    const parts = columns.map(({ system, values, messages }) => (
      { system, values, keys: messages.map(({ key }) => key) }
    ));
    return { compares, draft, columns: parts };
  }

  /** An entry is replaced as a whole or, if there is no room, not at all: the old one still fits together. */
  #put(name, value) {
    try {
      this.#storage.setItem(name, JSON.stringify(value));
      return true;
    } catch {
      return false;
    }
  }
}

/** The state that a page before this one has kept; one without messages if there was none. */
export function stored(storage) {
  const index = parsed(storage, INDEX) ?? {};
  const columns = [0, 1].map((number) => {
    const { system, values, keys = [] } = index.columns?.[number] ?? {};
    const messages = [];
    for (const key of keys) {
      const message = parsed(storage, PREFIX + key);
      if (!message) break; // what follows would answer something else
      messages.push(message);
    }
    return new Conversation({ system, values, messages });
  });
  return { compares: index.compares === true, draft: index.draft ?? "", columns };
}

function parsed(storage, name) {
  try {
    return JSON.parse(storage.getItem(name));
  } catch {
    return null;
  }
}
