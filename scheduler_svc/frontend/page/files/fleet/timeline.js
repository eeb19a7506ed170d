// What happened to the fleet, the newest first.

import { h } from "../dom.js";
import { clock, countOf } from "./format.js";
import { KeyedList } from "./keyed.js";
import { eventKey } from "./live.js";
import { causeOf, eventKind } from "./words.js";

/** The list of events. */
export class Timeline {
  constructor() {
    this.empty = h("p.quiet", {}, "Nothing has happened yet.");
    this.list = h("ol.events", {}); // a role of its own would take that of a list from it
    this.node = h("section", { "aria-labelledby": "events" },
      h("h2", { id: "events" }, "Events"),
      h("div.scroll", { tabindex: 0, role: "log", "aria-label": "Events, the newest first", "data-testid": "events" }, this.list, this.empty));
    this.rows = new KeyedList(this.list, eventKey, makeRow, () => {});
  }

  /** Show these events, the oldest first. */
  show(events) {
    this.empty.hidden = events.length > 0;
    this.list.hidden = events.length === 0;
    this.rows.show([...events].reverse());
  }
}

function makeRow(event) {
  const { tone, word } = eventKind(event.kind);
  const who = event.executor ? `${event.executor}, epoch ${event.epoch ?? 0}: ` : "";
  const node = h("li", { "data-kind": event.kind },
    h("time.number.quiet", { datetime: new Date(event.at * 1000).toISOString() }, clock(event.at)),
    h("span", {}, who, h(`strong.${tone}`, {}, word), detailsOf(event)));
  return { node };
}

/** What else is known of an event, as the rest of a sentence. */
export function detailsOf(event) {
  const details = [];
  if (event.reason && event.reason !== event.cause) details.push(event.reason); // it says all that the cause says
  else if (event.cause) details.push(causeOf(event.cause));
  if (event.sequences) details.push(countOf(event.sequences, "sequence") + (MOVED[event.kind] ?? ""));
  if (event.blocks_cached) details.push(`${countOf(event.blocks_cached, "block")} of its kept pool count on`);
  return details.length ? ` (${details.join("; ")})` : "";
}

const MOVED = { left: " moved", lost: " moved", preempted: " went back to the queue", restored: " came back" };
