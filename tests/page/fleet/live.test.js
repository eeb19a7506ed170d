import assert from "node:assert/strict";
import { test } from "node:test";

import {
  NOTHING, connected, disconnected, goneEpochs, reduce, serviceNow, sinceReport,
} from "../../../scheduler_svc/frontend/page/files/fleet/live.js";

const second = (at, output = 1) => [at, output, 0, -1, 0, 0];

function after(...events) {
  return events.reduce((state, [name, data]) => reduce(state, name, data, 1000), NOTHING);
}

test("a status makes it live, and gone keeps what is shown", () => {
  const state = after(["status", { executors: [] }], ["gone", {}]);
  assert.equal(state.connection, "gone");
  assert.deepEqual(state.report, { executors: [] });
  assert.equal(reduce(state, "status", { executors: [] }, 1001).connection, "live");
});

test("a lost connection keeps what is shown, and says why", () => {
  const state = disconnected(after(["waiting", [{ request: "a" }]]), "The service cannot be reached.");
  assert.equal(state.waiting.length, 1);
  assert.deepEqual([state.connection, state.problem], ["lost", "The service cannot be reached."]);
});

test("an event that is not known changes nothing", () => {
  assert.equal(reduce(NOTHING, "later", {}, 1), NOTHING);
});

test("events are joined, and those told again are not doubled, though their times differ a little", () => {
  const state = after(
    ["events", [{ number: 0, at: 10 }, { number: 1, at: 11 }]],
    ["events", [{ number: 0, at: 10.0002 }, { number: 1, at: 11.0002 }, { number: 2, at: 12 }]],
  );
  assert.deepEqual(state.events.map(({ number, at }) => [number, at]), [[0, 10], [1, 11], [2, 12]]);
});

test("events of another life of the scheduler are others", () => {
  const state = after(["events", [{ number: 0, at: 10 }]], ["events", [{ number: 0, at: 50 }]]);
  assert.equal(state.events.length, 2);
});

test("the last 256 events are kept, and 300 seconds with the one before them", () => {
  const events = Array.from({ length: 300 }, (_, number) => ({ number, at: number }));
  assert.equal(after(["events", events]).events[0].number, 44);
  const history = Array.from({ length: 400 }, (_, at) => second(at));
  assert.equal(after(["history", history]).history.length, 301);
});

test("seconds that are told again are not doubled, and a connection's first ones replace all", () => {
  const state = after(["history", [second(1), second(2)]], ["history", [second(1.0002), second(2.0002), second(3)]]);
  assert.deepEqual(state.history.map(([at]) => at), [1, 2, 3]);
  const anew = reduce(connected(state, NaN, 5), "history", [second(2)], 5);
  assert.deepEqual(anew.history.map(([at]) => at), [2]);
});

test("this machine's clock may be ahead", () => {
  const state = connected(NOTHING, 1000, 1060.5);
  assert.equal(serviceNow(state, 1070), 1010);
  assert.equal(serviceNow(connected(state, NaN, 1), 1070), 1010);
});

test("a report becomes older only while the connection lives", () => {
  const state = after(["status", { executors: [] }]);
  assert.equal(sinceReport(state, 1003), 3);
  assert.equal(sinceReport(disconnected(state, ""), 1003), 0);
});

test("epochs are gone that a report does not have any more", () => {
  assert.deepEqual(goneEpochs({ executors: [{ epoch: 1 }, { epoch: 2 }] }, { executors: [{ epoch: 2 }, { epoch: 3 }] }), [1]);
  assert.deepEqual(goneEpochs(null, { executors: [{ epoch: 2 }] }), []);
});
