import assert from "node:assert/strict";
import { test } from "node:test";

import { count, countOf, rate, span, waited } from "../../../scheduler_svc/frontend/page/files/fleet/format.js";
import { pathOf, roundUp } from "../../../scheduler_svc/frontend/page/files/fleet/chart.js";
import { detailsOf } from "../../../scheduler_svc/frontend/page/files/fleet/timeline.js";

test("spans have the digits that matter", () => {
  const said = [0, 0.0004, 0.25, 0.9999, 3.21, 59.7, 61, 3600, 90000].map(span);
  assert.deepEqual(said, ["0 s", "0.4 ms", "250 ms", "1.0 s", "3.2 s", "1 min", "1 min 1 s", "1 h", "1 d 1 h"]);
});

test("a wait is told in whole seconds", () => {
  assert.deepEqual([-1, 0.3, 3.9, 75].map(waited), ["< 1 s", "< 1 s", "3 s", "1 min 15 s"]);
});

test("counts and rates", () => {
  assert.deepEqual([count(1234567), countOf(1, "block"), countOf(0, "block"), rate(0), rate(3.14), rate(1234.5)],
    ["1,234,567", "1 block", "0 blocks", "0", "3.1", "1,235"]);
});

test("a chart's upper end is a round number", () => {
  assert.deepEqual([1, 1.2, 3, 7, 10, 999].map(roundUp), [1, 2, 5, 10, 10, 1000]);
});

test("an event's details are the rest of a sentence", () => {
  const event = { kind: "lost", cause: "silent", reason: "no answer", sequences: 2 };
  assert.equal(detailsOf(event), " (no answer; 2 sequences moved)");
  assert.equal(detailsOf({ ...event, reason: "" }), " (it said nothing for too long; 2 sequences moved)");
  assert.equal(detailsOf({ kind: "left", cause: "drained", reason: "drained" }), " (it was drained)");
  assert.equal(detailsOf({ kind: "joined" }), "");
});

test("a line holds its value through seconds that are left out, and has a gap where nothing was measured", () => {
  assert.equal(pathOf([[0, 0], [1, 10], [100, 5], [101, -1], [200, 10]], 300, 10),
    "M0.0 100.0L2.0 0.0H198.0L200.0 50.0M400.0 0.0H600.0");
  assert.equal(pathOf([], 300, 10), "");
});
