// A chart of the last five minutes as SVG, and the same in words for those who do not see it.

import { fill, h } from "../dom.js";
import { clock } from "./format.js";
import { setText } from "./keyed.js";
import { eventKind } from "./words.js";

export const SPAN_S = 300;
const WIDTH = 600; // of the picture's own coordinates; it is stretched to its place
const HEIGHT = 100;

/** One chart with a line for each series. */
export class Chart {
  /**
   * @param {string} title
   * @param {{name: string, index: number}[]} series `index` is the place in a sample of `history`.
   * @param {function(number): string} format of a value.
   * @param {{least?: number, most?: number}} range `least` is the least upper end, `most` a fixed one.
   */
  constructor(title, series, format, { least = 1, most = 0 } = {}) {
    Object.assign(this, { title, series, format, least, most });
    this.lines = series.map((_, i) => svg("path", { class: `line line-${i}` }));
    this.marks = svg("g", { class: "marks" });
    this.values = series.map(() => h("span.number", {}, "–"));
    this.top = h("span.number.quiet", { "aria-hidden": "true" }, "");
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${title}, last five minutes. Nothing yet.` },
      svg("line", { class: "base", x1: 0, y1: HEIGHT, x2: WIDTH, y2: HEIGHT }), this.marks, ...this.lines);
    const legend = series.map(({ name }, i) => h("span.key", {}, h(`span.stroke.stroke-${i}`, {}), `${name} `, this.values[i]));
    this.node = h("figure.chart", {},
      h("figcaption", {}, h("strong", {}, title), ...legend),
      h("div.plot", {}, this.top, this.picture),
      h("div.axis.quiet", { "aria-hidden": "true" }, h("span", {}, "5 min ago"), h("span", {}, "now")));
  }

  /** Show these seconds and events, up to the time `end`. */
  show(history, events, end) {
    const all = this.series.map(({ index }) => history.map((sample) => [sample[0], sample[index]]));
    const known = all.flat().map(([, value]) => value).filter((value) => value >= 0);
    const most = this.most || roundUp(Math.max(this.least, ...known));
    setText(this.top, this.format(most));
    all.forEach((points, i) => {
      this.lines[i].setAttribute("d", pathOf(points, end, most));
      const last = points.length ? points[points.length - 1][1] : -1;
      setText(this.values[i], last < 0 ? "–" : this.format(last));
    });
    fill(this.marks, ...events.filter((event) => end - event.at < SPAN_S).map((event) => markOf(event, end)));
    this.picture.setAttribute("aria-label", `${this.title}, last five minutes. ${this.#inWords(all)}`);
  }

  #inWords(all) {
    return this.series.map(({ name }, i) => {
      const values = all[i].map(([, value]) => value).filter((value) => value >= 0);
      if (!values.length) return `${name}: nothing yet.`;
      const [now, low, high] = [values[values.length - 1], Math.min(...values), Math.max(...values)].map(this.format);
      return `${name}: ${now} now, between ${low} and ${high}.`;
    }).join(" ");
  }
}

/** A second that is like the one before it is left out, so a value holds until the second before the next. */
export function pathOf(points, end, most) {
  let path = "";
  let before = -Infinity; // nothing was measured: no line
  for (const [at, value] of points) {
    if (before > -Infinity && at - before > 1.5) path += `H${placeOf(at - 1, end)}`;
    if (value >= 0) {
      const y = HEIGHT * (1 - Math.min(1, value / most));
      path += `${before === -Infinity ? "M" : "L"}${placeOf(at, end)} ${y.toFixed(1)}`;
    }
    before = value < 0 ? -Infinity : at;
  }
  return before > -Infinity ? `${path}H${placeOf(Math.max(before, end), end)}` : path;
}

function placeOf(at, end) {
  return (WIDTH * (1 - (end - at) / SPAN_S)).toFixed(1);
}

function markOf(event, end) {
  const { tone, word } = eventKind(event.kind);
  const x = placeOf(Math.min(event.at, end), end);
  const title = svg("title", {}, `${clock(event.at)} ${event.executor ?? ""} ${word}`);
  return svg("line", { class: `mark ${tone}`, x1: x, x2: x, y1: 0, y2: HEIGHT }, title);
}

/** The next of 1, 2, 5, 10, ... that is no less. */
export function roundUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * unit).find((round) => round >= value * 0.999999);
}

function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
