// The map of blocks as cells in a picture: where each is, and its pixels; pure. All lengths are device pixels.

import { NUM_AGES, ageBucket } from "./blocks.js";

const MAX_CELL = 24;
const MIN_CELL_WITH_GAP = 4;

/**
 * Cells as large as fit into a width and a height. Every block has a pixel of its own: a pool with more blocks than
 * there are pixels is higher.
 *
 * @returns {{cell: number, gap: number, columns: number, rows: number, width: number, height: number}} `cell` is from
 *   one cell to the next, the gap included.
 */
export function layOut(numBlocks, width, maxHeight) {
  let cell = MAX_CELL;
  while (cell > 1 && Math.ceil(numBlocks / Math.max(1, Math.floor(width / cell))) * cell > maxHeight) cell--;
  const columns = Math.max(1, Math.min(numBlocks, Math.floor(width / cell)));
  const rows = Math.ceil(numBlocks / columns);
  const gap = cell < MIN_CELL_WITH_GAP ? 0 : Math.max(1, Math.floor(cell / 8));
  return { cell, gap, columns, rows, width: columns * cell, height: rows * cell };
}

/** The block at a place, or -1. */
export function blockAt(layout, numBlocks, x, y) {
  const column = Math.floor(x / layout.cell);
  const row = Math.floor(y / layout.cell);
  if (column < 0 || column >= layout.columns || row < 0) return -1;
  const block = row * layout.columns + column;
  return block < numBlocks ? block : -1;
}

/** The pixels of a map of blocks. */
export class Cells {
  /**
   * @param {Uint32Array} pixels of the whole picture, a row after the other; all of them 0.
   * @param {{states: Uint32Array, ages: Uint32Array, marked: number}} colours
   */
  constructor(layout, pixels, colours) {
    this.layout = layout;
    this.pixels = pixels;
    this.colours = colours;
    this.byAge = false;
    /** Blocks that stand out, and their flags for the loops. */
    this.marked = [];
    this.flags = null;
  }

  /** Let these blocks stand out and no others. Returns those that have to be drawn for it. */
  mark(blocks, numBlocks) {
    const before = this.marked;
    this.marked = blocks.filter((block) => block < numBlocks);
    this.flags ??= new Uint8Array(numBlocks);
    for (const block of before) this.flags[block] = 0;
    for (const block of this.marked) this.flags[block] = 1;
    return [...before, ...this.marked];
  }

  /** Draw all cells. */
  drawAll(map, nowS) {
    const { cell, gap, columns, rows, width } = this.layout;
    const { pixels } = this;
    const size = cell - gap;
    const now = map.ageOrigin(nowS);
    for (let row = 0, block = 0; row < rows; row++) {
      const begin = row * cell * width;
      const end = Math.min(block + columns, map.numBlocks);
      for (let at = begin; block < end; block++, at += cell) {
        const colour = this.#colour(map, block, now);
        for (let x = 0; x < size; x++) pixels[at + x] = colour;
      }
      // the other lines of these cells are the same as the first
      for (let line = 1; line < size; line++) pixels.copyWithin(begin + line * width, begin, begin + width);
    }
  }

  /**
   * Draw these cells.
   *
   * @param {ArrayLike<number>} blocks numbers shifted by `shift` bits.
   * @returns {{x: number, y: number, width: number, height: number}|null} the part of the picture that has them.
   */
  drawSome(map, blocks, shift, nowS) {
    const { cell, gap, columns, width } = this.layout;
    const { pixels } = this;
    const size = cell - gap;
    const now = map.ageOrigin(nowS);
    let left = Infinity, right = -1, top = Infinity, bottom = -1;
    for (let i = 0; i < blocks.length; i++) {
      const block = blocks[i] >>> shift;
      if (block >= map.numBlocks) continue;
      const row = Math.floor(block / columns);
      const column = block - row * columns;
      if (column < left) left = column;
      if (column > right) right = column;
      if (row < top) top = row;
      if (row > bottom) bottom = row;
      const colour = this.#colour(map, block, now);
      let at = row * cell * width + column * cell;
      for (let y = 0; y < size; y++, at += width) {
        for (let x = 0; x < size; x++) pixels[at + x] = colour;
      }
    }
    if (right < 0) return null;
    return { x: left * cell, y: top * cell, width: (right - left + 1) * cell, height: (bottom - top + 1) * cell };
  }

  #colour(map, block, now) {
    if (this.flags !== null && this.flags[block]) return this.colours.marked;
    return this.byAge ? this.colours.ages[ageBucket(now - map.changedS[block])] : this.colours.states[map.states[block]];
  }
}

/**
 * Colours for ages, from the newest to the oldest: the difference is largest among the young ones, and what has not
 * changed for a day is as good as what never did.
 *
 * @param {number[]} young red, green and blue.
 * @param {number[]} old
 */
export function ageColours(young, old) {
  const oldest = 17; // a doubling of seconds each: 18 hours
  return Uint32Array.from({ length: NUM_AGES }, (_, age) => {
    const part = Math.min(1, age / oldest);
    return packed(young.map((channel, i) => Math.round(channel + (old[i] - channel) * part)));
  });
}

/** A colour as a pixel of ImageData in a machine with its low byte first, as all that browsers run on. */
export function packed([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** Red, green and blue of a colour like #2f6fb0. */
export function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) || 0);
}
