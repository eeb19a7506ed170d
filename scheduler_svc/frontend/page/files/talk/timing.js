// When tokens came: gaps, rates and ticks. Times are milliseconds after the request was sent.

const LEAST_GAP_MS = 100;
const GAP_FACTOR = 5;
/** Places on the axis of an answer that has ended: more of them would not be seen as separate ticks. */
const PLACES = 250;

/** @returns {number} the middle of the numbers; of two middles the lower one, 0 of none. */
export function median(numbers) {
  if (!numbers.length) return 0;
  return Float64Array.from(numbers).sort()[(numbers.length - 1) >> 1];
}

/** Pauses between tokens that are much longer than usual. Arrivals are `[time, tokens]` each, in order. */
export function gapsOf(arrivals) {
  const limit = Math.max(LEAST_GAP_MS, GAP_FACTOR * median(intervals(arrivals)));
  const gaps = [];
  for (let index = 1; index < arrivals.length; index += 1) {
    const [from, to] = [arrivals[index - 1][0], arrivals[index][0]];
    if (to - from > limit) gaps.push({ from, to });
  }
  return gaps;
}

function intervals(arrivals) {
  return arrivals.slice(1).map(([at], index) => at - arrivals[index][0]);
}

/** The numbers below an answer. `rate`: tokens/s after the first arrival, null with fewer than two. */
export function figuresOf(arrivals) {
  const tokens = arrivals.reduce((sum, [, several]) => sum + several, 0);
  if (!arrivals.length) return { firstMs: null, rate: null, tokens, endMs: 0 };
  const [firstMs, firstTokens] = arrivals[0];
  const endMs = arrivals.at(-1)[0];
  const rate = endMs > firstMs ? (1000 * (tokens - firstTokens)) / (endMs - firstMs) : null;
  return { firstMs, rate, tokens, endMs };
}

/** Fewer arrivals that look the same on the axis: an answer that has ended is stored with these. */
export function thinned(arrivals, endMs, places = PLACES) {
  const thin = [];
  let place = -1;
  for (const [at, tokens] of arrivals) {
    const own = Math.floor((at / Math.max(endMs, 1)) * places);
    if (own === place) thin[thin.length - 1][1] += tokens;
    else thin.push([at, tokens]);
    place = own;
  }
  return thin;
}

/** A round number of milliseconds for the end of an axis that grows, so that it does not move with each token. */
export function roundEnd(ms) {
  for (let unit = 100; ; unit *= 10) {
    for (const factor of [1, 2, 5]) if (ms <= unit * factor) return unit * factor;
  }
}

/** Lines of an SVG path, one for each place of the axis where tokens came; higher where several came at once. */
export function tickPath(arrivals, endMs, { width, height }) {
  const heights = new Map();
  for (const [at, tokens] of arrivals) {
    const x = Math.min(width, Math.round((at / Math.max(endMs, 1)) * width));
    heights.set(x, (heights.get(x) ?? 0) + tokens);
  }
  let path = "";
  for (const [x, tokens] of heights) {
    path += `M${x} ${height}V${Math.max(0, Math.round(height * (0.5 - 0.1 * (tokens - 1))))}`;
  }
  return path;
}

/** Boxes of an SVG path, one for each gap. */
export function gapPath(gaps, endMs, { width, height }) {
  const place = (ms) => Math.round((ms / Math.max(endMs, 1)) * width);
  return gaps.map(({ from, to }) => (
    `M${place(from)} 0H${Math.max(place(to), place(from) + 2)}V${height}H${place(from)}Z`
  )).join("");
}

/** A length of time with its unit: `120 ms`, `3.4 s`, `2 min 5 s`. */
export function duration(ms) {
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/** What the ticks show, as a sentence for those who do not see them. */
export function summaryOf({ firstMs, rate, tokens, endMs }, labels) {
  if (firstMs === null) return "No token so far.";
  const speed = rate === null ? "" : `, ${rate.toFixed(1)} tokens per second`;
  const noun = tokens === 1 ? "token" : "tokens";
  const begin = `${tokens} ${noun} in ${duration(endMs)}, the first after ${duration(firstMs)}${speed}. `;
  return begin + (labels.length ? `Gaps: ${labels.join("; ")}.` : "No gaps.");
}
