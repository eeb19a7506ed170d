// The map of an executor's blocks with its legend, and what is told of the block that the pointer or the cursor is on.

import { fill, h } from "../dom.js";
import { BlockCanvas } from "./block-canvas.js";
import { BlockProbe } from "./block-probe.js";
import { STATES } from "./blocks.js";
import { clock, count, countOf, percent, span } from "./format.js";
import { setText } from "./keyed.js";

const LEAVE_MS = 4000; // what was pointed at stays long enough to follow its link
const UNKNOWN_S = 2 ** 27; // years: nothing has been seen of it
const ROWS_OF_PAGE = 10;
const AGES = ["now", "16 s", "4 min", "1 h", "18 h and older"];
const KEYS_HELP = "Arrow keys move over the blocks, Enter keeps one, Escape lets it go.";

/** One pool. */
export class BlockView {
  /** @param {{api: Object, epoch: number, name: string, mayAsk: boolean}} options */
  constructor({ api, epoch, name, mayAsk }) {
    this.name = name;
    this.map = null;
    this.selected = -1;
    this.isKept = false;
    this.probe = mayAsk ? new BlockProbe(api, epoch, (...answer) => this.#answered(...answer)) : null;
    this.#build(epoch);
  }

  #pending = []; // changes that are not drawn yet
  #needsAll = true;
  #isSeen = true;
  #leaveTimer = 0;

  #build(epoch) {
    const help = `keys-${epoch}`;
    this.canvas = h("canvas", {
      width: 1, height: 1, tabindex: 0, role: "application", "aria-roledescription": "map of blocks",
      "aria-describedby": help, "data-testid": "blocks",
      on: {
        pointermove: (event) => this.#pointed(event),
        pointerdown: (event) => this.#pressed(event),
        pointerleave: () => this.#left(),
        keydown: (event) => this.#key(event),
        focus: () => this.selected < 0 && this.map && this.#select(0),
      },
    });
    this.painter = new BlockCanvas(this.canvas);
    this.ring = h("div.ring", { hidden: true });
    this.box = h("div.blocks", {}, this.canvas, this.ring);
    this.legend = STATES.map((state, i) => {
      const number = h("span.number", {}, "–");
      return { number, item: h("li", {}, h(`span.swatch.state-${i}`, {}), `${state} `, number) };
    });
    this.stateLegend = h("ul.legend", { "aria-label": "Blocks by state" }, ...this.legend.map(({ item }) => item));
    this.ageLegend = h("ul.legend", { "aria-label": "Colours by time since a block changed", hidden: true },
      ...AGES.map((age, i) => h("li", {}, h(`span.swatch.age-${i}`, {}), age)));
    this.told = h("p.told", { "aria-live": "polite", "data-testid": "block" }, "No block is chosen.");
    this.node = h("div.pool", {}, this.stateLegend, this.ageLegend, this.box, this.told,
      h("p.unseen", { id: help }, KEYS_HELP));
    // in a frame of its own, as drawing changes the height of what is observed
    this.sizes = new ResizeObserver(() => requestAnimationFrame(() => this.#resized()));
    this.sizes.observe(this.node);
    this.sight = new IntersectionObserver((entries) => this.#sighted(entries[entries.length - 1].isIntersecting));
    this.sight.observe(this.box);
  }

  /** Show another map. */
  setMap(map) {
    this.map = map;
    this.#needsAll = true;
    if (this.selected >= map.numBlocks) this.#select(-1);
    this.canvas.setAttribute("aria-label", `KV pool of ${this.name}: ${countOf(map.numBlocks, "block")}`);
  }

  /** The map has changed in these blocks. */
  changed(changes) {
    this.#pending.push(changes);
    if (this.#pending.length > 8) this.#needsAll = true; // nothing was drawn for long
    if (this.#needsAll) this.#pending = [];
    if (this.painter.marked.length || this.selected >= 0) this.probe?.askAgain();
  }

  /** Colour by state or by age. */
  colourBy(age) {
    this.painter.byAge = age;
    this.stateLegend.hidden = age;
    this.ageLegend.hidden = !age;
    this.#needsAll = true;
  }

  /** The theme has changed. */
  recolour() {
    this.painter.recolour();
    this.#needsAll = true;
  }

  /** Draw what is to be drawn. Colours of ages change by themselves. */
  render(nowS, isTick) {
    if (!this.map?.numBlocks || !this.node.clientWidth) return;
    for (let state = 0; state < STATES.length; state++) {
      const { numBlocks, counts } = this.map;
      setText(this.legend[state].number, `${count(counts[state])} (${percent(counts[state] / numBlocks)})`);
    }
    if (this.painter.fit(this.map, this.node.clientWidth)) this.#needsAll = true;
    if (!this.#isSeen) return; // it has its size, so that nothing moves when it comes into sight
    if (this.#needsAll || (isTick && this.painter.byAge)) this.painter.draw(this.map, nowS);
    else for (const changes of this.#pending) this.painter.drawChanges(this.map, changes, nowS);
    this.#pending = [];
    this.#needsAll = false;
    this.#placeRing();
    if (this.selected >= 0 && this.map.states[this.selected] !== this.#toldState) this.#tell(null, "");
  }

  /** Ask nothing while nobody looks. */
  rest() {
    this.#select(-1);
  }

  /** Leave the page. */
  end() {
    this.rest();
    this.sizes.disconnect();
    this.sight.disconnect();
    this.node.remove();
  }

  #resized() {
    this.render(Date.now() / 1000, false);
  }

  #sighted(isSeen) {
    if (isSeen && !this.#isSeen) this.#needsAll = true;
    this.#isSeen = isSeen;
    if (isSeen) this.#resized();
  }

  #pointed(event) {
    clearTimeout(this.#leaveTimer);
    if (this.isKept || !this.map) return;
    const block = this.painter.blockAt(this.map, event.offsetX, event.offsetY);
    if (block >= 0 && block !== this.selected) this.#select(block);
  }

  #pressed(event) {
    if (!this.map) return;
    const block = this.painter.blockAt(this.map, event.offsetX, event.offsetY);
    if (block < 0) return;
    this.isKept = block !== this.selected || !this.isKept;
    this.#select(block);
  }

  #left() {
    clearTimeout(this.#leaveTimer);
    if (this.isKept || document.activeElement === this.canvas) return;
    this.#leaveTimer = setTimeout(() => {
      if (!this.isKept && !this.told.contains(document.activeElement)) this.#select(-1);
    }, LEAVE_MS);
  }

  #key(event) {
    if (!this.map || !this.painter.layout || event.altKey || event.ctrlKey || event.metaKey) return;
    const { columns } = this.painter.layout;
    const last = this.map.numBlocks - 1;
    const steps = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns,
      PageDown: ROWS_OF_PAGE * columns, PageUp: -ROWS_OF_PAGE * columns, Home: -Infinity, End: Infinity,
    };
    if (event.key === "Escape") {
      this.isKept = false;
      this.#select(-1);
    } else if (event.key === "Enter") {
      this.isKept = !this.isKept;
      this.#placeRing();
    } else if (event.key in steps) {
      this.isKept = false;
      this.#select(Math.min(last, Math.max(0, Math.max(0, this.selected) + steps[event.key])));
    } else {
      return;
    }
    event.preventDefault();
  }

  #select(block) {
    if (block === this.selected && block >= 0) {
      this.#placeRing();
      return;
    }
    this.selected = block;
    if (block < 0) this.isKept = false;
    if (this.map) this.painter.mark(this.map, [], Date.now() / 1000);
    this.#placeRing();
    this.#tell(null, "");
    this.probe?.ask(block);
  }

  #answered(block, holders, problem) {
    if (block !== this.selected || !this.map) return;
    const blocks = [...new Set((holders ?? []).flatMap((holder) => holder.blocks))];
    this.painter.mark(this.map, blocks, Date.now() / 1000);
    this.#tell(holders, problem);
  }

  /** Say what the chosen block is, and who has it. */
  #tell(holders, problem) {
    const block = this.selected;
    if (block < 0) {
      this.#say("", "No block is chosen.");
      return;
    }
    const state = this.map.states[block];
    const nowS = Date.now() / 1000;
    const what = `Block ${count(block)}: ${STATES[state]}, ${unchanged(this.map.ageS(block, nowS), nowS)}.`;
    this.#toldState = state;
    const key = `${block} ${state} ${problem}`;
    if (problem) this.#say(key, `${what} ${problem}`);
    else if (!holders) this.#say(key, what);
    else if (!holders.length) this.#say(`${key}0`, `${what} No sequence has it.`);
    else {
      const names = holders.map((holder) => `${holder.request}/${holder.index}/${holder.blocks.length}`).join(" ");
      this.#say(`${key}${names}`, `${what} `, ...holders.flatMap((holder, i) => [i ? ", " : "", ...nameOf(holder)]), ".");
    }
  }

  #toldState = -1;
  #said = null;

  /** A live region says again what is put into it again, so the same is not put twice. */
  #say(key, ...parts) {
    if (key === this.#said) return;
    this.#said = key;
    fill(this.told, ...parts);
  }

  #placeRing() {
    const shown = this.selected >= 0 && this.painter.layout !== null;
    this.ring.hidden = !shown;
    if (!shown) return;
    const { x, y, size } = this.painter.placeOf(this.selected);
    this.ring.style.transform = `translate(${x + size / 2}px, ${y + size / 2}px)`;
    this.ring.classList.toggle("kept", this.isKept);
    this.ring.style.setProperty("--size", `${Math.max(10, size + 6)}px`);
  }
}

function unchanged(ageS, nowS) {
  if (ageS >= UNKNOWN_S) return "no change is known";
  return ageS < 43200 ? `unchanged since ${clock(nowS - ageS)}` : `unchanged for ${span(ageS)}`;
}

function nameOf(holder) {
  const sequence = holder.index ? ` (sequence ${holder.index})` : "";
  const client = holder.client ? ` of ${holder.client}` : "";
  return [
    h("a", { href: `#request/${encodeURIComponent(holder.request)}` }, holder.request),
    `${sequence}${client} has ${countOf(holder.blocks.length, "block")}`,
  ];
}
