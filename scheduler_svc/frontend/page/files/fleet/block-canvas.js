// Draws a map of blocks on a canvas: everything when its size or colours change, and otherwise what has changed.

import { Cells, ageColours, blockAt, channels, layOut, packed } from "./cells.js";

const MAX_HEIGHT_PX = 320; // of the page, where cells of one device pixel fit
const SEPARATE_CELLS = 32; // so many are put one by one: what lies between them is not

/** The canvas of one pool. Its lengths are device pixels; `ratio` of them are one of the page. */
export class BlockCanvas {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.ratio = 1;
    this.layout = null;
    this.byAge = false;
    this.marked = [];
    this.#context = canvas.getContext("2d");
  }

  #context;
  #image = null;
  #cells = null;

  /** Fit to a width of the page's pixels. Returns whether anything is different, and all has to be drawn. */
  fit(map, widthPx) {
    const ratio = globalThis.devicePixelRatio || 1;
    const layout = layOut(map.numBlocks, Math.max(1, Math.floor(widthPx * ratio)), MAX_HEIGHT_PX * ratio);
    const same = this.layout && ratio === this.ratio && this.#cells.flags?.length === map.numBlocks;
    if (same && layout.cell === this.layout.cell && layout.columns === this.layout.columns) return false;
    this.ratio = ratio;
    this.layout = layout;
    this.canvas.width = layout.width;
    this.canvas.height = layout.height;
    this.canvas.style.width = `${layout.width / ratio}px`;
    this.canvas.style.height = `${layout.height / ratio}px`;
    this.#image = this.#context.createImageData(layout.width, layout.height);
    this.#cells = new Cells(layout, new Uint32Array(this.#image.data.buffer), coloursOf(this.canvas));
    this.#cells.mark(this.marked, map.numBlocks);
    return true;
  }

  /** Take the theme's colours anew. */
  recolour() {
    if (this.#cells) this.#cells.colours = coloursOf(this.canvas);
  }

  /** Draw all of it. */
  draw(map, nowS) {
    this.#cells.byAge = this.byAge;
    this.#cells.drawAll(map, nowS);
    this.#context.putImageData(this.#image, 0, 0);
  }

  /** Draw what has changed: numbers as a `blocks` event has them. */
  drawChanges(map, changes, nowS) {
    this.#drawSome(map, changes, 3, nowS);
  }

  /** Let these blocks stand out and no others. */
  mark(map, blocks, nowS) {
    this.marked = blocks;
    if (this.#cells) this.#drawSome(map, this.#cells.mark(blocks, map.numBlocks), 0, nowS);
  }

  /** The block at a place of the canvas in the page's pixels, or -1. */
  blockAt(map, x, y) {
    return this.layout ? blockAt(this.layout, map.numBlocks, x * this.ratio, y * this.ratio) : -1;
  }

  /** Where a block is, in the page's pixels. */
  placeOf(block) {
    const { cell, gap, columns } = this.layout;
    const size = (cell - gap) / this.ratio;
    return {
      x: ((block % columns) * cell) / this.ratio,
      y: (Math.floor(block / columns) * cell) / this.ratio,
      size,
    };
  }

  #drawSome(map, blocks, shift, nowS) {
    if (blocks.length > SEPARATE_CELLS) this.#put(this.#cells.drawSome(map, blocks, shift, nowS));
    else for (const block of blocks) this.#put(this.#cells.drawSome(map, [block], shift, nowS));
  }

  #put(part) {
    if (part) this.#context.putImageData(this.#image, 0, 0, part.x, part.y, part.width, part.height);
  }
}

function coloursOf(element) {
  const style = getComputedStyle(element);
  const colour = (name) => channels(style.getPropertyValue(name).trim());
  const states = ["--block-free", "--block-cached", "--block-in-use", "--block-shared"].map(colour);
  return {
    states: Uint32Array.from(states, packed),
    ages: ageColours(colour("--accent"), states[0]),
    marked: packed(colour("--text")),
  };
}
