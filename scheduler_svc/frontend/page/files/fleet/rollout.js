// Replacing executors one by one: what to do next, given what the scheduler reports; pure. These are the rules of
// `baton rollout` (scheduler_svc/client/rollout/plan.py) where a supervisor starts the successors:
//
//   gathering ──as many ready as at the start──▶ leaving ──its epoch is gone──▶ succession ──as many again──▶ the next
//
// Where standbys wait for the memory of executors, an executor leaves when a standby waits for its memory. A standby
// that waited before the rollout began is the first successor; it is old, so its turn comes at the end, and it is
// counted from the start.

const REJOIN_S = 5; // an executor that only lost its connection is back earlier, as the same process with a new epoch
const TIMEOUT_S = 120; // for each executor, from its turn to its successor
const RESUME_S = 5; // streams go on within a step or two; some may wait for memory for longer

const STATES = {
  gathering: "waits until the fleet is complete",
  leaving: "was asked to leave",
  succession: "is gone, and a successor is awaited",
};

/** A rollout of all executors that are ready. */
export class Rollout {
  #report;
  #state = "gathering";
  #begunS;
  #absentS = null; // since when the executor whose turn it is has been away
  #asked = 0; // the epoch that was told to leave
  #known;
  #hasOldStandby;
  #waitsForStandbys;
  #isLastTurn = false;
  #succeededS = null; // when the successor was ready

  constructor(report, nowS) {
    this.#report = report;
    /** Executors that are left to replace: it is the first one's turn. */
    this.queue = report.executors.filter(isReady);
    this.numWanted = this.queue.length;
    this.numReplaced = 0;
    /** What has been done, as sentences. */
    this.log = [];
    /** Why it ended early; empty if it did not. */
    this.stopped = "";
    this.#begunS = nowS;
    this.#known = new Set(report.executors.map(({ epoch }) => epoch));
    this.#hasOldStandby = this.#waitsForStandbys = this.queue.some((executor) => executor.has_standby);
    this.numTargets = this.queue.length + (this.#hasOldStandby ? 1 : 0);
  }

  get isDone() {
    return this.queue.length === 0 || this.stopped !== "";
  }

  /** Where it stands, as a sentence. */
  get progress() {
    if (this.stopped) return `Stopped after ${this.numReplaced} of ${this.numTargets}: ${this.stopped}.`;
    if (!this.queue.length) return `Done: ${this.numReplaced} of ${this.numTargets} executors were replaced.`;
    const ending = this.#isLastTurn ? " The rollout stops after this one." : "";
    return `${this.numReplaced + 1} of ${this.numTargets}: ${named(this.queue[0])} ${STATES[this.#state]}.${ending}`;
  }

  /** End it: after the present turn if that has begun to drain. */
  stop(reason) {
    if (this.#asked && !this.isDone) this.#isLastTurn = true;
    else this.stopped ||= reason;
  }

  drainAccepted(epoch) {
    this.#asked = epoch;
  }

  drainRefused(reason) {
    this.stopped ||= `the scheduler refused: ${reason}`;
  }

  /** What to do after a report, null if none came: the epoch to drain, or 0. */
  see(report, nowS) {
    if (this.isDone) return 0;
    if (report) {
      this.#takeIn(report, nowS);
      for (let before = ""; before !== this.#where && !this.isDone; ) {
        before = this.#where;
        const drain = this.#advance(nowS);
        if (drain) return drain;
      }
      if (this.isDone) return 0;
    }
    if (nowS - this.#begunS > TIMEOUT_S) this.stopped = this.#whatDidNotHappen(report !== null);
    return 0;
  }

  get #where() {
    return `${this.numReplaced} ${this.#state}`;
  }

  #advance(nowS) {
    const [target] = this.queue;
    const ready = this.#report.executors.filter(isReady);
    const isComplete = ready.length >= this.numWanted;
    const isGone = this.#absentS !== null && (target.epoch === this.#asked || nowS - this.#absentS >= REJOIN_S);
    const isPresent = this.#absentS === null;
    if (this.#state === "gathering") {
      const mayLeave = isPresent && (!this.#waitsForStandbys || target.has_standby);
      if (isComplete && (mayLeave || isGone)) this.#state = "leaving";
    } else if (this.#state === "leaving") {
      if (isGone) this.#state = "succession";
      else if (isPresent && isComplete && target.epoch !== this.#asked) return target.epoch;
    } else if (isPresent) {
      this.#state = "leaving"; // it had only lost its connection
    } else if (isComplete) {
      const successor = ready.find(({ epoch }) => !this.#known.has(epoch));
      if (successor) this.#succeededS ??= nowS;
      const isOver = target.epoch in this.#report.pauses_s || nowS - this.#succeededS >= RESUME_S;
      if (successor && isOver) this.#succeeded(target, successor, nowS);
    }
    return 0;
  }

  /** A process that loses its connection, or its scheduler, comes back with another epoch; one that left does not. */
  #takeIn(report, nowS) {
    if (report.uptime_s < this.#report.uptime_s) this.#asked = 0; // a new scheduler knows of no drain
    this.#report = report;
    this.queue.forEach((target, i) => {
      const seen = report.executors.find(({ epoch }) => epoch === target.epoch) ??
        report.executors.find((other) => target.epoch !== this.#asked && !this.#known.has(other.epoch) &&
          other.executor === target.executor && other.pid === target.pid);
      if (seen) {
        this.queue[i] = seen;
        this.#known.add(seen.epoch);
      }
      if (i === 0) this.#absentS = seen ? null : (this.#absentS ?? nowS);
    });
  }

  #succeeded(target, successor, nowS) {
    const seconds = (nowS - this.#begunS).toFixed(1);
    const paused = pausedFor(this.#report.pauses_s[target.epoch]);
    this.log.push(`${named(target)} → ${named(successor)}, build ${successor.build}; ${paused}, the turn took ${seconds} s.`);
    this.#known.add(successor.epoch);
    this.queue.shift();
    if (this.#hasOldStandby) {
      this.#hasOldStandby = false;
      this.queue.push(successor);
    }
    this.numReplaced += 1;
    this.#state = "gathering";
    this.#begunS = nowS;
    this.#absentS = this.#succeededS = null;
    this.#asked = 0;
    if (this.#isLastTurn && this.queue.length) this.stopped = "it was told to stop";
  }

  #whatDidNotHappen(hasAnswer) {
    const { executor, state, running } = this.queue[0];
    const within = `within ${TIMEOUT_S} s`;
    if (!hasAnswer) return `the scheduler does not answer, and the turn of ${executor} was not over ${within}`;
    const ready = `${this.#report.executors.filter(isReady).length} of ${this.numWanted} executors are ready`;
    if (this.#state === "leaving") return `${executor} did not leave ${within} (${state}, ${running} sequences)`;
    if (this.#state === "succession") return `no successor of ${executor} came ${within} (${ready})`;
    return `the fleet was not complete ${within} (${ready}${this.#waitsForStandbys ? "; each needs a standby" : ""})`;
  }
}

function isReady(executor) {
  return executor.state === "ready";
}

function pausedFor(seconds) {
  if (seconds === undefined) return "how long its streams paused is not known";
  return seconds ? `its streams paused ${seconds.toFixed(2)} s` : "no stream paused";
}

function named({ executor, epoch }) {
  return `${executor} (epoch ${epoch})`;
}
