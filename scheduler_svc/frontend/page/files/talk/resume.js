// The events of one answer, over as many connections as it takes: none is lost and none comes twice.
//
// After a break the page asks for the events after the last one that it has. It sends the request again, with the same
// id, only if the service says that it never accepted it.

import { ApiError } from "../api.js";
import { eventsOf } from "../sse.js";

const FIRST_WAIT_MS = 200;
const LONGEST_WAIT_MS = 2000;
const OUTAGE_LIMIT_MS = 60_000;
/** A stream that waits gets a comment every few seconds, so one that is silent for so long is dead. */
const SILENCE_LIMIT_MS = 30_000;
/** A connection that held for so long ends an outage, also if the answer had nothing to say meanwhile. */
const CALM_MS = 5_000;
const AWAY_STATUSES = [0, 502, 503, 504]; // no answer, or what a proxy says of a restart

/** Times and waiting, which tests replace. */
const CLOCK = {
  now: () => performance.now(),
  wait: (ms, signal) => new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  }),
};

/** The service has forgotten the request, part of whose answer has been read. */
export class RequestGone extends Error {}

/** The service was away for too long; the request may still be there. */
export class ServiceAway extends Error {}

/**
 * Read an answer until its end or until `signal` aborts. `id` is the one in `body`, `lastEventId` says what has been
 * read, perhaps before a reload, and `mayBeKnown` whether the request may have been sent before.
 *
 * @yields {{kind: "chunk", data: Object, id: string}|{kind: "connected"}|{kind: "broken"}}
 * @throws {ApiError|RequestGone|ServiceAway}
 */
export async function* follow({ api, id, body, lastEventId = "", mayBeKnown = false, signal }, clock = CLOCK) {
  const course = new Course(lastEventId, mayBeKnown, clock);
  while (!signal.aborted) {
    try {
      const connection = new Watched(signal, clock);
      try {
        const response = course.attaches
          ? await api.send(`v1/requests/${id}/events`, { headers: course.headers, signal: connection.signal })
          : await api.send("v1/chat/completions", { method: "POST", body, signal: connection.signal });
        course.connected();
        yield { kind: "connected" };
        for await (const event of eventsOf(response, () => connection.heard())) {
          if (event.data === "[DONE]") return;
          const data = JSON.parse(event.data);
          if (data.error) throw failureOf(data.error);
          course.took(event.id);
          yield { kind: "chunk", data, id: course.lastEventId };
        }
      } finally {
        connection.close();
      }
      throw new ApiError(0, "The connection broke.");
    } catch (error) {
      if (signal.aborted) return;
      const waitMs = course.waitAfter(error);
      yield { kind: "broken" };
      await clock.wait(waitMs, signal);
    }
  }
}

/** Asks the service to end a request, for a while if it is away. Whether that worked does not matter to the reader. */
export async function cancel(api, id, clock = CLOCK) {
  for (let waitMs = FIRST_WAIT_MS; waitMs <= 16 * FIRST_WAIT_MS; waitMs *= 2) {
    try {
      await api.send(`v1/requests/${id}`, { method: "DELETE" });
      return;
    } catch (error) {
      if (!isOutage(error)) return;
    }
    await clock.wait(waitMs);
  }
}

/** What to send next, and how long to try. Decides only. */
class Course {
  #clock;
  #mayBeKnown;
  #mayOvertake = false; // an attach whose answer was lost may still be on its way, and take over from the next one
  #isAnswered = false;
  #brokenAt = null;
  #connectedAt = null;
  #waitMs = FIRST_WAIT_MS;

  constructor(lastEventId, mayBeKnown, clock) {
    this.lastEventId = lastEventId;
    this.#mayBeKnown = this.attaches = mayBeKnown;
    this.#clock = clock;
  }

  get headers() {
    return this.lastEventId ? { "last-event-id": this.lastEventId } : {};
  }

  connected() {
    this.attaches = this.#mayBeKnown = true;
    this.#connectedAt = this.#clock.now();
  }

  took(id) {
    if (id) this.lastEventId = id;
    this.#isAnswered = true;
    this.#calm();
  }

  /** Milliseconds until the next attempt. Throws what the reader is told if there is none. */
  waitAfter(error) {
    if (this.#connectedAt !== null && this.#clock.now() - this.#connectedAt > CALM_MS) this.#calm();
    this.#connectedAt = null;
    if (!this.#mayGoOn(error)) throw error;
    this.#brokenAt ??= this.#clock.now();
    if (this.#clock.now() - this.#brokenAt > OUTAGE_LIMIT_MS) throw new ServiceAway(error.message);
    const waitMs = this.#waitMs;
    this.#waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS);
    return waitMs;
  }

  #calm() {
    this.#brokenAt = null;
    this.#waitMs = FIRST_WAIT_MS;
  }

  #mayGoOn(error) {
    if (error.code === "request_not_found" && this.attaches) {
      if (this.lastEventId) throw new RequestGone(error.message);
      this.attaches = false;
      return true;
    }
    if (error.code === "request_exists" && this.#mayBeKnown) {
      this.attaches = true;
      return true;
    }
    if (error.code === "taken_over" && this.#mayOvertake) {
      this.#mayOvertake = this.#isAnswered = false; // by ourselves; the next time it is another page
      return true;
    }
    // a new request that is refused is told to the reader, who may want to wait or not
    if (!isOutage(error) || (error.status > 0 && !this.#mayBeKnown)) return false;
    this.#mayOvertake = this.attaches && !this.#isAnswered;
    this.#isAnswered = false;
    this.attaches = this.#mayBeKnown = true;
    return true;
  }
}

/** Aborts a connection on which nothing has come for a long time, and with the reader's signal. */
class Watched {
  #abort = new AbortController();
  #clock;
  #outer;
  #heardAt;
  #forward = () => this.#abort.abort();
  #timer;

  constructor(outer, clock) {
    this.#outer = outer;
    this.#clock = clock;
    this.heard();
    outer.addEventListener("abort", this.#forward);
    this.#timer = setInterval(() => {
      if (clock.now() - this.#heardAt <= SILENCE_LIMIT_MS) return;
      this.#abort.abort(new ApiError(0, "The service has been silent for too long."));
    }, SILENCE_LIMIT_MS / 10);
  }

  get signal() {
    return this.#abort.signal;
  }

  heard() {
    this.#heardAt = this.#clock.now();
  }

  close() {
    clearInterval(this.#timer);
    this.#outer.removeEventListener("abort", this.#forward);
    this.#abort.abort();
  }
}

/** An error within a stream has a code and no status. */
function failureOf({ message = "The answer failed.", code = "" }) {
  return new ApiError(code === "unavailable" ? 503 : 500, message, code);
}

/** Whether the service, or the way to it, was away; then the request itself is not at fault. */
function isOutage(error) {
  if (!(error instanceof ApiError)) return true; // fetch and its streams throw other errors for broken connections
  if (error.code === "deadline_exceeded") return false;
  return AWAY_STATUSES.includes(error.status) || error.code === "reader_too_slow";
}
