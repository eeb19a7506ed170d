// What `page/live` has told, as one state; pure. The maps of blocks are too large to be copied: `blocks.js` has them.

const MAX_EVENTS = 256;
const MAX_HISTORY_S = 300;
const SAME_S = 0.5; // between the times that are told of one moment, at most

/**
 * What is known before anything has come.
 *
 * `connection` is `connecting`, `live`, `gone` (the frontend is there and cannot reach the scheduler) or `lost`.
 * `isFresh` says that the connection has just begun: the history that comes next is whole. `reportedS` is when the
 * report came, and `aheadS` by how much this machine's clock, as `reportedS`, is ahead of the service's.
 */
export const NOTHING = Object.freeze({
  connection: "connecting",
  problem: "",
  isFresh: true,
  report: null,
  waiting: [],
  running: [],
  events: [],
  history: [],
  reportedS: 0,
  aheadS: 0,
});

/**
 * The state after an event.
 *
 * @param {Object} state as `NOTHING` has it.
 * @param {string} name of the event; one that is not known changes nothing.
 * @param {any} data
 * @param {number} nowS by this machine's clock.
 */
export function reduce(state, name, data, nowS) {
  switch (name) {
    case "status":
      return { ...state, connection: "live", problem: "", report: data, reportedS: nowS };
    case "waiting":
      return { ...state, waiting: data };
    case "running":
      return { ...state, running: data };
    case "events":
      return { ...state, events: joinEvents(state.events, data) };
    case "history":
      return joinHistory(state, data);
    case "gone":
      return { ...state, connection: "gone", problem: "" };
    default:
      return state;
  }
}

/** The state when a connection begins. `dateS` is the service's time then, in whole seconds; NaN if it is not known. */
export function connected(state, dateS, nowS) {
  return { ...state, isFresh: true, aheadS: dateS ? nowS - dateS - 0.5 : state.aheadS };
}

/** The state when it is lost: what was shown stays. */
export function disconnected(state, problem) {
  return { ...state, connection: "lost", problem };
}

/** The service's time now. */
export function serviceNow(state, nowS) {
  return nowS - state.aheadS;
}

/** How old the report is; 0 where it does not become older, as the connection is lost. */
export function sinceReport(state, nowS) {
  return state.connection === "live" ? nowS - state.reportedS : 0;
}

/** The epochs that were there before, and are not any more. */
export function goneEpochs(before, after) {
  const present = new Set(after.executors.map((executor) => executor.epoch));
  return (before?.executors ?? []).map((executor) => executor.epoch).filter((epoch) => !present.has(epoch));
}

/** Numbers begin anew with the scheduler's life, and times are not quite the same when an event is told again. */
function joinEvents(known, news) {
  const isKnown = (event) => known.some(({ number, at }) => number === event.number && Math.abs(at - event.at) < SAME_S);
  const added = news.filter((event) => !isKnown(event));
  return added.length ? [...known, ...added].slice(-MAX_EVENTS) : known;
}

/** What tells these events apart. */
export function eventKey(event) {
  return `${event.number}:${event.at}`;
}

function joinHistory(state, news) {
  const known = state.isFresh ? [] : state.history;
  const lastAt = known.length ? known[known.length - 1][0] : -Infinity;
  const all = [...known, ...news.filter((sample) => sample[0] > lastAt + SAME_S)];
  if (!all.length) return state;
  const newest = all[all.length - 1][0];
  // a second like the one before is left out: the last one that is too old says what holds where the rest begins
  const begin = all.findIndex((sample) => sample[0] > newest - MAX_HISTORY_S);
  const history = all.slice(Math.max(0, begin - 1));
  return { ...state, history, isFresh: false };
}
