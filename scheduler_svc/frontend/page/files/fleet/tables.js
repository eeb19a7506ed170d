// The queue and what runs, as tables whose rows are kept while they are there.

import { h } from "../dom.js";
import { count, waited } from "./format.js";
import { KeyedList, setText } from "./keyed.js";
import { waitReason } from "./words.js";

/** A table in a box of its own that scrolls. */
class Table {
  /** @param {{id: string, title: string, empty: string, columns: string[][]}} options columns: class and heading. */
  constructor({ id, title, empty, columns }) {
    this.columns = columns;
    this.total = h("span.number.quiet", {});
    this.empty = h("p.quiet", {}, empty);
    this.body = h("tbody", {});
    this.table = h("table", {},
      h("thead", {}, h("tr", {}, ...columns.map(([kind, label]) => h(`th.${kind}`, { scope: "col" }, label)))), this.body);
    this.node = h("section", { "aria-labelledby": id },
      h("h2", { id }, `${title} `, this.total),
      h("div.scroll", { tabindex: 0, role: "group", "aria-label": title, "data-testid": id }, this.table, this.empty));
    const keyOf = (item) => `${item.request}/${item.index}/${item.epoch ?? ""}`;
    this.rows = new KeyedList(this.body, keyOf, (item) => this.#make(item), (row, item) => this.update(row, item));
  }

  show(items, total, nowS) {
    this.nowS = nowS;
    this.place = 0;
    this.rows.show(items);
    this.table.hidden = items.length === 0;
    this.empty.hidden = items.length > 0;
    setText(this.total, total > items.length ? `${count(items.length)} of ${count(total)}` : count(items.length));
  }

  #make(item) {
    const cells = this.columns.map(([kind]) => h(`td.${kind}`, {}));
    const node = h("tr", { "data-request": item.request }, ...cells);
    const name = item.index ? `${item.request}, sequence ${item.index}` : item.request;
    const at = this.columns.findIndex(([kind]) => kind === "request");
    cells[at].append(h("a", { href: `#request/${encodeURIComponent(item.request)}` }, name));
    return { node, cells };
  }
}

/** The head of the queue. */
export class WaitingTable extends Table {
  constructor() {
    super({
      id: "waiting",
      title: "Waiting",
      empty: "No request waits.",
      columns: [
        ["number", "Place"], ["request", "Request"], ["client", "Client"], ["number", "Tokens"],
        ["number", "Priority"], ["number", "For"], ["reason", "Because"],
      ],
    });
  }

  update({ cells }, item) {
    this.place += 1;
    const tokens = item.output ? `${count(item.tokens)} (${count(item.output)} generated)` : count(item.tokens);
    const texts = [
      count(this.place), null, item.client || "–", tokens, count(item.priority), waited(this.nowS - item.since),
      waitReason(item.reason),
    ];
    texts.forEach((text, i) => text === null || setText(cells[i], text));
  }
}

/** What executors have. */
export class RunningTable extends Table {
  constructor() {
    super({
      id: "running",
      title: "Running",
      empty: "No request runs.",
      columns: [["request", "Request"], ["client", "Client"], ["executor", "Executor"], ["number", "For"]],
    });
    this.names = new Map();
  }

  update({ cells }, item) {
    const texts = [null, item.client || "–", this.names.get(item.epoch) ?? `epoch ${item.epoch}`, waited(this.nowS - item.since)];
    texts.forEach((text, i) => text === null || setText(cells[i], text));
  }
}
