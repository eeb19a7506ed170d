// What `page/live` has told, as one state; pure. The maps of blocks are too large to be copied: `blocks.js` has them.

const MAX_EVENTS = 256;
const MAX_HISTORY_S = 300;

/**
 * What is known before anything has come.
 *
 * `connection` is `connecting`, `live`, `gone` (the frontend is there and cannot reach the scheduler) or `lost`.
 * `isFresh` says that the connection has just begun: histories that come next are whole.
 * `behindS` is what this machine's clock is ahead of the scheduler's, the delay of the messages included.
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
  behindS: null,
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
      return { ...state, connection: "live", problem: "", report: data };
    case "waiting":
      return { ...state, waiting: data };
    case "running":
      return { ...state, running: data };
    case "events":
      return { ...state, events: joinEvents(state.events, data) };
    case "history":
      return joinHistory(state, data, nowS);
    case "gone":
      return { ...state, connection: "gone", problem: "" };
    default:
      return state;
  }
}

/** The state when a connection begins. */
export function connected(state) {
  return { ...state, isFresh: true };
}

/** The state when it is lost: what was shown stays. */
export function disconnected(state, problem) {
  return { ...state, connection: "lost", problem };
}

/** The scheduler's time now. */
export function schedulerNow(state, nowS) {
  return nowS - (state.behindS ?? 0);
}

/** The epochs that were there before, and are not any more. */
export function goneEpochs(before, after) {
  const present = new Set(after.executors.map((executor) => executor.epoch));
  return (before?.executors ?? []).map((executor) => executor.epoch).filter((epoch) => !present.has(epoch));
}

/** Numbers begin anew with the scheduler's life, so an event is known by its number and its time. */
function joinEvents(known, news) {
  const keys = new Set(known.map(eventKey));
  const added = news.filter((event) => !keys.has(eventKey(event)));
  return added.length ? [...known, ...added].slice(-MAX_EVENTS) : known;
}

/** What tells events apart. */
export function eventKey(event) {
  return `${event.number}:${event.at}`;
}

function joinHistory(state, news, nowS) {
  const known = state.isFresh ? [] : state.history;
  const lastAt = known.length ? known[known.length - 1][0] : -Infinity;
  const all = [...known, ...news.filter((sample) => sample[0] > lastAt)];
  if (!all.length) return state;
  const newest = all[all.length - 1][0];
  const history = all.filter((sample) => sample[0] > newest - MAX_HISTORY_S);
  // the smallest difference is that of the quickest message; a clock that is set anew counts from the next connection
  const behindS = Math.min(nowS - newest, state.isFresh ? Infinity : (state.behindS ?? Infinity));
  return { ...state, history, behindS, isFresh: false };
}
