// Has one answer written: sends its request, takes its chunks, and asks why it paused.

import { ApiError } from "../api.js";
import { take } from "./answer.js";
import { interruptionsOf, labelled, pausesOf } from "./life.js";
import { cancel, follow, RequestGone, ServiceAway } from "./resume.js";
import { figuresOf, gapsOf, thinned } from "./timing.js";

/** While an answer comes, gaps are looked for so often at most. */
const LOOK_MS = 500;
/** With these a request is not reached, but it may well go on. */
const NO_ENTRY = [401, 403, 429];

/** Milliseconds since 1970, finer than Date has them, and never going back within a page. */
export function nowMs() {
  return performance.timeOrigin + performance.now();
}

/** An answer in progress. `onChange` says that the answer has changed, `onEnd` that nothing more of it will come. */
export class Run {
  #api;
  #answer;
  #body;
  #abort = new AbortController();
  #brokenAt = null;
  #interruptions = [];
  #knowsLives = true; // false once the service says that it does not tell them
  #asking = null; // a promise, while a question is open
  #lookedAt = 0;
  #numAsked = 0; // gaps of which the service has been asked
  onChange = () => {};
  onEnd = () => {};

  /** @param {Object} answer of `newAnswer`. @param {Object} body of its request. */
  constructor(api, answer, body) {
    this.#api = api;
    this.#answer = answer;
    this.#body = body;
  }

  /** Whether the connection is broken at the moment. */
  get isBroken() {
    return this.#brokenAt !== null;
  }

  /** @param {boolean} mayBeKnown whether a page before this one may have sent the request. */
  async go(mayBeKnown) {
    const answer = this.#answer;
    if (mayBeKnown) this.#broke(answer.sentAt + (answer.arrivals.at(-1)?.[0] ?? 0));
    try {
      const { request: id, lastEventId } = answer;
      const signal = this.#abort.signal;
      for await (const part of follow({ api: this.#api, id, body: this.#body, lastEventId, mayBeKnown, signal })) {
        this.#take(part);
      }
      answer.state = signal.aborted ? "stopped" : "done";
    } catch (error) {
      this.#fail(error);
    }
    this.#connected();
    await this.#settle();
  }

  /** The reader has seen enough: the request ends in the service too. */
  stop() {
    this.#abort.abort();
    cancel(this.#api, this.#answer.request);
  }

  #take(part) {
    const now = nowMs();
    if (part.kind === "broken") this.#broke(now);
    else if (part.kind === "connected") this.#connected();
    else take(this.#answer, part.data, part.id, now);
    if (now - this.#lookedAt > LOOK_MS) this.#look(now);
    this.onChange();
  }

  #broke(at) {
    this.#brokenAt ??= at;
  }

  #connected() {
    if (this.#brokenAt === null) return;
    const { sentAt, breaks } = this.#answer;
    breaks.push([Math.round(this.#brokenAt - sentAt), Math.round(nowMs() - sentAt)]);
    this.#brokenAt = null;
  }

  #fail(error) {
    const answer = this.#answer;
    const { status = 0, code = "" } = error instanceof ApiError ? error : {};
    const isLockedOut = answer.lastEventId !== "" && (code === "taken_over" || NO_ENTRY.includes(status));
    if (error instanceof RequestGone) answer.state = "gone";
    else answer.state = error instanceof ServiceAway || isLockedOut ? "away" : "failed";
    answer.error = { message: error.message, status, code };
  }

  /** Look for gaps; if there is one more, ask the service what it was. */
  #look(now) {
    this.#lookedAt = now;
    this.#label();
    if (this.#answer.gaps.length <= this.#numAsked) return;
    this.#numAsked = this.#answer.gaps.length;
    this.#askWhy().then(() => this.onChange());
  }

  #label() {
    const { arrivals, breaks, sentAt } = this.#answer;
    this.#answer.gaps = labelled(gapsOf(arrivals), this.#interruptions, breaks, sentAt);
  }

  /** One question at a time: a second one waits for the answer to the first. */
  #askWhy() {
    this.#asking ??= this.#ask().finally(() => { this.#asking = null; });
    return this.#asking;
  }

  async #ask() {
    if (!this.#knowsLives) return;
    try {
      const life = await this.#api.json(`page/requests/${this.#answer.request}`);
      this.#interruptions = interruptionsOf(life, nowMs());
      if (this.#answer.state === "running") this.#label();
    } catch (error) {
      // without the reason a gap is a pause; where there is no such request or endpoint, there will be none later
      if (error.status === 404) this.#knowsLives = false;
    }
  }

  /** The end: what the reader sees is told at once, and once more when the service has told the reasons. */
  async #settle() {
    const answer = this.#answer;
    const { arrivals } = answer; // all of them, for when the reasons are known
    this.#label();
    answer.figures = figuresOf(arrivals);
    if (answer.state !== "away") answer.arrivals = thinned(arrivals, answer.figures.endMs);
    this.onEnd();
    await this.#asking; // it may have been asked before the last gap was over
    if (arrivals.length) await this.#askWhy();
    const pauses = pausesOf(arrivals, this.#interruptions, answer.sentAt);
    answer.gaps = labelled(pauses, this.#interruptions, answer.breaks, answer.sentAt);
    this.onChange();
  }
}
