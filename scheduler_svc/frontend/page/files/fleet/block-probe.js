// Asks which sequences have a block: a little after the question stands still, and never two questions at a time.

const STILL_MS = 120;
const AGAIN_MS = 1000;

/** Questions about the blocks of one executor. */
export class BlockProbe {
  /**
   * @param {import("../api.js").Api} api
   * @param {number} epoch
   * @param {function(number, Object[]|null, string): void} onAnswer block, holders, and what went wrong.
   */
  constructor(api, epoch, onAnswer) {
    this.api = api;
    this.epoch = epoch;
    this.onAnswer = onAnswer;
    this.block = -1;
  }

  #timer = 0;
  #abort = null;

  /** Ask about a block, or about none with -1. */
  ask(block) {
    this.stop();
    this.block = block;
    if (block >= 0) this.#timer = setTimeout(() => this.#send(), STILL_MS);
  }

  /** Ask the same again soon, as something has changed. */
  askAgain() {
    if (this.block >= 0 && !this.#timer && !this.#abort) this.#timer = setTimeout(() => this.#send(), AGAIN_MS);
  }

  /** Ask nothing more. */
  stop() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#timer = 0;
    this.#abort = null;
    this.block = -1;
  }

  async #send() {
    const abort = new AbortController();
    const { block } = this;
    this.#timer = 0;
    this.#abort = abort;
    let holders = null;
    let problem = "";
    try {
      holders = (await this.api.json(`page/executors/${this.epoch}/blocks/${block}`, { signal: abort.signal })).holders;
    } catch (error) {
      problem = error.message;
    }
    if (abort.signal.aborted) return;
    this.#abort = null;
    this.onAnswer(block, holders, problem);
  }
}
