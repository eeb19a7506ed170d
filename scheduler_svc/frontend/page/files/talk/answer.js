// An answer while it comes: chunks of a chat are put together to its text, thought, calls and numbers.

/**
 * A new answer, as it is kept in the tab: plain data.
 *
 * @param {string} request the id that the page chose for its request.
 * @param {Object} sent the request's parameters, without its messages.
 * @param {number} at when it is sent, in milliseconds since 1970.
 * @param {{key: string, continues?: boolean}} place `continues`: it goes on with the answer before it.
 */
export function newAnswer(request, sent, at, { key, continues = false }) {
  return {
    key, role: "assistant", request, sent, continues,
    text: "", thought: "", calls: [], finish: "", state: "running", error: null,
    lastEventId: "", promptTokens: 0, cachedTokens: 0, tokens: 0,
    sentAt: at, arrivals: [], breaks: [], gaps: [], figures: null,
  };
}

/**
 * Put a chunk that came at a time to its answer. The event's id is noted with the text, so that what is stored of both
 * always fits together.
 */
export function take(answer, chunk, id, at) {
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  answer.text += delta.content ?? "";
  answer.thought += delta.reasoning_content ?? delta.reasoning ?? "";
  for (const part of delta.tool_calls ?? []) takeCall(answer.calls, part);
  if (choice?.finish_reason) answer.finish = choice.finish_reason;
  answer.lastEventId = id;
  count(answer, chunk.usage, saysSomething(delta), at);
}

/** Whether JSON was asked for, so that the text can be shown as such. */
export function asksForJson(sent) {
  const format = sent.response_format?.type;
  if (format === "json_object" || format === "json_schema") return true;
  const outputs = sent.structured_outputs ?? {};
  return Boolean(outputs.json ?? outputs.json_object ?? null);
}

function takeCall(calls, part) {
  const index = part.index ?? 0;
  while (calls.length <= index) calls.push({ id: "", name: "", arguments: "" });
  const call = calls[index];
  call.id ||= part.id ?? "";
  call.name += part.function?.name ?? "";
  call.arguments += part.function?.arguments ?? "";
}

/** A chunk may have several tokens, or none: the usage tells. Without a usage, a chunk that says something is one. */
function count(answer, usage, isSomething, at) {
  const tokens = usage ? usage.completion_tokens : answer.tokens + (isSomething ? 1 : 0);
  if (usage) {
    answer.promptTokens = usage.prompt_tokens;
    answer.cachedTokens = usage.prompt_tokens_details?.cached_tokens ?? 0;
  }
  if (tokens <= answer.tokens) return;
  answer.arrivals.push([Math.round(10 * (at - answer.sentAt)) / 10, tokens - answer.tokens]);
  answer.tokens = tokens;
}

function saysSomething(delta) {
  return Boolean(delta.content || delta.reasoning_content || delta.reasoning || delta.tool_calls?.length);
}
