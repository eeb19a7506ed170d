// Requests of the page: the tab's key, and errors in the API's words.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

const KEY = "baton.key";
let stored, sent, answer;

globalThis.sessionStorage = {
  getItem: (name) => stored.get(name) ?? null,
  setItem: (name, value) => stored.set(name, String(value)),
  removeItem: (name) => stored.delete(name),
};
globalThis.location = { origin: "https://baton.example", pathname: "/below/" };
globalThis.fetch = async (address, options) => {
  sent.push({ address: address.href, ...options });
  return answer(options);
};
const { Api, ApiError } = await import("../../scheduler_svc/frontend/page/files/api.js");

beforeEach(() => {
  stored = new Map();
  sent = [];
  answer = () => Response.json({ ok: true });
});

/** The error that a request ends with. */
async function failure(api = new Api(), options = {}) {
  try {
    await api.send("v1/models", options);
  } catch (error) {
    return error;
  }
  return assert.fail("it did not fail");
}

test("without a key none is sent", async () => {
  assert.deepEqual(await new Api().json("page/about"), { ok: true });
  assert.deepEqual(sent[0], {
    address: "https://baton.example/below/page/about", method: "GET", headers: {}, signal: undefined, cache: "no-store",
    credentials: "same-origin", redirect: "manual",
  });
});

test("the tab's key is sent, kept and removed", async () => {
  const api = new Api();
  api.key = "sk-1";
  await api.json("v1/models");
  assert.deepEqual(sent[0].headers, { "x-api-key": "sk-1" }, "`Authorization` is left to a proxy's login");
  assert.ok(!stored.has(KEY), "not before the service has taken it");
  api.keepKey();
  assert.equal(stored.get(KEY), "sk-1");
  assert.equal(new Api().key, "sk-1");
  api.key = "";
  api.keepKey();
  await api.json("v1/models");
  assert.deepEqual(sent[1].headers, {});
  assert.ok(!stored.has(KEY));
});

test("a body is JSON, and headers of a request are added", async () => {
  const headers = { "last-event-id": "3" };
  await new Api().json("v1/x", { method: "POST", body: { a: null, b: "é" }, headers });
  assert.equal(sent[0].method, "POST");
  assert.deepEqual(JSON.parse(sent[0].body), { a: null, b: "é" });
  assert.deepEqual(sent[0].headers, { "content-type": "application/json", "last-event-id": "3" });
  assert.deepEqual(headers, { "last-event-id": "3" }, "an argument is not written into");
});

test("no content is null", async () => {
  answer = () => new Response(null, { status: 204 });
  assert.equal(await new Api().json("v1/x"), null);
});

test("an error as the API words it", async () => {
  answer = () => Response.json(
    { error: { message: "Too many.", code: "rate_limited" } },
    { status: 429, headers: { "retry-after": "3" } },
  );
  const error = await failure();
  assert.ok(error instanceof ApiError);
  assert.deepEqual([error.status, error.message, error.code, error.retryAfter], [429, "Too many.", "rate_limited", 3]);
});

for (const body of ["<h1>Bad gateway</h1>", "", "{}", "null", "[]", '{"error": null}', '{"error": "text"}', '"text"']) {
  test(`an error of something else on the way: ${body}`, async () => {
    answer = () => new Response(body, { status: 502 });
    const error = await failure();
    assert.ok(error instanceof ApiError, String(error));
    assert.deepEqual([error.status, error.code, error.retryAfter], [502, "", 0]);
    assert.match(error.message, /status 502/);
  });
}

test("a date as Retry-After is no number", async () => {
  answer = () => new Response("", { status: 503, headers: { "retry-after": "Thu, 26 Nov 2026 00:00:00 GMT" } });
  assert.equal((await failure()).retryAfter, 0);
});

test("no answer is status 0", async () => {
  answer = () => { throw new TypeError("Failed to fetch"); };
  const error = await failure();
  assert.ok(error instanceof ApiError);
  assert.equal(error.status, 0);
});

test("an abort is thrown as it is", async () => {
  const controller = new AbortController();
  answer = () => {
    controller.abort();
    throw controller.signal.reason;
  };
  const error = await failure(new Api(), { signal: controller.signal });
  assert.equal(error.name, "AbortError");
});

test("an answer that ends in the middle of an error still has a status", async () => {
  answer = () => new Response(new ReadableStream({ start: (stream) => stream.error(new Error("cut")) }), { status: 500 });
  const error = await failure();
  assert.ok(error instanceof ApiError);
  assert.equal(error.status, 500);
});

test("a wrong key is told to the frame, other errors are not", async () => {
  const api = new Api();
  let asked = 0;
  api.onUnauthorized = () => asked++;
  answer = () => Response.json({ error: { message: "No." } }, { status: 403 });
  await failure(api);
  assert.equal(asked, 0);
  answer = () => Response.json({ error: { message: "No.", code: "invalid_api_key" } }, { status: 401 });
  assert.equal((await failure(api)).status, 401);
  assert.equal(asked, 1);
});

/** What `fetch` answers to a redirection that it is not to follow. */
const REDIRECTION = { ok: false, type: "opaqueredirect", status: 0, headers: new Headers(), text: async () => "" };

for (const [name, made] of [["a redirection", () => REDIRECTION], ["a 401", () => new Response("", { status: 401 })]]) {
  test(`${name} by a proxy asks for a login, not for a key`, async () => {
    const api = new Api();
    api.onUnauthorized = () => assert.fail("it is not about the key");
    answer = made;
    const error = await failure(api);
    assert.deepEqual([error.status, error.mayPass], [401, false]);
    assert.match(error.message, /log in: load this page again/);
  });
}

test("what may pass by itself", () => {
  for (const status of [0, 429, 500, 502, 503]) assert.ok(new ApiError(status, "").mayPass, status);
  for (const status of [400, 401, 403, 404, 409]) assert.ok(!new ApiError(status, "").mayPass, status);
});
