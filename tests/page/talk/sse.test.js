import assert from "node:assert/strict";
import { test } from "node:test";

import { EventParser } from "../../../scheduler_svc/frontend/page/files/sse.js";

const STREAM = ': keep-alive\n\ndata: {"a": 1}\nid: 17!\n\nevent: status\r\n'
  + 'data: one\r\ndata:two\r\n\r\ndata: [DONE]\n\n';
const EVENTS = [
  { event: "message", data: '{"a": 1}', id: "17!" },
  { event: "status", data: "one\ntwo", id: null },
  { event: "message", data: "[DONE]", id: null },
];

test("events of a stream that is cut at every place", () => {
  for (let cut = 0; cut <= STREAM.length; cut += 1) {
    const parser = new EventParser();
    const events = [...parser.feed(STREAM.slice(0, cut)), ...parser.feed(STREAM.slice(cut))];
    assert.deepEqual(events, EVENTS, `cut at ${cut}`);
  }
});

test("events of a stream that comes by single characters", () => {
  const parser = new EventParser();
  assert.deepEqual([...STREAM].flatMap((character) => parser.feed(character)), EVENTS);
});

test("an event without its empty line is not there yet", () => {
  assert.deepEqual(new EventParser().feed("data: half\nid: 3\n"), []);
});
