// The scheduler's words as sentences. A word that this page does not know yet is shown as it is.

const WAITS = {
  no_executor: "no executor can take it",
  pool: "waits for the next executor of the memory that it left much in",
  landing: "its own last tokens are still on their way",
  alone: "after failures one sequence runs alone: it, or one before it",
  share: "its client has had its share: those of others go first",
  lanes: "all lanes are taken",
  memory: "too few free blocks",
  yields: "lets the prompts of others go first",
  turn: "its turn comes in one of the next plans",
};

const STATES = {
  ready: { mark: "●", tone: "good", word: "ready" },
  finishing: { mark: "◐", tone: "warn", word: "finishing: takes nothing new" },
  draining: { mark: "◌", tone: "warn", word: "draining" },
};

const EVENTS = {
  joined: { tone: "good", word: "joined" },
  rejected: { tone: "bad", word: "was rejected" },
  finishing: { tone: "warn", word: "finishes its sequences" },
  draining: { tone: "warn", word: "drains" },
  left: { tone: "warn", word: "left" },
  lost: { tone: "bad", word: "lost" },
  preempted: { tone: "quiet", word: "preempted" },
  restored: { tone: "good", word: "restored from the journal" },
  journal_failed: { tone: "bad", word: "the journal failed" },
  journal_ok: { tone: "good", word: "the journal works again" },
};

const CAUSES = {
  disconnected: "its connection broke",
  silent: "it said nothing for too long",
  hung: "its step hung",
  step_failed: "its step failed",
  untrusted: "its answers could not be trusted",
  no_numbers: "its scores were no numbers",
  drained: "it was drained",
  restarted: "it joined again by itself",
  shutdown: "the scheduler stops",
};

const SCALE_REASONS = {
  found: "they were there at the start",
  min: "that is the minimum",
  max: "that is the maximum; the load asks for more",
  first: "something waits and no executor is there",
  time: "prompts keep the executors busy",
  memory: "answers fill memory or lanes",
  less: "fewer do",
  idle: "nothing is to be done",
};

/** What a sequence waits for. */
export function waitReason(reason) {
  return WAITS[reason] ?? reason;
}

/** An executor's state as a mark, a tone and a word. */
export function stateOf(state) {
  return STATES[state] ?? { mark: "○", tone: "quiet", word: state };
}

/** A fleet event's kind as a tone and a word. */
export function eventKind(kind) {
  return EVENTS[kind] ?? { tone: "quiet", word: kind };
}

/** Why an executor's epoch ended. */
export function causeOf(cause) {
  return CAUSES[cause] ?? cause;
}

/** Why so many executors are wanted. */
export function scaleReason(reason) {
  return SCALE_REASONS[reason] ?? reason;
}
