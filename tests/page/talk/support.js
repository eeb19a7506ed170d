// What several tests of the Talk view need: a service that breaks where it is told to, and a clock that does not wait.

import { ApiError } from "../../../scheduler_svc/frontend/page/files/api.js";

/** A clock on which waiting takes no time but counts. */
export class FakeClock {
  at = 0;
  waits = [];

  now = () => this.at;

  wait = async (ms) => {
    this.waits.push(ms);
    this.at += ms;
  };
}

export function chunk(content, tokens, more = {}) {
  return {
    choices: [{ index: 0, delta: { content }, finish_reason: null, ...more }],
    usage: { prompt_tokens: 3, completion_tokens: tokens },
  };
}

/** An answer of these pieces as events with ids, as the service sends it. */
export function eventsOfAnswer(pieces) {
  const chunks = ["", ...pieces].map((piece, index) => (
    { data: JSON.stringify(chunk(piece, index)), id: String(index) }
  ));
  return [...chunks, { data: JSON.stringify({ choices: [] }), id: "end" }];
}

export function written(events, isWhole = true) {
  const text = events.map(({ data, id }) => `data: ${data}\nid: ${id}\n\n`).join("");
  return isWhole ? `${text}data: [DONE]\n\n` : text;
}

/** A response whose body is this text, in pieces, and then ends or breaks. */
export function response(text, { breaks = false, size = 7 } = {}) {
  const bytes = new TextEncoder().encode(text);
  let place = 0;
  const body = new ReadableStream({
    pull(controller) {
      if (place < bytes.length) controller.enqueue(bytes.slice(place, place += size));
      else if (breaks) controller.error(new TypeError("network error"));
      else controller.close();
    },
  });
  return new Response(body);
}

/** A service with scripted answers: each is a response, an error, or a function of the request that gives one. */
export class FakeApi {
  requests = [];

  constructor(...answers) {
    this.answers = answers;
  }

  async send(path, options = {}) {
    this.requests.push({ path, ...options });
    const answer = this.answers.length > 1 ? this.answers.shift() : this.answers[0];
    const result = typeof answer === "function" ? answer({ path, ...options }) : answer;
    if (result instanceof Error) throw result;
    return result;
  }
}

export const UNREACHABLE = new ApiError(0, "The service cannot be reached.");
export const NOT_FOUND = new ApiError(404, "There is no request.", "request_not_found");
export const NO_EXECUTOR = new ApiError(503, "There is no executor.", "unavailable");
