// A column's conversation: its messages in order, what editing does to them, and how they are sent.

/**
 * @typedef {Object} Message
 * @property {string} key its own name in this tab.
 * @property {"user"|"assistant"|"tool"} role answers, `assistant`, have more: see `newAnswer` in answer.js.
 * @property {string} text
 * @property {string} [callId] of a tool's result: the call that it answers.
 * @property {string} [name] of a tool's result: the tool.
 */

/** A random name: `crypto.randomUUID` is missing where the page comes over plain HTTP from another machine. */
export function randomName() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The messages of a column, with its system prompt and what the reader typed into its settings. */
export class Conversation {
  /** @param {{system?: string, values?: Object<string, string>, messages?: Message[]}} [stored] */
  constructor({ system = "", values = {}, messages = [] } = {}) {
    this.system = system;
    this.values = { ...values };
    this.messages = [...messages];
  }

  get last() {
    return this.messages.at(-1) ?? null;
  }

  /** The answer that comes at the moment, or null. */
  get running() {
    return this.last?.role === "assistant" && this.last.state === "running" ? this.last : null;
  }

  /** The calls of the last answer, while they wait for results. */
  get openCalls() {
    return this.last?.role === "assistant" && this.last.state !== "running" ? this.last.calls : [];
  }

  /** Whether an answer would go on with the last message, the assistant's. */
  get canGoOn() {
    return this.last?.role === "assistant" && !this.running && this.last.text !== "" && !this.last.calls.length;
  }

  indexOf(key) {
    return this.messages.findIndex((message) => message.key === key);
  }

  say(text) {
    const message = { key: randomName(), role: "user", text };
    this.messages.push(message);
    return message;
  }

  /** Results of the last answer's calls, in the calls' order. */
  giveResults(texts) {
    const results = this.openCalls.map((call, index) => (
      { key: randomName(), role: "tool", callId: call.id, name: call.name, text: texts[index] ?? "" }
    ));
    this.messages.push(...results);
    return results;
  }

  add(message) {
    this.messages.push(message);
    return message;
  }

  /** Change a message of the reader's. Returns the messages behind it, which are no longer in the conversation. */
  edit(key, text) {
    const index = this.indexOf(key);
    this.messages[index].text = text;
    return this.messages.splice(index + 1);
  }

  /** Take away an answer and what follows it. Returns these messages. */
  takeBack(key) {
    return this.messages.splice(this.indexOf(key));
  }

  clear() {
    return this.messages.splice(0);
  }

  /** What a request sends of the messages before an index. */
  wire(end = this.messages.length) {
    const sent = this.system === "" ? [] : [{ role: "system", content: this.system }];
    for (const message of this.messages.slice(0, end)) {
      if (message.role === "user") sent.push({ role: "user", content: message.text });
      else if (message.role === "tool") {
        sent.push({ role: "tool", tool_call_id: message.callId, content: message.text });
      } else if (message.continues && sent.at(-1)?.role === "assistant") {
        sent[sent.length - 1] = merged(sent.at(-1), message);
      } else if (message.text || message.calls.length) sent.push(ofAssistant(message));
    }
    return sent;
  }
}

function ofAssistant(answer) {
  const sent = { role: "assistant", content: answer.text };
  if (answer.thought) sent.reasoning_content = answer.thought;
  if (answer.calls.length) {
    sent.tool_calls = answer.calls.map((call) => (
      { id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }
    ));
  }
  return sent;
}

/** An answer that went on with the message before it is a part of that message. */
function merged(before, answer) {
  const sent = ofAssistant(answer);
  return { ...before, ...sent, content: before.content + sent.content };
}
