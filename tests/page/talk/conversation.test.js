import assert from "node:assert/strict";
import { test } from "node:test";

import { newAnswer } from "../../../scheduler_svc/frontend/page/files/talk/answer.js";
import { Conversation } from "../../../scheduler_svc/frontend/page/files/talk/conversation.js";

function answered(conversation, text, more = {}) {
  const answer = newAnswer("r", {}, 0, { key: `k${conversation.messages.length}` });
  return conversation.add({ ...answer, text, state: "done", ...more });
}

test("what a request sends", () => {
  const conversation = new Conversation({ system: "Be short." });
  conversation.say("Hello");
  answered(conversation, "Hi", { thought: "Greet." });
  conversation.say("And?");
  answered(conversation, "", { state: "failed" });
  assert.deepEqual(conversation.wire(), [
    { role: "system", content: "Be short." },
    { role: "user", content: "Hello" },
    { role: "assistant", content: "Hi", reasoning_content: "Greet." },
    { role: "user", content: "And?" },
  ]);
  assert.equal(conversation.wire(2).length, 3);
});

test("an edited message takes away what follows", () => {
  const conversation = new Conversation();
  const first = conversation.say("one");
  const answer = answered(conversation, "1");
  const second = conversation.say("two");
  assert.deepEqual(conversation.edit(first.key, "three"), [answer, second]);
  assert.deepEqual(conversation.wire(), [{ role: "user", content: "three" }]);
});

test("an answer that is taken back takes what follows with it", () => {
  const conversation = new Conversation();
  conversation.say("one");
  const answer = answered(conversation, "1");
  conversation.say("two");
  assert.equal(conversation.takeBack(answer.key).length, 2);
  assert.deepEqual(conversation.wire(), [{ role: "user", content: "one" }]);
});

test("calls and their results", () => {
  const conversation = new Conversation();
  conversation.say("Weather?");
  answered(conversation, "", { calls: [
    { id: "c1", name: "weather", arguments: '{"city": "Ulm"}' }, { id: "c2", name: "time", arguments: "{}" }] });
  assert.equal(conversation.canGoOn, false);
  conversation.giveResults(["sunny", "noon"]);
  assert.deepEqual(conversation.openCalls, []);
  assert.deepEqual(conversation.wire().slice(1), [
    { role: "assistant", content: "", tool_calls: [
      { id: "c1", type: "function", function: { name: "weather", arguments: '{"city": "Ulm"}' } },
      { id: "c2", type: "function", function: { name: "time", arguments: "{}" } }] },
    { role: "tool", tool_call_id: "c1", content: "sunny" },
    { role: "tool", tool_call_id: "c2", content: "noon" },
  ]);
});

test("an answer that goes on is one message with the answer before it", () => {
  const conversation = new Conversation();
  conversation.say("Count.");
  answered(conversation, "one, ");
  assert.equal(conversation.canGoOn, true);
  answered(conversation, "two", { continues: true });
  assert.deepEqual(conversation.wire().at(-1), { role: "assistant", content: "one, two" });
  assert.equal(conversation.wire().length, 2);
});

test("the answer in progress", () => {
  const conversation = new Conversation();
  assert.equal(conversation.running, null);
  conversation.say("one");
  const answer = answered(conversation, "", { state: "running" });
  assert.equal(conversation.running, answer);
  assert.equal(conversation.canGoOn, false);
});
