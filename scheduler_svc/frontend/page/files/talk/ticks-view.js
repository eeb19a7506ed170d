// The time axis of an answer: a tick for each arrival, and a box for each gap.

import { fill, h } from "../dom.js";
import { isSwap, labelsOf } from "./life.js";
import { duration, figuresOf, gapPath, roundEnd, summaryOf, tickPath } from "./timing.js";

const SIZE = { width: 1000, height: 16 }; // the drawing is stretched to the answer's width
const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

export class TicksView {
  #gaps = svg("path", { class: "gap" });
  #swaps = svg("path", { class: "gap swap" });
  #ticks = svg("path", { class: "tick" });
  #drawing = svg("svg", {
    class: "ticks", role: "img", viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, preserveAspectRatio: "none",
  });
  #labels = h("span.gap-labels", { "data-testid": "gaps" });
  #shownLabels = "";
  #end = h("span");

  constructor() {
    this.#drawing.append(this.#gaps, this.#swaps, this.#ticks);
    this.element = h("div.track", {},
      this.#drawing,
      h("div.scale", { "aria-hidden": "true" }, h("span", {}, "0"), this.#labels, this.#end));
  }

  /** @param {number} atMs how far the axis goes at least while the answer comes. */
  update(answer, atMs) {
    const figures = answer.figures ?? figuresOf(answer.arrivals);
    const isRunning = answer.state === "running";
    const endMs = isRunning ? roundEnd(Math.max(atMs, figures.endMs)) : figures.endMs;
    this.#ticks.setAttribute("d", tickPath(answer.arrivals, endMs, SIZE));
    const [swaps, others] = [answer.gaps.filter(isSwap), answer.gaps.filter((gap) => !isSwap(gap))];
    this.#gaps.setAttribute("d", gapPath(others, endMs, SIZE));
    this.#swaps.setAttribute("d", gapPath(swaps, endMs, SIZE));
    const labels = labelsOf(answer.gaps);
    const texts = labels.map(({ label }) => label);
    this.#drawing.setAttribute("aria-label", summaryOf(figures, texts));
    this.#end.textContent = endMs ? duration(endMs) : "";
    if (texts.join() === this.#shownLabels) return;
    this.#shownLabels = texts.join();
    fill(this.#labels, labels.map(({ kind, label }) => h("span.gap-label", { "data-kind": kind }, label)));
  }
}
