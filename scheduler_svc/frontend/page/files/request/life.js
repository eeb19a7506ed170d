// A sequence's marks as spans of time, and where its time went as a sentence; pure.

import { count, countOf, percent, rate, span } from "../fleet/format.js";
import { causeOf } from "../fleet/words.js";

/** Kinds of segments in the order of a legend. */
export const KINDS = {
  queued: "in the queue",
  cached: "tokens from the cache",
  prefill: "prefill",
  decode: "decode",
  paused: "waits again",
  unknown: "not kept",
};

export const KEPT_FIRST = 32; // marks: where some are left out, those after these are (core/observability/sequence_lives.py)

const MARKS = {
  queued: "came into the queue",
  restored: "came back from the journal",
  admitted: "was admitted",
  prefill: "a plan computes known tokens",
  first_token: "its first token came",
  preempted: "was preempted: an older sequence took its blocks",
  lost: "lost its executor",
  left: "its executor left",
  resumed: "its next token came",
  ended: "ended",
};

const ENDS = {
  stop: "the answer was complete",
  length: "its length limit was reached",
  cancelled: "cancelled",
  error: "error",
};

/** What a mark says. */
export function markOf({ what }) {
  return MARKS[what] ?? what;
}

/** Why a mark was made, in words; empty where nothing is known. */
export function causeOfMark({ what, cause = "" }) {
  return what === "ended" ? (ENDS[cause] ?? cause) : causeOf(cause);
}

/**
 * The life of a sequence as far as it is known.
 *
 * `segments` follow each other; one of kind `cached` takes no time. `seconds` has the time of each kind, where all that
 * follows a pause until the next token counts as paused, as its client waits for it.
 */
export function lifeOf({ marks, output, num_left_out: numLeftOut = 0 }, nowS) {
  const life = {
    segments: [], pauses: [], output, end: null, cause: "", prompt: 0, cached: 0, wasRestored: false,
    seconds: { queued: 0, prefill: 0, decode: 0, paused: 0, unknown: 0 },
  };
  let open = null;
  let pause = null;
  const close = (at) => {
    if (!open) return;
    if (at > open.begin) life.segments.push({ ...open, end: at });
    life.seconds[pause && open.kind !== "unknown" ? "paused" : open.kind] += Math.max(0, at - open.begin);
    open = null;
  };
  const begin = (kind, mark, more = {}) => {
    close(mark.at);
    const { executor = "", epoch = 0 } = mark;
    open = { kind, begin: mark.at, executor, epoch, ...more };
  };
  const endPause = (at) => {
    if (pause) life.pauses.push({ ...pause, seconds: at - pause.begin });
    pause = null;
  };
  marks.forEach((mark, i) => {
    if (numLeftOut && i === KEPT_FIRST) {
      begin("unknown", marks[i - 1]);
      close(mark.at);
    }
    switch (mark.what) {
      case "queued":
        life.prompt = mark.tokens ?? 0;
        begin("queued", mark);
        break;
      case "restored":
        life.wasRestored = true;
        begin("queued", mark, { what: "restored" });
        break;
      case "admitted":
        if (!life.segments.some(({ kind }) => kind === "prefill") && !pause) {
          life.prompt = mark.tokens ?? life.prompt;
          life.cached = mark.cached ?? 0;
        }
        begin("prefill", mark, { tokens: 0 });
        if (mark.cached) {
          const { executor, epoch } = open;
          life.segments.push({ kind: "cached", begin: mark.at, end: mark.at, executor, epoch, tokens: mark.cached });
        }
        break;
      case "prefill":
        begin("prefill", mark, { tokens: mark.tokens ?? 0 });
        break;
      case "first_token":
      case "resumed":
        if (mark.what === "first_token" && open?.kind === "paused") break; // it was on its way when the sequence had to wait again
        close(mark.at);
        endPause(mark.at);
        begin("decode", mark);
        break;
      case "preempted":
      case "lost":
      case "left":
        close(mark.at);
        pause ??= { begin: mark.at, what: mark.what, executor: mark.executor ?? "", cause: mark.cause ?? "" };
        begin("paused", mark, { what: mark.what, cause: mark.cause ?? "" });
        break;
      case "ended":
        close(mark.at);
        endPause(mark.at);
        life.end = mark.at;
        life.cause = mark.cause ?? "";
        break;
    }
  });
  life.begin = marks.length ? marks[0].at : nowS;
  life.now = life.end ?? Math.max(nowS, marks.at(-1)?.at ?? nowS);
  life.doing = open ? open.kind : "";
  close(life.now);
  endPause(life.now);
  return life;
}

/** Where the time went. */
export function sentenceOf(life) {
  const { seconds } = life;
  const total = life.now - life.begin;
  const said = [`It ${life.end === null ? "has taken" : "took"} ${span(total)}${life.end === null ? " so far" : ""}.`];
  const [[kind, most]] = Object.entries(seconds).sort((a, b) => b[1] - a[1]);
  if (total > 0 && most / total >= 0.5 && most < total) said.push(`Most of it (${percent(most / total)}) ${WENT[kind]}.`);
  const parts = [];
  if (seconds.queued > 0) parts.push(`${span(seconds.queued)} in the queue${life.wasRestored ? ", restored from the journal" : ""}`);
  if (seconds.prefill > 0) parts.push(`${span(seconds.prefill)} for the prefill of ${fromCache(life)}`);
  if (seconds.decode > 0) parts.push(`${span(seconds.decode)} to decode ${countOf(life.output, "token")}${speedOf(life)}`);
  if (seconds.unknown > 0) parts.push(`${span(seconds.unknown)} of which nothing is kept`);
  if (parts.length) said.push(`${upper(parts.join(", "))}.`);
  if (life.pauses.length) {
    const pauses = life.pauses.slice(0, 3).map(({ seconds: s, ...pause }) => `${span(s)} as ${whyPaused(pause)}`);
    if (life.pauses.length > 3) pauses.push(`and ${countOf(life.pauses.length - 3, "more pause")}`);
    said.push(`${span(seconds.paused)} in ${countOf(life.pauses.length, "pause")}: ${pauses.join("; ")}.`);
  }
  if (life.end !== null) said.push(`It ended: ${causeOfMark({ what: "ended", cause: life.cause }) || "no cause is known"}.`);
  return said.join(" ");
}

const WENT = {
  queued: "was spent in the queue",
  prefill: "went into its prefill",
  decode: "went into decoding",
  paused: "was spent in pauses",
  unknown: "is not kept",
};

/** A segment as a phrase, for its tooltip. */
export function phraseOf(segment) {
  const { kind, begin, end, executor, epoch, tokens } = segment;
  const where = executor && kind !== "paused" ? ` on ${executor} (epoch ${epoch})` : "";
  if (kind === "cached") return `${countOf(tokens, "token")} from the cache${where}`;
  const what = kind === "paused" ? `waits again, as ${whyPaused(segment)}` : KINDS[kind];
  return `${what}${tokens ? ` of ${countOf(tokens, "token")}` : ""}, ${span(end - begin)}${where}`;
}

function whyPaused({ what, executor, cause }) {
  const because = cause ? ` (${causeOf(cause)})` : "";
  if (what === "preempted") return `an older sequence took its blocks on ${executor}`;
  return what === "lost" ? `${executor} was lost${because}` : `${executor} left${because}`;
}

function fromCache({ prompt, cached }) {
  return cached ? `its prompt, with ${count(cached)} of ${countOf(prompt, "token")} from the cache` : countOf(prompt, "token");
}

function speedOf({ output, seconds }) {
  return output > 1 && seconds.unknown === 0 ? ` (${rate((output - 1) / seconds.decode)} tokens/s)` : "";
}

function upper(text) {
  return text[0].toUpperCase() + text.slice(1);
}
