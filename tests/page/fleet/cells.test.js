import assert from "node:assert/strict";
import { test } from "node:test";

import { BlockMap } from "../../../scheduler_svc/frontend/page/files/fleet/blocks.js";
import { Cells, ageColours, blockAt, channels, layOut, packed } from "../../../scheduler_svc/frontend/page/files/fleet/cells.js";

const NOW_S = 1795700000;
const COLOURS = { states: Uint32Array.from([10, 11, 12, 13]), ages: Uint32Array.from({ length: 32 }, (_, i) => 100 + i), marked: 99 };

function cellsOf(numBlocks, width, height) {
  const layout = layOut(numBlocks, width, height);
  return new Cells(layout, new Uint32Array(layout.width * layout.height), COLOURS);
}

test("cells are as large as fit, with a gap where there is room for one", () => {
  const layout = layOut(20_000, 1216, 320);
  assert.deepEqual([layout.cell, layout.gap, layout.columns, layout.rows], [4, 1, 304, 66]);
  assert.equal(layOut(20_000, 580, 320).gap, 0);
  assert.equal(layOut(8, 1216, 320).rows, 1);
});

test("a million blocks have a pixel each, however high that is", () => {
  const layout = layOut(1_000_000, 1216, 320);
  assert.deepEqual([layout.cell, layout.width, layout.height], [1, 1216, 823]);
});

test("a layout holds all blocks, and a place is found again", () => {
  for (const [numBlocks, width] of [[1, 300], [7, 3], [500, 333], [20_000, 580], [100_000, 350]]) {
    const layout = layOut(numBlocks, width, 320);
    assert.ok(layout.columns * layout.rows >= numBlocks && layout.width <= Math.max(width, layout.cell));
    for (const block of [0, numBlocks >> 1, numBlocks - 1]) {
      const x = (block % layout.columns) * layout.cell;
      const y = Math.floor(block / layout.columns) * layout.cell;
      assert.equal(blockAt(layout, numBlocks, x, y), block);
    }
    assert.equal(blockAt(layout, numBlocks, 0, layout.height), -1);
    assert.equal(blockAt(layout, numBlocks, -1, 0), -1);
  }
});

test("what has changed is drawn as if all had been drawn", () => {
  for (const [width, height] of [[40, 40], [300, 60], [30, 10]]) {
    const map = new BlockMap(Uint8Array.from({ length: 100 }, (_, i) => i % 4), NOW_S);
    const some = cellsOf(100, width, height);
    some.drawAll(map, NOW_S);
    const changes = Int32Array.from([8 * 0 + 3, 8 * 57 + 1, 8 * 99 + 0, 8 * 57 + 2, 8 * 500]);
    map.apply(changes, true, NOW_S);
    const part = some.drawSome(map, changes, 3, NOW_S);
    const all = cellsOf(100, width, height);
    all.drawAll(map, NOW_S);
    assert.deepEqual(some.pixels, all.pixels);
    assert.ok(part.x + part.width <= some.layout.width && part.y + part.height <= some.layout.height);
  }
});

test("marked blocks stand out until others are marked", () => {
  const map = new BlockMap(new Uint8Array(16), NOW_S);
  const cells = cellsOf(16, 16, 1);
  assert.deepEqual(cells.mark([3, 5, 16], 16), [3, 5]);
  cells.drawAll(map, NOW_S);
  assert.deepEqual([2, 3, 5].map((block) => cells.pixels[block]), [10, 99, 99]);
  cells.drawSome(map, cells.mark([5, 6], 16), 0, NOW_S);
  assert.deepEqual([3, 5, 6].map((block) => cells.pixels[block]), [10, 99, 99]);
});

test("colours by age change with time", () => {
  const map = new BlockMap(new Uint8Array(4), NOW_S);
  const cells = cellsOf(4, 4, 1);
  cells.byAge = true;
  cells.drawAll(map, NOW_S + 5);
  assert.equal(cells.pixels[0], 103);
});

test("colours are pixels with red in the low byte", () => {
  assert.deepEqual(channels("#2f6fb0"), [0x2f, 0x6f, 0xb0]);
  assert.equal(packed([0x2f, 0x6f, 0xb0]), 0xffb06f2f);
  const ages = ageColours([255, 0, 0], [0, 0, 255]);
  assert.deepEqual([ages[0], ages[31]], [packed([255, 0, 0]), packed([0, 0, 255])]);
});
