// A sequence's life as a strip on a time axis, and the same as a table with exact times.

import { h } from "../dom.js";
import { roundUp } from "../fleet/chart.js";
import { count, span } from "../fleet/format.js";
import { KeyedList, setText } from "../fleet/keyed.js";
import { KEPT_FIRST, causeOfMark, markOf, phraseOf, sentenceOf } from "./life.js";

const COLUMNS = [["number", "After"], ["", "What"], ["", "Executor"], ["number", "Tokens"], ["number", "Cached"], ["", "Cause"]];

/** One sequence. */
export class Strip {
  constructor(index) {
    this.title = h("h2", {});
    this.sentence = h("p.sentence", { "data-testid": "sentence" });
    const bar = h("div.strip", { role: "img", "data-testid": "strip" });
    this.bar = bar;
    this.segments = new KeyedList(bar, ({ kind, begin }) => `${kind}@${begin}`,
      ({ kind }) => ({ node: h(`span.segment.${kind}`, {}) }), (entry, segment) => this.#place(entry.node, segment));
    const body = h("tbody", {});
    this.rows = new KeyedList(body, ({ key }) => key, () => this.#makeRow(), (row, item) => this.#fillRow(row, item));
    this.leftOut = h("p.quiet", { hidden: true });
    this.node = h("section", { "aria-label": `Sequence ${index}`, "data-testid": "sequence" },
      this.title, this.sentence, bar,
      h("div.scroll", { tabindex: 0, role: "group", "aria-label": `Marks of sequence ${index}` },
        h("table", {}, h("thead", {}, h("tr", {}, ...COLUMNS.map(([kind, label]) => h("th", { class: kind || null, scope: "col" }, label)))), body)),
      this.leftOut);
  }

  /** Show it on an axis from `begin` to `end`. */
  show(sequence, life, axis, isOnly) {
    this.axis = axis;
    const state = life.end === null ? `now ${life.doing === "decode" ? "decoding" : life.doing}` : "ended";
    setText(this.title, isOnly ? `Where its time went (${state})` : `Sequence ${sequence.index} (${state})`);
    const sentence = sentenceOf(life);
    setText(this.sentence, sentence);
    this.bar.setAttribute("aria-label", sentence);
    this.segments.show(life.segments);
    const leftOut = sequence.num_left_out ?? 0;
    const begin = sequence.marks[0]?.at ?? 0;
    this.rows.show(sequence.marks.map((mark, i) => ({ key: String(i < KEPT_FIRST ? i : i + leftOut), mark, begin })));
    this.leftOut.hidden = !leftOut;
    setText(this.leftOut, `${count(leftOut)} marks in the middle are not kept.`);
  }

  #place(node, segment) {
    const { begin, end } = this.axis;
    const length = Math.max(1e-9, end - begin);
    node.style.left = `${(100 * (segment.begin - begin)) / length}%`;
    node.style.width = `${(100 * (segment.end - segment.begin)) / length}%`;
    const phrase = phraseOf(segment);
    if (node.title !== phrase) node.title = phrase;
  }

  #makeRow() {
    const cells = COLUMNS.map(([kind]) => h("td", { class: kind || null }));
    return { node: h("tr", {}, ...cells), cells };
  }

  #fillRow({ node, cells }, { mark, begin }) {
    node.dataset.what = mark.what;
    const texts = [
      `${(mark.at - begin).toFixed(3)} s`, markOf(mark), mark.executor ? `${mark.executor}, epoch ${mark.epoch}` : "",
      mark.tokens ? count(mark.tokens) : "", mark.cached ? count(mark.cached) : "", causeOfMark(mark),
    ];
    texts.forEach((text, i) => setText(cells[i], text));
  }
}

/** The axis that all strips share. */
export class Axis {
  constructor() {
    this.node = h("div.axis.quiet", { "aria-hidden": "true" });
    this.ticks = new KeyedList(this.node, String, () => ({ node: h("span", {}) }), ({ node }, at) => {
      node.style.left = `${(100 * at) / this.length}%`;
      setText(node, at ? span(at) : "0 s");
    });
  }

  show({ begin, end }) {
    this.length = Math.max(1e-3, end - begin);
    const step = roundUp(this.length / 5);
    this.ticks.show(Array.from({ length: Math.floor(this.length / step + 1e-9) + 1 }, (_, i) => i * step));
  }
}
