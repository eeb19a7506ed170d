import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { ApiError } from "../../../scheduler_svc/frontend/page/files/api.js";
import { cancel, follow, RequestGone, ServiceAway } from "../../../scheduler_svc/frontend/page/files/talk/resume.js";
import {
  eventsOfAnswer, FakeApi, FakeClock, NO_EXECUTOR, NOT_FOUND, response, UNREACHABLE, written,
} from "./support.js";

const PIECES = ["Wär", "e", " es", " 🎭", " so", "."];
const EVENTS = eventsOfAnswer(PIECES);
const TEXT = PIECES.join("");

async function read(api, { signal = new AbortController().signal, clock = new FakeClock(), ...more } = {}) {
  const result = { text: "", ids: [], kinds: [] };
  for await (const part of follow({ api, id: "r", body: { request_id: "r" }, signal, ...more }, clock)) {
    result.kinds.push(part.kind);
    if (part.kind !== "chunk") continue;
    result.text += part.data.choices[0]?.delta.content ?? "";
    result.ids.push(part.id);
  }
  return result;
}

/** Serves the events behind the last one that the page has, as the real service does. */
function rest({ headers = {} }) {
  const index = EVENTS.findIndex(({ id }) => id === headers["last-event-id"]);
  return EVENTS.slice(index + 1);
}

test("an answer over one connection", async () => {
  const api = new FakeApi(response(written(EVENTS)));
  const { text, ids } = await read(api);
  assert.equal(text, TEXT);
  assert.deepEqual(ids, EVENTS.map(({ id }) => id));
  assert.deepEqual([api.requests[0].method, api.requests[0].path], ["POST", "v1/chat/completions"]);
});

test("connections that break after any byte: nothing is lost and nothing comes twice", async () => {
  const whole = written(EVENTS);
  const length = new TextEncoder().encode(whole).length;
  for (let cut = 0; cut < length; cut += 1) {
    const bytes = new TextEncoder().encode(whole).slice(0, cut);
    const broken = response("", {});
    const body = new ReadableStream({
      start(controller) {
        if (cut) controller.enqueue(bytes);
        if (cut % 2) controller.close();
      },
      pull(controller) {
        if (cut % 2 === 0) controller.error(new TypeError("network error"));
      },
    });
    const api = new FakeApi(new Response(body, broken), (request) => response(written(rest(request))));
    const { text, ids } = await read(api);
    assert.equal(text, TEXT, `cut at byte ${cut}`);
    assert.deepEqual(ids, EVENTS.map(({ id }) => id), `cut at byte ${cut}`);
  }
});

test("every connection breaks after one event", async () => {
  const api = new FakeApi((request) => {
    const events = rest(request);
    if (events.length === 1) return response(written(events));
    return response(written(events.slice(0, 1), false), { breaks: true });
  });
  const { text, kinds } = await read(api);
  assert.equal(text, TEXT);
  assert.equal(kinds.filter((kind) => kind === "broken").length, EVENTS.length - 1);
  assert.deepEqual(api.requests.map(({ method = "GET" }) => method), ["POST", ...Array(EVENTS.length - 1).fill("GET")]);
});

test("a reload goes on behind the last event that was stored", async () => {
  const api = new FakeApi((request) => response(written(rest(request))));
  const { text } = await read(api, { lastEventId: "3", mayBeKnown: true });
  assert.equal(text, PIECES.slice(3).join(""));
  assert.equal(api.requests[0].path, "v1/requests/r/events");
});

test("a request that the service never had is sent again, one that it has is read", async () => {
  const lost = new FakeApi(UNREACHABLE, NOT_FOUND, response(written(EVENTS)));
  assert.equal((await read(lost)).text, TEXT);
  assert.deepEqual(lost.requests.map(({ method = "GET" }) => method), ["POST", "GET", "POST"]);

  const exists = new ApiError(409, "It is in use.", "request_exists");
  const late = new FakeApi(UNREACHABLE, NOT_FOUND, exists, (request) => response(written(rest(request))));
  assert.equal((await read(late)).text, TEXT);
  assert.deepEqual(late.requests.map(({ method = "GET" }) => method), ["POST", "GET", "POST", "GET"]);
});

test("the service is away for some seconds", async () => {
  const clock = new FakeClock();
  const begun = response(written(EVENTS.slice(0, 3), false), { breaks: true });
  const api = new FakeApi(begun, UNREACHABLE, UNREACHABLE, UNREACHABLE, NO_EXECUTOR, UNREACHABLE,
    (request) => response(written(rest(request))));
  assert.equal((await read(api, { clock })).text, TEXT);
  assert.deepEqual(clock.waits, [200, 400, 800, 1600, 2000, 2000]);
});

test("the service is away for more than a minute", async () => {
  const clock = new FakeClock();
  const api = new FakeApi(response(written(EVENTS.slice(0, 3), false), { breaks: true }), UNREACHABLE);
  await assert.rejects(read(api, { clock }), ServiceAway);
  assert.ok(clock.at > 60_000 && clock.at < 65_000);
});

test("a request that is gone", async () => {
  const api = new FakeApi(response(written(EVENTS.slice(0, 3), false)), NOT_FOUND);
  await assert.rejects(read(api), RequestGone);
});

test("a new request that is refused is told at once", async () => {
  for (const error of [NO_EXECUTOR, new ApiError(400, "Wrong."), new ApiError(429, "Full.", "queue_full")]) {
    const api = new FakeApi(error);
    await assert.rejects(read(api), error);
    assert.equal(api.requests.length, 1);
  }
});

test("errors within a stream: the request's own end it, those of a frontend that stops do not", async () => {
  const begin = written(EVENTS.slice(0, 2), false);
  const failing = (code) => response(`${begin}data: {"error": {"message": "m", "code": "${code}"}}\n\n`);
  await assert.rejects(read(new FakeApi(failing("capacity_lost"))), { code: "capacity_lost", message: "m" });
  await assert.rejects(read(new FakeApi(failing("taken_over"))), { code: "taken_over" });
  const api = new FakeApi(failing("unavailable"), (request) => response(written(rest(request))));
  assert.equal((await read(api)).text, TEXT);
});

test("an attach of one's own that was lost on its way takes over once", async () => {
  const taken = response('data: {"error": {"message": "m", "code": "taken_over"}}\n\n');
  const begun = response(written(EVENTS.slice(0, 3), false), { breaks: true });
  const api = new FakeApi(begun, UNREACHABLE, taken, (request) => response(written(rest(request))));
  assert.equal((await read(api)).text, TEXT);
});

test("a connection that is silent for too long is given up, and the answer goes on over another", async () => {
  mock.timers.enable({ apis: ["setInterval"] });
  try {
    const clock = new FakeClock();
    const silent = ({ signal }) => {
      const body = new ReadableStream({
        start(controller) {
          controller.enqueue(new TextEncoder().encode(written(EVENTS.slice(0, 2), false)));
          signal.addEventListener("abort", () => controller.error(signal.reason));
        },
      });
      setImmediate(() => {
        clock.at += 40_000;
        mock.timers.tick(3000);
      });
      return new Response(body);
    };
    const api = new FakeApi(silent, (request) => response(written(rest(request))));
    assert.equal((await read(api, { clock })).text, TEXT);
    assert.equal(api.requests.length, 2);
  } finally {
    mock.timers.reset();
  }
});

test("the reader stops", async () => {
  const abort = new AbortController();
  const api = new FakeApi(() => {
    abort.abort();
    return new DOMException("aborted", "AbortError");
  });
  assert.equal((await read(api, { signal: abort.signal })).text, "");
  assert.equal(api.requests.length, 1);
});

test("a request is cancelled also if the service is away for a moment", async () => {
  const api = new FakeApi(UNREACHABLE, UNREACHABLE, new Response(null, { status: 204 }));
  await cancel(api, "r", new FakeClock());
  assert.deepEqual(api.requests.map(({ method, path }) => `${method} ${path}`), Array(3).fill("DELETE v1/requests/r"));
  const gone = new FakeApi(NOT_FOUND);
  await cancel(gone, "r", new FakeClock());
  assert.equal(gone.requests.length, 1);
});
