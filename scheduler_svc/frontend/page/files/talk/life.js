// Why an answer paused: the marks of a request's life (docs/page.md) are found again in the gaps between its tokens.

import { duration, gapsOf } from "./timing.js";

/** A gap and what the service says of it may be so far apart: clocks, and the way of the messages. */
const TOLERANCE_MS = 150;
/** A swap is shown however short it was: as the longest pause so near to it. */
const NEAR_MS = 50;
/** Kind of a gap without a reason. */
const PAUSE = "pause";

/**
 * The times at which a sequence could not go on, in the page's clock.
 *
 * @param {Object} life answer of `page/requests/ID`.
 * @param {number} nowMs the page's clock when the answer came, in milliseconds since 1970.
 * @returns {{from: number, to: number, what: string, before: string, after: string, isSame: boolean}[]} `from` and `to`
 *   in milliseconds since 1970; `to` is Infinity and `after` empty where the sequence still waits. `isSame`: the same
 *   process has it again.
 */
export function interruptionsOf(life, nowMs) {
  const shift = nowMs - 1000 * life.now;
  const marks = life.sequences?.[0]?.marks ?? [];
  const found = [];
  let open = null;
  let on = { executor: "", epoch: 0 };
  for (const mark of marks) {
    const at = 1000 * mark.at + shift;
    if (["lost", "left", "preempted", "restored"].includes(mark.what) && !open) {
      const before = mark.executor ?? on.executor;
      open = { from: at, to: Infinity, what: mark.what, before, after: "", isSame: false };
      on = { executor: before, epoch: mark.epoch ?? on.epoch };
      found.push(open);
    } else if (mark.what === "admitted") {
      if (open) open.isSame = on.epoch === mark.epoch;
      if (open) open.after = mark.executor ?? "";
      on = { executor: mark.executor ?? "", epoch: mark.epoch ?? 0 };
    } else if (open && ["resumed", "first_token", "ended"].includes(mark.what)) {
      open.to = at;
      open = null;
    }
  }
  return found;
}

/**
 * The gaps between tokens, and the pauses in which the sequence could not go on, though they may be no longer than others.
 *
 * @param {[number, number][]} arrivals in milliseconds after `sentAt`, with the number of tokens each.
 * @param {Object[]} interruptions of `interruptionsOf`.
 * @param {number} sentAt in milliseconds since 1970.
 */
export function pausesOf(arrivals, interruptions, sentAt) {
  const pauses = gapsOf(arrivals);
  for (const { from, to } of interruptions) {
    let longest = null;
    for (let i = 1; i < arrivals.length; i += 1) {
      const pause = { from: arrivals[i - 1][0], to: arrivals[i][0] };
      const isNear = pause.to >= from - sentAt - NEAR_MS && pause.from <= to - sentAt + NEAR_MS;
      if (isNear && (!longest || pause.to - pause.from > longest.to - longest.from)) longest = pause;
    }
    if (longest && !pauses.some((pause) => pause.from === longest.from)) pauses.push(longest);
  }
  return pauses.sort((one, other) => one.from - other.from);
}

/**
 * The gaps with a label each.
 *
 * @param {{from: number, to: number}[]} gaps in milliseconds after `sentAt`.
 * @param {Object[]} interruptions of `interruptionsOf`.
 * @param {[number, number][]} breaks when the page's connection was broken, after `sentAt`.
 * @param {number} sentAt in milliseconds since 1970.
 */
export function labelled(gaps, interruptions, breaks, sentAt) {
  const reasons = reasonsOf(gaps, interruptions, sentAt);
  return gaps.map((gap) => {
    const length = duration(gap.to - gap.from);
    const interruption = reasons.get(gap);
    if (interruption) return { ...gap, kind: interruption.what, label: `${reasonOf(interruption)}, ${length}` };
    const isBroken = breaks.some(([from, to]) => from <= gap.to && to >= gap.from);
    const [kind, reason] = isBroken ? ["connection", "connection broken"] : [PAUSE, "pause"];
    return { ...gap, kind, label: `${reason}, ${length}` };
  });
}

/** Labels of gaps, those with a reason first. Pauses without one, of which a busy machine has many, share a label. */
export function labelsOf(gaps) {
  const labels = gaps.filter(({ kind }) => kind !== PAUSE).map(({ kind, label }) => ({ kind, label }));
  const pauses = gaps.filter(({ kind }) => kind === PAUSE);
  if (pauses.length > 1) {
    const longest = Math.max(...pauses.map(({ from, to }) => to - from));
    labels.push({ kind: PAUSE, label: `${pauses.length} pauses of up to ${duration(longest)}` });
  } else if (pauses.length) labels.push({ kind: PAUSE, label: pauses[0].label });
  return labels;
}

/** Whether a gap is a swap: another executor went on with the answer. */
export function isSwap({ kind }) {
  return kind === "lost" || kind === "left";
}

/** For each interruption the gap that it has most of its time in: one that lies beside it has another reason. */
function reasonsOf(gaps, interruptions, sentAt) {
  const reasons = new Map();
  for (const interruption of interruptions) {
    let best = null;
    let most = -TOLERANCE_MS;
    for (const gap of gaps) {
      const from = Math.max(interruption.from - sentAt, gap.from);
      const shared = Math.min(interruption.to - sentAt, gap.to) - from;
      if (shared > most) [best, most] = [gap, shared];
    }
    if (best && !reasons.has(best)) reasons.set(best, interruption);
  }
  return reasons;
}

function reasonOf({ what, before, after, isSame }) {
  if (what === "restored" && !before) return "scheduler restarted";
  if (what === "preempted" && isSame) return `preempted on ${before}`;
  const lead = what === "preempted" ? "preempted, " : what === "restored" ? "scheduler restarted, " : "";
  if (!after) return `${lead}${before} → waiting`;
  return `${lead}${before} → ${after}${before === after && !isSame ? " (restarted)" : ""}`;
}
