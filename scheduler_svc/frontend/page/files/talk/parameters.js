// The parameters of a chat: what they are called, whether what the reader typed is right, and what is sent of it.

/** Settings in groups: a list of 28 is hard to read. What no group names comes last. */
const GROUPS = [
  ["Sampling", ["temperature", "top_p", "top_k", "min_p", "seed"]],
  ["Length and end", [
    "max_completion_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output",
    "skip_special_tokens", "continue_final_message"]],
  ["Penalties and tokens", [
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "bad_words", "allowed_token_ids"]],
  ["Tools", ["tools", "tool_choice", "parallel_tool_calls"]],
  ["Form of the answer", ["response_format", "structured_outputs"]],
  ["Thinking and template", [
    "reasoning_effort", "thinking_token_budget", "include_reasoning", "chat_template_kwargs"]],
];
const OTHERS = "Service";

/** Names that their words alone would not make readable. */
const LABELS = {
  top_p: "Top p", top_k: "Top k", min_p: "Min p", max_completion_tokens: "Max tokens", min_tokens: "Min tokens",
  stop: "Stop strings", stop_token_ids: "Stop token IDs", ignore_eos: "Ignore stop tokens",
  include_stop_str_in_output: "Keep the stop string", continue_final_message: "Continue the last message",
  allowed_token_ids: "Allowed token IDs", parallel_tool_calls: "Several calls at once",
  chat_template_kwargs: "Template variables", timeout_s: "Timeout in seconds", tool_choice: "Choice of tools",
};

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const INTEGER = /^[+-]?\d+$/;
const BARE_WORD = /^[a-z_]+$/i;

/** A name that people read. */
export function labelOf(name) {
  const words = name.replaceAll("_", " ");
  return LABELS[name] ?? words[0].toUpperCase() + words.slice(1);
}

/** The parameters by group, without empty groups: `[[title, parameters], ...]`. */
export function grouped(parameters) {
  const rest = new Map(parameters.map((parameter) => [parameter.name, parameter]));
  const groups = [];
  for (const [title, names] of GROUPS) {
    const found = names.filter((name) => rest.has(name)).map((name) => rest.get(name));
    names.forEach((name) => rest.delete(name));
    if (found.length) groups.push([title, found]);
  }
  if (rest.size) groups.push([OTHERS, [...rest.values()]]);
  return groups;
}

/** What the server takes where nothing is set, as a text. */
export function defaultOf({ default: value }) {
  if (value === null || value === undefined) return "not set";
  if (value === "" || (typeof value === "object" && !Object.keys(value).length)) return "none";
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** What the text of a control means: `{value}`, `{problem}` if it is wrong, or `{}` if nothing is set. */
export function read(parameter, text) {
  if (text === "" || (parameter.kind !== "text" && text.trim() === "")) return {};
  switch (parameter.kind) {
    case "number": return readNumber(parameter, text.trim());
    case "integer": return readInteger(parameter, text.trim());
    case "boolean": return readBoolean(text);
    case "choice": return readChoice(parameter, text);
    case "strings": return readStrings(text);
    case "json": return readJson(parameter, text);
    default: return { value: text };
  }
}

/** What a request sends, only what the reader set, and the problems by name. */
export function readAll(parameters, values) {
  const body = {};
  const problems = {};
  for (const parameter of parameters) {
    const result = read(parameter, values[parameter.name] ?? "");
    if (result.problem) problems[parameter.name] = result.problem;
    else if (result.value !== undefined) body[parameter.name] = result.value;
  }
  return { body, problems };
}

function readNumber(parameter, text) {
  if (!NUMBER.test(text)) return { problem: `Not a number: ${range("a number", parameter)}.` };
  return within(parameter, Number(text), "a number");
}

function readInteger(parameter, text) {
  if (!INTEGER.test(text)) return { problem: `Not a whole number: ${range("a whole number", parameter)}.` };
  const value = Number(text);
  if (!Number.isSafeInteger(value)) {
    return { problem: `JavaScript has no exact number beyond ±${Number.MAX_SAFE_INTEGER}; take one within.` };
  }
  return within(parameter, value, "a whole number");
}

function within(parameter, value, noun) {
  const { minimum = -Infinity, maximum = Infinity } = parameter;
  if (value >= minimum && value <= maximum && Number.isFinite(value)) return { value };
  return { problem: `Out of range: ${range(noun, parameter)}.` };
}

function range(noun, { minimum, maximum }) {
  if (minimum !== undefined && maximum !== undefined) return `${noun} from ${minimum} to ${maximum}`;
  if (minimum !== undefined) return `${noun} of at least ${minimum}`;
  return maximum === undefined ? noun : `${noun} of at most ${maximum}`;
}

function readBoolean(text) {
  return text === "true" || text === "false" ? { value: text === "true" } : { problem: "True or false." };
}

function readChoice({ choices }, text) {
  const value = choices.find((choice) => String(choice) === text);
  return value === undefined ? { problem: `One of ${choices.join(", ")}.` } : { value };
}

/** One string a line. A line in quotes is a JSON string, as a line break could not be written otherwise. */
function readStrings(text) {
  const value = [];
  for (const line of text.split("\n").filter((each) => each !== "")) {
    if (!line.startsWith('"')) {
      value.push(line);
      continue;
    }
    try {
      value.push(JSON.parse(line));
    } catch (error) {
      return { problem: `A line that begins with a quote is a JSON string: ${error.message}` };
    }
    if (typeof value.at(-1) !== "string") return { problem: "A line that begins with a quote is one JSON string." };
  }
  return value.length ? { value } : {};
}

/** JSON. The default tells whether an object or a list is asked for; where it is null anything may be right. */
function readJson(parameter, text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    if (BARE_WORD.test(text.trim())) return { problem: `Not JSON: a string needs quotes, "${text.trim()}".` };
    return { problem: `Not JSON: ${error.message}` };
  }
  const example = parameter.default;
  if (Array.isArray(example) && !Array.isArray(value)) return { problem: "This has to be a list: [...]." };
  if (isObject(example) && !isObject(value)) return { problem: "This has to be an object: {...}." };
  return { value };
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
