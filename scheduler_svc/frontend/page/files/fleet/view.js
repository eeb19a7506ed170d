// The fleet: figures, executors with their memory, the queue and what happened.

import { fill, h } from "../dom.js";
import { Admin } from "./admin.js";
import { BlockMap, decodeChanges, decodeSnapshot, emptyMap } from "./blocks.js";
import { Card } from "./cards.js";
import { Figures } from "./figures.js";
import { KeyedList, setText } from "./keyed.js";
import { NOTHING, connected, disconnected, goneEpochs, reduce, serviceNow, sinceReport } from "./live.js";
import { LiveStream } from "./stream.js";
import { RunningTable, WaitingTable } from "./tables.js";
import { Timeline } from "./timeline.js";

const HIDDEN_MS = 5000; // a look at another tab costs no new connection
const TICK_MS = 1000;
const CONNECTIONS = {
  connecting: "Connecting …",
  live: "",
  gone: "The scheduler cannot be reached at the moment.",
};
const LAST_KNOWN = "What is shown is the last that it said.";

/** The view, and the connection that it has while it is looked at or a rollout runs. */
export class FleetView {
  #isShown = false;
  #hideTimer = 0;
  #tickTimer = 0;
  #frameAsked = 0;
  #isTick = false;

  constructor(root, frame) {
    Object.assign(this, { root, frame, about: null, state: NOTHING, drawn: NOTHING, maps: new Map() });
    this.stream = new LiveStream(frame.api, {
      begun: (dateS) => this.#become(connected(this.state, dateS, Date.now() / 1000)),
      lost: (problem) => this.#become(disconnected(this.state, problem)),
      event: (name, data) => this.#heard(name, data),
    });
    document.addEventListener("visibilitychange", () => this.#settle());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const card of this.cards?.entries.values() ?? []) card.blocks.recolour();
      this.#ask();
    });
  }

  show() {
    this.#isShown = true;
    if (this.about !== this.frame.about) this.#build();
    this.#settle();
  }

  hide() {
    this.#isShown = false;
    for (const card of this.cards.entries.values()) card.blocks.rest();
    this.#settle();
  }

  /** What a key may see and do decides what there is. */
  #build() {
    this.about = this.frame.about;
    const { is_admin: isAdmin, may_read_status: mayAsk } = this.about;
    this.stream.stop();
    for (const card of this.cards?.entries.values() ?? []) card.blocks.end();
    Object.assign(this, { state: NOTHING, drawn: NOTHING, maps: new Map() });
    this.admin = isAdmin ? new Admin(this.frame.api, () => this.#settle()) : null;
    this.connection = h("p.connection", { role: "status", "data-testid": "connection" });
    this.figures = new Figures();
    this.waiting = new WaitingTable();
    this.running = new RunningTable();
    this.timeline = new Timeline();
    const list = h("ul.cards", {});
    const options = { api: this.frame.api, mayAsk, onDrain: this.admin && ((epoch) => this.admin.askDrain(epoch)) };
    this.cards = new KeyedList(list, ({ epoch }) => String(epoch), (executor) => this.#makeCard(executor, options),
      (card, executor) => card.update(executor, this.ageS), (card) => card.blocks.end());
    this.noExecutor = h("p.quiet", {}, "No executor is there.");
    const colour = (value, label) => h("label", {}, h("input", {
      type: "radio", name: "colour", value, checked: value === "state", on: { change: () => this.#colourBy(value) },
    }), ` ${label}`);
    this.known = h("div.fleet", { hidden: true }, // until there is a report
      this.figures.node,
      h("div.head", {}, h("h2", {}, "Executors"),
        h("fieldset.switch", {}, h("legend", {}, "Colour blocks by"), colour("state", "state"), colour("age", "age")),
        this.admin?.button),
      this.admin?.note, this.admin?.panel, this.noExecutor, list,
      mayAsk ? null : h("p.quiet", {}, "Below are your own requests only, and blocks do not tell who has them: " +
        "this key may not read the status."),
      this.waiting.node, this.running.node, this.timeline.node);
    fill(this.root, h("div.fleet", {}, h("h1.unseen", {}, "Fleet"), this.connection, this.known, this.admin?.dialog));
    this.#ask();
  }

  #makeCard(executor, options) {
    const card = new Card(executor, options);
    card.blocks.colourBy(this.byAge);
    const map = this.maps.get(executor.epoch);
    if (map) card.blocks.setMap(map);
    return card;
  }

  #colourBy(value) {
    this.byAge = value === "age";
    for (const card of this.cards.entries.values()) card.blocks.colourBy(this.byAge);
    this.#ask();
  }

  byAge = false;
  ageS = 0;

  /** Have a connection exactly while it is wanted. */
  #settle() {
    clearTimeout(this.#hideTimer);
    const isSeen = this.#isShown && !document.hidden;
    if (isSeen || this.admin?.isRunning) this.#connect();
    else if (this.#isShown) this.#hideTimer = setTimeout(() => this.#disconnect(), HIDDEN_MS);
    else this.#disconnect();
  }

  #connect() {
    this.stream.start();
    this.#tickTimer ||= setInterval(() => {
      this.#isTick = true;
      this.admin?.see(this.state.report, this.state.connection === "live", Date.now() / 1000);
      this.#ask();
    }, TICK_MS);
  }

  #disconnect() {
    this.stream.stop();
    clearInterval(this.#tickTimer);
    this.#tickTimer = 0;
  }

  #become(state) {
    this.state = state;
    this.#ask();
  }

  async #heard(name, data) {
    const nowS = Date.now() / 1000;
    if (name === "map") {
      this.#setMap(data.epoch, new BlockMap(await decodeSnapshot(data.states), nowS));
    } else if (name === "blocks") {
      for (const part of ["found", "changed"]) {
        const told = decodeChanges(data[part] ?? "");
        this.maps.get(data.epoch)?.apply(told, part === "changed", nowS);
        if (told.length) this.#card(data.epoch)?.blocks.changed(told);
      }
    } else if (name === "status") {
      for (const epoch of goneEpochs(this.state.report, data)) this.maps.delete(epoch);
      for (const { epoch, num_blocks: numBlocks } of this.state.isFresh ? [] : data.executors) {
        if (!this.maps.has(epoch)) this.#setMap(epoch, emptyMap(numBlocks, nowS)); // it has joined just now
      }
    }
    this.#become(reduce(this.state, name, data, nowS));
    if (name === "status") this.admin?.see(data, true, nowS);
  }

  #setMap(epoch, map) {
    this.maps.set(epoch, map);
    this.#card(epoch)?.blocks.setMap(map);
  }

  #card(epoch) {
    return this.cards.entries.get(String(epoch));
  }

  /** Draw with the next frame: several events make one. */
  #ask() {
    this.#frameAsked ||= requestAnimationFrame(() => this.#draw());
  }

  /** Draw what is another than what was drawn last. */
  #draw() {
    this.#frameAsked = 0;
    if (!this.#isShown) return;
    const { state, drawn } = this;
    const isTick = this.#isTick;
    const nowS = Date.now() / 1000;
    this.#isTick = false;
    this.drawn = state;
    const { connection, problem, report, history, events } = state;
    const said = CONNECTIONS[connection] ?? `Connection lost, trying again. ${problem}`;
    setText(this.connection, report && connection !== "live" ? `${said} ${LAST_KNOWN}` : said);
    this.known.hidden = !report;
    this.root.classList.toggle("stale", connection !== "live");
    const now = serviceNow(state, nowS);
    const isNewReport = report !== drawn.report || isTick;
    this.ageS = sinceReport(state, nowS);
    if (report && isNewReport) {
      this.figures.showReport(report, history, this.ageS);
      this.cards.show(inOrder(report.executors));
      this.noExecutor.hidden = report.executors.length > 0;
      this.running.names = new Map(report.executors.map(({ epoch, executor }) => [epoch, executor]));
    }
    if (connection === "live" && (isTick || history !== drawn.history || events !== drawn.events)) {
      this.figures.showHistory(history, events, now);
    }
    if (events !== drawn.events) this.timeline.show(events);
    if (isNewReport || state.waiting !== drawn.waiting || state.running !== drawn.running) {
      const seesAll = this.about.may_read_status;
      this.waiting.show(state.waiting, seesAll ? report?.waiting ?? 0 : 0, now);
      this.running.show(state.running, seesAll ? report?.running ?? 0 : 0, now);
    }
    for (const card of this.cards.entries.values()) card.blocks.render(nowS, isTick);
  }
}

/** A successor takes the place of its predecessor, most often with the same name. */
function inOrder(executors) {
  return [...executors].sort((a, b) => a.executor.localeCompare(b.executor, "en", { numeric: true }) || a.epoch - b.epoch);
}
