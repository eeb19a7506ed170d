import assert from "node:assert/strict";
import { test } from "node:test";

import { asksForJson, newAnswer, take } from "../../../scheduler_svc/frontend/page/files/talk/answer.js";
import { Indenter } from "../../../scheduler_svc/frontend/page/files/talk/indent.js";

function delta(fields, tokens = null, finish = null) {
  const chunk = { choices: [{ index: 0, delta: fields, finish_reason: finish }] };
  return tokens === null ? chunk : { ...chunk, usage: { prompt_tokens: 5, completion_tokens: tokens } };
}

test("text, thought, end and times", () => {
  const answer = newAnswer("r", {}, 1000, { key: "k" });
  take(answer, delta({ role: "assistant", content: "" }, 0), "0", 1100);
  take(answer, delta({ reasoning_content: "Hm", reasoning: "Hm" }, 1), "1", 1200);
  take(answer, delta({ content: "<b>a" }, 3), "3", 1250.04);
  take(answer, delta({}, 4, "stop"), "4!", 1300);
  take(answer, { choices: [], usage: { prompt_tokens: 5, completion_tokens: 4 } }, "end", 1300);
  assert.deepEqual(
    [answer.text, answer.thought, answer.finish, answer.tokens, answer.promptTokens, answer.lastEventId],
    ["<b>a", "Hm", "stop", 4, 5, "end"]);
  assert.deepEqual(answer.arrivals, [[200, 1], [250, 2], [300, 1]]);
});

test("without a usage, chunks that say something are counted", () => {
  const answer = newAnswer("r", {}, 0, { key: "k" });
  take(answer, delta({ role: "assistant", content: "" }), "0", 1);
  take(answer, delta({ content: "a" }), "1", 2);
  take(answer, delta({ content: "b" }), "2", 3);
  assert.equal(answer.tokens, 2);
});

test("calls are put together from their pieces, also those of several calls", () => {
  const answer = newAnswer("r", {}, 0, { key: "k" });
  const pieces = [
    { index: 0, id: "c0", type: "function", function: { name: "find", arguments: "" } },
    { index: 0, function: { arguments: '{"q": "' } }, { index: 0, function: { arguments: 'x"}' } },
    { index: 1, id: "c1", type: "function", function: { name: "open", arguments: "{" } },
    { index: 1, function: { arguments: "}" } },
  ];
  pieces.forEach((piece, index) => take(answer, delta({ tool_calls: [piece] }, index), String(index), index));
  assert.deepEqual(answer.calls, [
    { id: "c0", name: "find", arguments: '{"q": "x"}' }, { id: "c1", name: "open", arguments: "{}" }]);
});

test("which answers are JSON", () => {
  assert.equal(asksForJson({}), false);
  assert.equal(asksForJson({ response_format: { type: "text" } }), false);
  assert.equal(asksForJson({ response_format: { type: "json_schema", json_schema: {} } }), true);
  assert.equal(asksForJson({ structured_outputs: { json: { type: "object" } } }), true);
  assert.equal(asksForJson({ structured_outputs: { regex: "a+" } }), false);
});

test("JSON is indented as JSON.stringify does it, by any pieces", () => {
  const value = { a: [1, { b: "x: {[,\\\" y" }, [], {}], c: null, "ü": true };
  const text = JSON.stringify(value, null, " \t");
  for (let cut = 0; cut <= text.length; cut += 1) {
    const indenter = new Indenter();
    assert.equal(indenter.feed(text.slice(0, cut)) + indenter.feed(text.slice(cut)), JSON.stringify(value, null, 2));
  }
  assert.equal(new Indenter().feed('{"n":12345678901234567890}'), '{\n  "n": 12345678901234567890\n}');
});
