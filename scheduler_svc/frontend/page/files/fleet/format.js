// Numbers and times as people read them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const TENTHS = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** 1234 is "1,234". */
export function count(number) {
  return WHOLE.format(number);
}

/** A count with its noun: "1 sequence", "2 sequences". */
export function countOf(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** A rate: with a digit after the point while it is small. */
export function rate(number) {
  return number > 0 && number < 10 ? TENTHS.format(number) : WHOLE.format(number);
}

/** 0.625 is "63%". */
export function percent(part) {
  return `${Math.round(part * 100)}%`;
}

/** A time span with about two digits that matter. */
export function span(seconds) {
  if (seconds < 0) return `−${span(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 0.0095) return `${TENTHS.format(seconds * 1000)} ms`;
  if (seconds < 0.9995) return `${WHOLE.format(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${TENTHS.format(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return two(whole, 60, "min", 1, "s");
  if (whole < 86400) return two(whole, 3600, "h", 60, "min");
  return two(whole, 86400, "d", 3600, "h");
}

/** A span that grows while it is looked at: whole seconds, so that it changes once a second. */
export function waited(seconds) {
  return seconds < 1 ? "< 1 s" : seconds < 10 ? `${Math.floor(seconds)} s` : span(seconds);
}

/** The time of day, in the reader's time zone. */
export function clock(at) {
  return CLOCK.format(at * 1000);
}

function two(whole, large, largeUnit, small, smallUnit) {
  const rest = Math.floor((whole % large) / small);
  return `${Math.floor(whole / large)} ${largeUnit}${rest ? ` ${rest} ${smallUnit}` : ""}`;
}
