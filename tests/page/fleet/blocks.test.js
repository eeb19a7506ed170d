import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";

import { BlockMap, ageBucket, decodeChanges, decodeSnapshot, emptyMap } from "../../../scheduler_svc/frontend/page/files/fleet/blocks.js";

const NOW_S = 1795700000.4;

function counted(map) {
  const counts = [0, 0, 0, 0];
  for (const state of map.states) counts[state]++;
  return counts;
}

test("a snapshot is base64 of zlib of a byte for each block", async () => {
  const bytes = Uint8Array.from([0, 1, 2 + 8 * 3, 3 + 8 * 31]);
  assert.deepEqual(await decodeSnapshot(deflateSync(bytes).toString("base64")), bytes);
});

test("changes are base64 of little-endian int32", () => {
  const bytes = Buffer.alloc(8);
  bytes.writeInt32LE(8 * 1_000_000 + 3, 0);
  bytes.writeInt32LE(2, 4);
  assert.deepEqual(decodeChanges(bytes.toString("base64")), Int32Array.from([8_000_003, 2]));
});

test("a map has the states and ages of its snapshot", () => {
  const map = new BlockMap(Uint8Array.from([0, 1, 2 + 8 * 1, 3 + 8 * 5]), NOW_S);
  assert.deepEqual([...map.states], [0, 1, 2, 3]);
  assert.deepEqual([0, 1, 2, 3].map((block) => map.ageS(block, NOW_S)), [0, 0, 1, 16]);
  assert.deepEqual(map.counts, [1, 1, 1, 1]);
});

test("every age of a snapshot is in its own bucket again", () => {
  const map = new BlockMap(Uint8Array.from({ length: 32 }, (_, age) => 8 * age), NOW_S);
  for (let age = 0; age < 32; age++) assert.equal(ageBucket(map.ageS(age, NOW_S)), age);
});

test("counts follow changes, also where a block changes twice or is told again", () => {
  const map = new BlockMap(new Uint8Array(1000), NOW_S);
  let seed = 1;
  for (let round = 0; round < 20; round++) {
    const changes = Int32Array.from({ length: 100 }, () => {
      seed = (seed * 48271) % 2147483647;
      return 8 * (seed % 1000) + (seed % 4);
    });
    map.apply(changes, true, NOW_S + round);
    assert.deepEqual(map.counts, counted(map));
  }
});

test("a change makes a block young, and blocks that the pool does not have are left out", () => {
  const map = new BlockMap(new Uint8Array(10).fill(8 * 20), NOW_S);
  map.apply(Int32Array.from([8 * 3 + 2, 8 * 10 + 2, -8]), true, NOW_S + 100);
  assert.equal(map.ageS(3, NOW_S + 104), 4);
  assert.deepEqual(map.counts, [9, 0, 1, 0]);
});

test("what is only found keeps its age", () => {
  const map = new BlockMap(new Uint8Array(2).fill(8 * 4), NOW_S);
  map.apply(Int32Array.from([8 * 1 + 1]), false, NOW_S);
  assert.deepEqual([map.states[1], map.ageS(1, NOW_S)], [1, 8]);
});

test("a pool of which nothing is told is free", () => {
  const map = emptyMap(3, NOW_S);
  assert.deepEqual([map.counts, ageBucket(map.ageS(0, NOW_S))], [[3, 0, 0, 0], 31]);
});
