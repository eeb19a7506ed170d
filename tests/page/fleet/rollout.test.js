import assert from "node:assert/strict";
import { test } from "node:test";

import { Rollout } from "../../../scheduler_svc/frontend/page/files/fleet/rollout.js";

const executor = (name, epoch, more = {}) => ({
  executor: name, epoch, pid: epoch, state: "ready", build: "2", running: 3, has_standby: false, ...more,
});
const PAUSES = Object.fromEntries(Array.from({ length: 20 }, (_, epoch) => [epoch, epoch / 4]));
const report = (executors, uptime = 100, pauses = PAUSES) => ({ executors, uptime_s: uptime, pauses_s: pauses });

test("executors are replaced one after the other", () => {
  const [a, b] = [executor("a", 1), executor("b", 2)];
  const rollout = new Rollout(report([a, b]), 0);
  assert.equal(rollout.see(report([a, b]), 0), 1);
  rollout.drainAccepted(1);
  assert.equal(rollout.see(report([{ ...a, state: "draining" }, b]), 1), 0);
  assert.equal(rollout.see(report([b]), 2), 0);
  assert.match(rollout.progress, /^1 of 2: a \(epoch 1\) is gone/);
  const c = executor("a", 3);
  assert.equal(rollout.see(report([b, c]), 3), 2);
  rollout.drainAccepted(2);
  rollout.see(report([c]), 4);
  rollout.see(report([c, executor("b", 4)]), 5);
  assert.ok(rollout.isDone);
  assert.equal(rollout.progress, "Done: 2 of 2 executors were replaced.");
  assert.deepEqual(rollout.log.length, 2);
});

test("a drain is asked for again until it is answered", () => {
  const a = executor("a", 1);
  const rollout = new Rollout(report([a]), 0);
  assert.equal(rollout.see(report([a]), 0), 1);
  assert.equal(rollout.see(report([a]), 1), 1);
  rollout.drainAccepted(1);
  assert.equal(rollout.see(report([a]), 2), 0);
});

test("a successor may look the same as the one that left, in the very next report", () => {
  const a = executor("a", 1, { pid: 1 });
  const rollout = new Rollout(report([a]), 0);
  rollout.see(report([a]), 0);
  rollout.drainAccepted(1);
  rollout.see(report([executor("a", 2, { pid: 1 })]), 1);
  assert.ok(rollout.isDone && !rollout.stopped);
});

test("an executor that loses its connection before its turn is found again", () => {
  const [a, b] = [executor("a", 1), executor("b", 2)];
  const rollout = new Rollout(report([a, b]), 0);
  rollout.see(report([a, b]), 0);
  rollout.drainAccepted(1);
  const again = executor("b", 3, { pid: 2 });
  rollout.see(report([again]), 1);
  assert.equal(rollout.numReplaced, 0);
  assert.equal(rollout.see(report([again, executor("a", 4)]), 2), 3);
});

test("nothing is drained while the fleet is not complete", () => {
  const [a, b] = [executor("a", 1), executor("b", 2)];
  const rollout = new Rollout(report([a, b]), 0);
  assert.equal(rollout.see(report([a]), 0), 0);
  assert.equal(rollout.see(report([a]), 121), 0);
  assert.match(rollout.progress, /the fleet was not complete within 120 s \(1 of 2 executors are ready\)/);
});

test("it stops where no successor comes, and where the scheduler does not answer", () => {
  const a = executor("a", 1);
  const rollout = new Rollout(report([a]), 0);
  rollout.see(report([a]), 0);
  rollout.drainAccepted(1);
  rollout.see(report([]), 1);
  rollout.see(report([]), 121);
  assert.match(rollout.stopped, /no successor of a came/);
  const other = new Rollout(report([a]), 0);
  other.see(null, 121);
  assert.match(other.stopped, /the scheduler does not answer/);
});

test("a refusal stops it", () => {
  const rollout = new Rollout(report([executor("a", 1)]), 0);
  rollout.see(report([executor("a", 1)]), 0);
  rollout.drainRefused("not an admin");
  assert.match(rollout.progress, /^Stopped after 0 of 1: the scheduler refused: not an admin\./);
});

test("told to stop, it ends after the turn that has begun", () => {
  const [a, b] = [executor("a", 1), executor("b", 2)];
  const rollout = new Rollout(report([a, b]), 0);
  rollout.see(report([a, b]), 0);
  rollout.drainAccepted(1);
  rollout.stop("it was told to stop");
  assert.ok(!rollout.isDone);
  rollout.see(report([b]), 1);
  assert.equal(rollout.see(report([b, executor("a", 3)]), 2), 0);
  assert.match(rollout.progress, /^Stopped after 1 of 2/);
});

test("a standby that waited before is the first successor, and is replaced at the end", () => {
  const a = executor("a", 1, { has_standby: true });
  const rollout = new Rollout(report([a]), 0);
  rollout.see(report([a]), 0);
  rollout.drainAccepted(1);
  const old = executor("b", 2);
  assert.match(rollout.progress, /^1 of 2:/, "the standby is counted from the start");
  assert.equal(rollout.see(report([old]), 1), 0);
  assert.ok(!rollout.isDone);
  assert.equal(rollout.see(report([{ ...old, has_standby: true }]), 2), 2);
});

test("a new scheduler knows of no drain: it is asked again", () => {
  const a = executor("a", 1);
  const rollout = new Rollout(report([a]), 0);
  rollout.see(report([a]), 0);
  rollout.drainAccepted(1);
  assert.equal(rollout.see(report([executor("a", 9, { pid: 1 })], 1), 1), 9);
});

test("the pause of the streams is said beside the length of the turn, and awaited for some seconds", () => {
  const a = executor("a", 1);
  const rollout = new Rollout(report([a]), 0);
  rollout.see(report([a]), 0);
  rollout.drainAccepted(1);
  rollout.see(report([executor("b", 2)], 100, {}), 9);
  assert.deepEqual(rollout.log, []);
  rollout.see(report([executor("b", 2)]), 11);
  assert.deepEqual(rollout.log, ["a (epoch 1) → b (epoch 2), build 2; its streams paused 0.25 s, the turn took 11.0 s."]);
  const other = new Rollout(report([a]), 0);
  other.see(report([a]), 0);
  other.drainAccepted(1);
  other.see(report([executor("b", 2)], 100, {}), 9);
  other.see(report([executor("b", 2)], 100, {}), 14);
  assert.match(other.log[0], /how long its streams paused is not known, the turn took 14.0 s/);
});
