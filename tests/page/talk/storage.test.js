import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { newAnswer } from "../../../scheduler_svc/frontend/page/files/talk/answer.js";
import { Conversation } from "../../../scheduler_svc/frontend/page/files/talk/conversation.js";
import { Keeper, stored } from "../../../scheduler_svc/frontend/page/files/talk/storage.js";

/** A storage with room for so many characters, that counts what is written. */
class FakeStorage {
  entries = new Map();
  writes = [];

  constructor(room = Infinity) {
    this.room = room;
  }

  getItem(name) {
    return this.entries.get(name) ?? null;
  }

  setItem(name, value) {
    const others = [...this.entries].filter(([each]) => each !== name).reduce((sum, [, text]) => sum + text.length, 0);
    if (others + value.length > this.room) throw new DOMException("full", "QuotaExceededError");
    this.writes.push(name);
    this.entries.set(name, value);
  }

  removeItem(name) {
    this.entries.delete(name);
  }
}

function talk(storage) {
  const columns = [new Conversation({ system: "s", values: { seed: "1" } }), new Conversation()];
  const state = { compares: true, draft: "half a", columns };
  return { state, keeper: new Keeper(storage, state) };
}

test("a reload has all of it again", () => {
  const storage = new FakeStorage();
  const { state, keeper } = talk(storage);
  keeper.note(state.columns[0].say("Hello"));
  const answer = newAnswer("r", { seed: 1 }, 5, { key: "k" });
  keeper.note(state.columns[0].add({ ...answer, text: "Hi", lastEventId: "1" }));
  keeper.flush();
  assert.deepEqual(stored(storage), state);
  keeper.forget(state.columns[0].clear());
  keeper.flush();
  assert.deepEqual([...storage.entries.keys()], ["baton.talk.index"]);
});

test("of a long conversation only the answer in progress is written, every half second", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    const storage = new FakeStorage();
    const { state, keeper } = talk(storage);
    for (let index = 0; index < 1000; index += 1) keeper.note(state.columns[0].say(String(index)));
    keeper.flush();
    storage.writes.length = 0;
    const answer = state.columns[0].add(newAnswer("r", {}, 5, { key: "k" }));
    for (let token = 0; token < 100; token += 1) {
      answer.text += "x";
      keeper.note(answer);
      mock.timers.tick(10);
    }
    assert.deepEqual(storage.writes, ["baton.talk.k", "baton.talk.index", "baton.talk.k"]);
  } finally {
    mock.timers.reset();
  }
});

test("a full storage breaks nothing: what was stored of an answer still fits together", () => {
  const storage = new FakeStorage(1200);
  const { state, keeper } = talk(storage);
  const said = [];
  keeper.onFull = (isFull) => said.push(isFull);
  const answer = state.columns[0].add({ ...newAnswer("r", {}, 5, { key: "k" }), text: "begin", lastEventId: "1" });
  keeper.note(answer);
  keeper.flush();
  Object.assign(answer, { text: "x".repeat(2000), lastEventId: "900" });
  keeper.note(answer);
  keeper.flush();
  keeper.flush();
  assert.deepEqual(said, [true]);
  const [kept] = stored(storage).columns[0].messages;
  assert.deepEqual([kept.text, kept.lastEventId], ["begin", "1"]);
  answer.text = "short";
  keeper.note(answer);
  keeper.flush();
  assert.deepEqual(said, [true, false]);
  keeper.flush();
});

test("after a message that could not be stored, none is shown", () => {
  const storage = new FakeStorage();
  const { state, keeper } = talk(storage);
  const messages = ["a", "b", "c"].map((text) => state.columns[0].say(text));
  keeper.note(...messages);
  keeper.flush();
  storage.removeItem(`baton.talk.${messages[1].key}`);
  assert.deepEqual(stored(storage).columns[0].messages.map(({ text }) => text), ["a"]);
});

test("a storage with nothing, with rubbish, and one that may not be used", () => {
  const empty = { compares: false, draft: "", columns: [new Conversation(), new Conversation()] };
  const rubbish = new FakeStorage();
  rubbish.setItem("baton.talk.index", "{");
  const forbidden = new Proxy({}, { get: () => () => { throw new DOMException("no", "SecurityError"); } });
  for (const storage of [new FakeStorage(), rubbish, forbidden]) assert.deepEqual(stored(storage), empty);
  const keeper = new Keeper(forbidden, empty);
  keeper.forget([{ key: "k" }]);
  keeper.flush();
  assert.equal(keeper.isFull, true);
});
