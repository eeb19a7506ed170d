// The connection to `page/live`: there while somebody looks, and made again when it breaks.

import { WRONG_KEY } from "../api.js";
import { eventsOf } from "../sse.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 5000;
const LASTING_MS = 5000; // one that held so long is made again at once
const SILENT_MS = 30000; // comments come more often than that

/** Reads the fleet's events while it is wanted. */
export class LiveStream {
  /**
   * @param {import("../api.js").Api} api
   * @param {{begun: function(number): void, event: function(string, any): (Promise<void>|void), lost: function(string): void}} on
   *   `begun` is told the service's time. `event` is waited for before the next one is read.
   */
  constructor(api, on) {
    this.api = api;
    this.on = on;
  }

  #abort = null;

  /** Whether it is to be read. */
  get isWanted() {
    return this.#abort !== null;
  }

  /** Read it. */
  start() {
    if (this.#abort) return;
    this.#abort = new AbortController();
    this.#run(this.#abort.signal);
  }

  /** Read it no more. */
  stop() {
    this.#abort?.abort();
    this.#abort = null;
  }

  async #run(wanted) {
    let pause = FIRST_PAUSE_MS;
    while (!wanted.aborted) {
      let problem = "The connection ended.";
      const began = performance.now();
      try {
        await this.#read(wanted);
      } catch (error) {
        problem = error.message;
        if (error.code === WRONG_KEY) this.stop(); // the view is shown again when there is another key
      }
      if (wanted.aborted) return;
      this.on.lost(problem);
      if (performance.now() - began > LASTING_MS) pause = FIRST_PAUSE_MS;
      await sleep(pause * (0.75 + Math.random() / 2), wanted); // pages that lost it at once do not all come back at once
      pause = Math.min(LONGEST_PAUSE_MS, 2 * pause);
    }
  }

  async #read(wanted) {
    const one = new AbortController();
    const end = () => one.abort();
    let silence = setTimeout(end, SILENT_MS);
    wanted.addEventListener("abort", end);
    try {
      const response = await this.api.send("page/live", { signal: one.signal });
      this.on.begun(Date.parse(response.headers.get("date")) / 1000);
      const stillThere = () => {
        clearTimeout(silence);
        silence = setTimeout(end, SILENT_MS);
      };
      for await (const { event, data } of eventsOf(response, stillThere)) {
        if (wanted.aborted) return;
        await this.on.event(event, JSON.parse(data));
      }
    } finally {
      clearTimeout(silence);
      wanted.removeEventListener("abort", end);
      one.abort();
    }
  }
}

function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
