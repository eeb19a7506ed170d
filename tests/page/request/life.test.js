import assert from "node:assert/strict";
import { test } from "node:test";

import { lifeOf, phraseOf, sentenceOf } from "../../../scheduler_svc/frontend/page/files/request/life.js";

const T = 1795700000;
const ON0 = { executor: "executor-0", epoch: 7 };
const ON1 = { executor: "executor-1", epoch: 8 };
const mark = (at, what, more = {}) => ({ at: T + at, what, ...more });

const MOVED = {
  index: 0, output: 87, num_left_out: 0,
  marks: [
    mark(0, "queued", { tokens: 120 }),
    mark(1, "admitted", { tokens: 120, cached: 64, ...ON0 }),
    mark(1, "prefill", { tokens: 50, ...ON0 }),
    mark(1.5, "prefill", { tokens: 6, ...ON0 }),
    mark(2, "first_token", ON0),
    mark(5, "lost", { cause: "disconnected", ...ON0 }),
    mark(5.5, "admitted", { tokens: 160, cached: 159, ...ON1 }),
    mark(5.5, "prefill", { tokens: 1, ...ON1 }),
    mark(6, "resumed", ON1),
    mark(10, "ended", { tokens: 87, cause: "stop" }),
  ],
};

const shape = (life) => life.segments.map(({ kind, begin, end }) => [kind, begin - T, end - T]);

test("marks are segments that follow each other", () => {
  assert.deepEqual(shape(lifeOf(MOVED, T + 99)), [
    ["queued", 0, 1], ["cached", 1, 1], ["prefill", 1, 1.5], ["prefill", 1.5, 2], ["decode", 2, 5],
    ["paused", 5, 5.5], ["cached", 5.5, 5.5], ["prefill", 5.5, 6], ["decode", 6, 10],
  ]);
});

test("what follows a pause until the next token counts as paused", () => {
  const { seconds, pauses, cached, prompt } = lifeOf(MOVED, T + 99);
  assert.deepEqual(seconds, { queued: 1, prefill: 1, decode: 7, paused: 1, unknown: 0 });
  assert.deepEqual(pauses, [{ begin: T + 5, what: "lost", executor: "executor-0", cause: "disconnected", seconds: 1 }]);
  assert.deepEqual([cached, prompt], [64, 120]);
});

test("a sentence says where the time went", () => {
  assert.equal(sentenceOf(lifeOf(MOVED, T + 99)),
    "It took 10 s. Most of it (70%) went into decoding. 1.0 s in the queue, 1.0 s for the prefill of its prompt, with " +
    "64 of 120 tokens from the cache, 7.0 s to decode 87 tokens (12 tokens/s). 1.0 s in 1 pause: 1.0 s as executor-0 " +
    "was lost (its connection broke). It ended: the answer was complete.");
});

test("one that waits is in the queue until now", () => {
  const life = lifeOf({ index: 0, output: 0, marks: [mark(0, "queued", { tokens: 5 })] }, T + 3);
  assert.deepEqual(shape(life), [["queued", 0, 3]]);
  assert.equal(sentenceOf(life), "It has taken 3.0 s so far. 3.0 s in the queue.");
});

test("one that was preempted twice before its next token waits as for the first time", () => {
  const life = lifeOf({ index: 0, output: 9, marks: [
    mark(0, "restored", { tokens: 8 }), mark(1, "admitted", { tokens: 20, ...ON0 }), mark(1, "prefill", { tokens: 20, ...ON0 }),
    mark(2, "resumed", ON0), mark(3, "preempted", ON0), mark(4, "admitted", { tokens: 21, ...ON0 }), mark(5, "lost", { cause: "hung", ...ON0 }),
  ] }, T + 6);
  assert.deepEqual([life.pauses.length, life.pauses[0].seconds, life.doing], [1, 3, "paused"]);
  assert.match(sentenceOf(life), /an older sequence took its blocks on executor-0/);
  assert.match(sentenceOf(life), /restored from the journal/);
});

test("one that makes no tokens ends after its prefill", () => {
  const life = lifeOf({ index: 0, output: 0, marks: [
    mark(0, "queued", { tokens: 5 }), mark(1, "admitted", { tokens: 5, ...ON0 }), mark(1, "prefill", { tokens: 5, ...ON0 }), mark(2, "ended", { cause: "stop" }),
  ] }, T + 9);
  assert.deepEqual(life.seconds, { queued: 1, prefill: 1, decode: 0, paused: 0, unknown: 0 });
});

test("what lies where marks were let go is not known", () => {
  const marks = Array.from({ length: 40 }, (_, i) => mark(i, ["preempted", "admitted", "prefill", "resumed"][i % 4], ON0));
  const life = lifeOf({ index: 0, output: 5, num_left_out: 7, marks }, T + 40);
  assert.ok(life.segments.some(({ kind, begin, end }) => kind === "unknown" && begin === T + 31 && end === T + 32));
  assert.equal(life.seconds.unknown, 1);
  const total = Object.values(life.seconds).reduce((sum, seconds) => sum + seconds, 0);
  assert.equal(total, 40);
});

test("segments have phrases", () => {
  const { segments } = lifeOf(MOVED, T + 99);
  assert.equal(phraseOf(segments[1]), "64 tokens from the cache on executor-0 (epoch 7)");
  assert.equal(phraseOf(segments[2]), "prefill of 50 tokens, 500 ms on executor-0 (epoch 7)");
  assert.equal(phraseOf(segments[5]), "waits again, as executor-0 was lost (its connection broke), 500 ms");
});

test("a token on its way when a sequence is preempted does not resume it", () => {
  const life = lifeOf({
    output: 2,
    marks: [
      { at: 0, what: "queued", tokens: 10 }, { at: 1, what: "admitted", tokens: 10, executor: "a", epoch: 1 },
      { at: 1, what: "prefill", tokens: 10, executor: "a", epoch: 1 },
      { at: 2, what: "preempted", executor: "a", epoch: 1 }, { at: 2.5, what: "first_token", executor: "a", epoch: 1 },
      { at: 50, what: "admitted", tokens: 11, executor: "a", epoch: 1 },
      { at: 52, what: "resumed", executor: "a", epoch: 1 }, { at: 53, what: "ended", tokens: 2, cause: "length" },
    ],
  }, 60);
  assert.equal(life.seconds.decode, 1);
  assert.equal(life.seconds.paused, 50);
});
