// Server-sent events: whole, wherever the network cuts them.

import assert from "node:assert/strict";
import { test } from "node:test";

import { EventParser, eventsOf } from "../../scheduler_svc/frontend/page/files/sse.js";

function parse(...pieces) {
  const parser = new EventParser();
  return pieces.flatMap((piece) => parser.feed(piece));
}

const message = (data, id = null) => ({ event: "message", data, id });

const STREAM =
  ": hello\n\nid: 7\ndata: one\n\nevent: status\ndata: {\"a\":1}\ndata:  two\n\ndata\n\nid\ndata:three: 3 \n\n: end\n\n";
const EVENTS = [
  message("one", "7"),
  { event: "status", data: "{\"a\":1}\n two", id: null },
  message(""),
  message("three: 3 ", ""),
];

for (const [name, end] of [["LF", "\n"], ["CRLF", "\r\n"], ["CR", "\r"]]) {
  const stream = STREAM.replaceAll("\n", end);
  // The last CR may be half of a CRLF, so the parser waits for what comes after it.
  const whole = name === "CR" ? `${stream}:` : stream;

  test(`${name}: whole`, () => assert.deepEqual(parse(whole), EVENTS));

  test(`${name}: cut in two at every position`, () => {
    for (let cut = 0; cut <= whole.length; cut++) {
      assert.deepEqual(parse(whole.slice(0, cut), whole.slice(cut)), EVENTS, `cut at ${cut}`);
    }
  });

  test(`${name}: one character at a time`, () => assert.deepEqual(parse(...whole), EVENTS));
}

test("an event is complete with its empty line, not before", () => {
  const parser = new EventParser();
  assert.deepEqual(parser.feed("data: x\n"), []);
  assert.deepEqual(parser.feed("\n"), [message("x")]);
});

test("an event without data is none, and leaves nothing to the next one", () => {
  assert.deepEqual(parse("event: status\nid: 3\n\ndata: x\n\n"), [message("x")]);
});

test("unknown fields and comments are passed over", () => {
  assert.deepEqual(parse("retry: 3\nweather: fair\n: no\ndata: x\n\n"), [message("x")]);
});

test("one space after the colon belongs to the syntax, a second one to the value", () => {
  assert.deepEqual(parse("data:  x\n\n"), [message(" x")]);
});

test("what no empty line ended is no event", () => assert.deepEqual(parse("data: x"), []));

test("many events in one piece", () => {
  const events = parse("data: x\n\n".repeat(1000));
  assert.equal(events.length, 1000);
});

/** A response whose body comes in these pieces of bytes. */
function response(pieces, { error } = {}) {
  let cancelled = false;
  const body = new ReadableStream({
    pull(controller) {
      if (pieces.length) controller.enqueue(pieces.shift());
      else if (error) controller.error(error);
      else controller.close();
    },
    cancel() {
      cancelled = true;
    },
  }, { highWaterMark: 0 });
  return { body, get cancelled() { return cancelled; } };
}

const bytes = (text) => new TextEncoder().encode(text);

async function all(iterator) {
  const events = [];
  for await (const event of iterator) events.push(event);
  return events;
}

test("characters that a cut goes through", async () => {
  const whole = bytes("data: é, 日本, 🦉\n\n");
  for (let cut = 1; cut < whole.length; cut++) {
    const events = await all(eventsOf(response([whole.slice(0, cut), whole.slice(cut)])));
    assert.deepEqual(events, [message("é, 日本, 🦉")], `cut at ${cut}`);
  }
});

test("comments are heard, though they are no events", async () => {
  let heard = 0;
  assert.deepEqual(await all(eventsOf(response([bytes(": a\n\n"), bytes(": b\n\n")]), () => heard++)), []);
  assert.equal(heard, 2);
});

test("a connection that breaks is an error, after the events that had come", async () => {
  const events = [];
  const reading = (async () => {
    for await (const event of eventsOf(response([bytes("data: x\n\ndata: half")], { error: new Error("gone") }))) {
      events.push(event);
    }
  })();
  await assert.rejects(reading, /gone/);
  assert.deepEqual(events, [message("x")]);
});

test("who stops reading ends the answer", async () => {
  const endless = response([bytes("data: x\n\n"), bytes("data: y\n\n"), bytes("data: z\n\n")]);
  for await (const event of eventsOf(endless)) {
    assert.deepEqual(event, message("x"));
    break;
  }
  await new Promise((resolve) => setTimeout(resolve, 0));
  assert.ok(endless.cancelled);
});
