import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError } from "../../../scheduler_svc/frontend/page/files/api.js";
import { Column } from "../../../scheduler_svc/frontend/page/files/talk/column.js";
import { Conversation } from "../../../scheduler_svc/frontend/page/files/talk/conversation.js";
import { eventsOfAnswer, FakeApi, NOT_FOUND, response, written } from "./support.js";

const ABOUT = { model: "m", parameters: [
  { name: "temperature", kind: "number", default: 1, minimum: 0, maximum: 2 },
  { name: "continue_final_message", kind: "boolean", default: false }] };

/** A column whose service gives these answers; `ended()` waits for the next end of one. */
function talk(...answers) {
  const api = new FakeApi(...answers);
  api.lives = [];
  api.json = async (path) => {
    api.lives.push(path);
    throw NOT_FOUND;
  };
  const keeper = { note() {}, forget(messages) { keeper.forgotten = messages; } };
  const column = new Column(new Conversation(), { api, about: ABOUT, keeper });
  const ended = () => new Promise((resolve) => { column.on.ended = resolve; });
  return { column, api, keeper, ended };
}

function whole(...pieces) {
  return response(written(eventsOfAnswer(pieces)));
}

test("a request sends what was set, an id of its own, and asks for a stream that can be resumed", async () => {
  const { column, api, ended } = talk(whole("Hi", "!"));
  column.set("temperature", "0");
  column.setSystem("s");
  column.say("Hello");
  const answer = await ended();
  assert.deepEqual([answer.text, answer.state, answer.tokens, answer.figures.tokens], ["Hi!", "done", 2, 2]);
  const { request_id: id, ...body } = api.requests[0].body;
  assert.match(id, /^page-[0-9a-f]{24}$/);
  assert.deepEqual(body, {
    model: "m", messages: [{ role: "system", content: "s" }, { role: "user", content: "Hello" }], temperature: 0,
    stream: true, stream_options: { include_usage: true, continuous_usage_stats: true }, resumable: true });
  await new Promise((resolve) => setTimeout(resolve)); // it is asked when the answer has been shown
  assert.deepEqual(api.lives, [`page/requests/${id}`], "a swap may have been too short to be seen");
});

test("regenerating, editing and clearing forget what they take away", async () => {
  const { column, api, keeper, ended } = talk(() => whole("a"));
  column.say("one");
  const first = await ended();
  column.regenerate(first.key);
  const second = await ended();
  assert.deepEqual(keeper.forgotten, [first]);
  assert.notEqual(second.request, first.request);
  column.edit(column.conversation.messages[0].key, "two");
  const third = await ended();
  assert.deepEqual(keeper.forgotten, [second]);
  assert.deepEqual(api.requests.at(-1).body.messages, [{ role: "user", content: "two" }]);
  column.clear();
  assert.equal(keeper.forgotten.at(-1), third);
});

test("an answer goes on with the one before it", async () => {
  const { column, api, ended } = talk(() => whole("a"));
  column.say("");
  assert.equal(api.requests.length, 0);
  column.say("one");
  await ended();
  column.say("");
  await ended();
  assert.equal(api.requests[1].body.continue_final_message, true);
  assert.deepEqual(api.requests[1].body.messages.at(-1), { role: "assistant", content: "a" });
});

test("a refused request is asked anew", async () => {
  const { column, api, ended } = talk(new ApiError(429, "Full.", "queue_full"), whole("a"));
  column.say("one");
  const refused = await ended();
  assert.deepEqual([refused.state, refused.error], ["failed", { message: "Full.", status: 429, code: "queue_full" }]);
  column.retry(refused.key);
  const answer = await ended();
  assert.deepEqual([answer.text, column.conversation.messages.length, api.requests.length], ["a", 2, 2]);
});

test("an answer that another page has taken over is read on, not written anew", async () => {
  const events = eventsOfAnswer(["a", "b", "c"]);
  const taken = `${written(events.slice(0, 2), false)}data: {"error": {"message": "m", "code": "taken_over"}}\n\n`;
  const { column, api, ended } = talk(response(taken), response(written(events.slice(2))));
  column.say("one");
  const answer = await ended();
  assert.deepEqual([answer.state, answer.text], ["away", "a"]);
  column.retry(answer.key);
  assert.equal(await ended(), answer);
  assert.deepEqual([answer.state, answer.text], ["done", "abc"]);
  assert.equal(api.requests[1].path, `v1/requests/${answer.request}/events`);
  assert.equal(api.requests[1].headers["last-event-id"], "1");
});

test("a stopped answer keeps its text, and its request ends in the service", async () => {
  const bytes = new TextEncoder().encode(written(eventsOfAnswer(["a"]).slice(0, 2), false));
  const begun = new ReadableStream({ start: (controller) => controller.enqueue(bytes) });
  const { column, api, ended } = talk(({ signal, method }) => {
    if (method === "DELETE") return new Response(null, { status: 204 });
    const { readable, writable } = new TransformStream();
    begun.pipeTo(writable, { signal }).catch(() => {});
    return new Response(readable);
  });
  column.on.changed = (answer) => { if (answer.text === "a") column.stop(); };
  column.say("one");
  const answer = await ended();
  assert.deepEqual([answer.state, answer.text, column.isRunning], ["stopped", "a", false]);
  assert.ok(api.requests.some(({ method, path }) => method === "DELETE" && path === `v1/requests/${answer.request}`));
});

test("a page that comes back reads on with what it has stored", async () => {
  const events = eventsOfAnswer(["a", "b"]);
  const { column, api, ended } = talk(response(written(events.slice(2))));
  column.conversation.say("one");
  column.conversation.add({
    key: "k", role: "assistant", request: "page-1", sent: {}, text: "a", thought: "", calls: [], state: "running",
    lastEventId: "1", tokens: 1, sentAt: Date.now(), arrivals: [[1, 1]], breaks: [], gaps: [], figures: null,
    error: null });
  column.resume();
  const answer = await ended();
  assert.deepEqual([answer.text, answer.state, answer.breaks.length], ["ab", "done", 1]);
  assert.equal(api.requests[0].path, "v1/requests/page-1/events");
  assert.equal(api.requests[0].headers["last-event-id"], "1");
});
