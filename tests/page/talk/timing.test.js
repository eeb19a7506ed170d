import assert from "node:assert/strict";
import { test } from "node:test";

import { interruptionsOf, isSwap, labelled, labelsOf, pausesOf } from "../../../scheduler_svc/frontend/page/files/talk/life.js";
import {
  duration, figuresOf, gapPath, gapsOf, median, roundEnd, summaryOf, thinned, tickPath,
} from "../../../scheduler_svc/frontend/page/files/talk/timing.js";

const SIZE = { width: 1000, height: 16 };

/** Tokens at a steady pace, with pauses of so many ms before some of them. */
function arrivals(count, step, pauses = {}) {
  let at = 50;
  return Array.from({ length: count }, (_, index) => {
    if (index) at += pauses[index] ?? step;
    return [at, 1];
  });
}

test("the median", () => {
  assert.deepEqual([median([]), median([3]), median([9, 1, 5]), median([4, 1, 2, 9])], [0, 3, 5, 2]);
});

test("gaps are pauses of more than 100 ms and of more than five times the usual", () => {
  assert.deepEqual(gapsOf([]), []);
  assert.deepEqual(gapsOf([[500, 1]]), []);
  assert.deepEqual(gapsOf(arrivals(10, 10, { 5: 100 })), []);
  assert.deepEqual(gapsOf(arrivals(10, 10, { 5: 101 })), [{ from: 90, to: 191 }]);
  assert.deepEqual(gapsOf(arrivals(10, 40, { 5: 200 })), []);
  assert.deepEqual(gapsOf(arrivals(10, 40, { 5: 201, 8: 900 })).map(({ from, to }) => to - from), [201, 900]);
});

test("the numbers below an answer", () => {
  assert.deepEqual(figuresOf([]), { firstMs: null, rate: null, tokens: 0, endMs: 0 });
  assert.deepEqual(figuresOf([[80, 2]]), { firstMs: 80, rate: null, tokens: 2, endMs: 80 });
  assert.deepEqual(figuresOf([[100, 1], [600, 4], [1100, 6]]), { firstMs: 100, rate: 10, tokens: 11, endMs: 1100 });
});

test("thinned arrivals keep their tokens and their begin", () => {
  const many = arrivals(5000, 3);
  const thin = thinned(many, many.at(-1)[0], 200);
  assert.ok(thin.length <= 201);
  assert.equal(thin.reduce((sum, [, tokens]) => sum + tokens, 0), 5000);
  assert.deepEqual(thin[0][0], 50);
});

test("the drawing", () => {
  assert.equal(tickPath([[0, 1], [500, 1], [1000, 20]], 1000, SIZE), "M0 16V8M500 16V8M1000 16V0");
  assert.equal(tickPath(arrivals(9000, 1), 9050, SIZE).split("M").length - 1 <= 1001, true);
  assert.equal(gapPath([{ from: 100, to: 300 }], 1000, SIZE), "M100 0H300V16H100Z");
  assert.deepEqual([1, 100, 101, 900, 2100, 60_000].map(roundEnd), [100, 100, 200, 1000, 5000, 100_000]);
});

test("words", () => {
  assert.deepEqual([0.4, 120, 999.4, 999.6, 3440, 125_000].map(duration),
    ["0 ms", "120 ms", "999 ms", "1.0 s", "3.4 s", "2 min 5 s"]);
  const figures = { firstMs: 132, rate: 41.17, tokens: 87, endMs: 2100 };
  assert.equal(summaryOf(figures, []), "87 tokens in 2.1 s, the first after 132 ms, 41.2 tokens per second. No gaps.");
  assert.match(summaryOf(figures, ["a → b, 120 ms"]), /Gaps: a → b, 120 ms\.$/);
  assert.equal(summaryOf(figuresOf([]), []), "No token so far.");
});

const LIFE = {
  now: 2000, sequences: [{ index: 0, marks: [
    { at: 1990, what: "queued", tokens: 3 },
    { at: 1990.1, what: "admitted", executor: "executor-0", epoch: 7 },
    { at: 1990.2, what: "first_token", executor: "executor-0", epoch: 7 },
    { at: 1993, what: "lost", executor: "executor-0", epoch: 7, cause: "disconnected" },
    { at: 1993.1, what: "admitted", executor: "executor-1", epoch: 8 },
    { at: 1993.12, what: "resumed", executor: "executor-1", epoch: 8 },
    { at: 1996, what: "preempted", executor: "executor-1", epoch: 8 },
    { at: 1996.4, what: "admitted", executor: "executor-1", epoch: 8 },
    { at: 1996.5, what: "resumed", executor: "executor-1", epoch: 8 },
    { at: 1998, what: "left", executor: "executor-1", epoch: 8 }] }],
};

test("interruptions of a life, in the page's clock", () => {
  const found = interruptionsOf(LIFE, 5_000_000);
  assert.deepEqual(found.map(({ what, before, after, isSame }) => [what, before, after, isSame]), [
    ["lost", "executor-0", "executor-1", false], ["preempted", "executor-1", "executor-1", true],
    ["left", "executor-1", "", false]]);
  assert.deepEqual(found.map(({ from, to }) => [Math.round(from), Math.round(to)]),
    [[4_993_000, 4_993_120], [4_996_000, 4_996_500], [4_998_000, Infinity]]);
  assert.deepEqual(interruptionsOf({ now: 1, sequences: [] }, 0), []);
});

test("gaps get the reason that lies in them", () => {
  const sentAt = 4_990_000;
  const gaps = [[2990, 3110], [5000, 5150], [5990, 6520], [7000, 7400], [7990, 8200]]
    .map(([from, to]) => ({ from, to }));
  const labels = labelled(gaps, interruptionsOf(LIFE, 5_000_000), [[7100, 7390]], sentAt);
  assert.deepEqual(labels.map(({ label }) => label), [
    "executor-0 → executor-1, 120 ms", "pause, 150 ms", "preempted on executor-1, 530 ms",
    "connection broken, 400 ms",
    "executor-1 → waiting, 210 ms"]);
  const more = labelsOf([...labels, { from: 0, to: 300, kind: "pause", label: "pause, 300 ms" }]);
  assert.deepEqual(more.map(({ label }) => label).slice(-2),
    ["executor-1 → waiting, 210 ms", "2 pauses of up to 300 ms"]);
  assert.deepEqual(labels.map(({ kind }) => kind), ["lost", "pause", "preempted", "connection", "left"]);
  assert.deepEqual(labels.map(isSwap), [true, false, false, false, true]);
});

test("an executor that comes back under its name, and a scheduler", () => {
  const marks = (first) => ({ now: 10, sequences: [{ marks: [...first,
    { at: 5.1, what: "admitted", executor: "executor-0", epoch: 9 },
    { at: 5.2, what: "resumed", executor: "executor-0", epoch: 9 }] }] });
  const label = (first) => labelled([{ from: 4900, to: 5300 }], interruptionsOf(marks(first), 10_000), [], 0)[0].label;
  assert.equal(label([{ at: 5, what: "lost", executor: "executor-0", epoch: 8 }]),
    "executor-0 → executor-0 (restarted), 400 ms");
  assert.equal(label([{ at: 5, what: "restored" }]), "scheduler restarted, 400 ms");
});

test("a swap is shown however short it was, and once", () => {
  const at = arrivals(100, 5, { 40: 45, 60: 300 }); // from 245 to 290, and from 385 to 685
  const swap = { from: 1_000_260, to: 1_000_280, what: "lost", before: "a", after: "b", isSame: false };
  const pauses = pausesOf(at, [swap], 1_000_000);
  assert.deepEqual(pauses, [{ from: 245, to: 290 }, { from: 385, to: 685 }]);
  const labels = labelled(pauses, [swap], [], 1_000_000).map(({ label }) => label);
  assert.deepEqual(labels, ["a → b, 45 ms", "pause, 300 ms"]);
  assert.deepEqual(pausesOf(at, [], 0), gapsOf(at));
  const long = { ...swap, from: 1_000_390, to: 1_000_670 };
  assert.deepEqual(pausesOf(at, [long], 1_000_000), gapsOf(at), "a gap is not shown twice");
  assert.deepEqual(pausesOf([], [swap], 0), []);
});
