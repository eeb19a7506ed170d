import assert from "node:assert/strict";
import { test } from "node:test";

import {
  defaultOf, grouped, labelOf, read, readAll,
} from "../../../scheduler_svc/frontend/page/files/talk/parameters.js";

const TEMPERATURE = { name: "temperature", kind: "number", default: 0.7, minimum: 0, maximum: 2 };
const SEED = { name: "seed", kind: "integer", default: null, minimum: -(2 ** 63), maximum: 2 ** 63 };
const STOP = { name: "stop", kind: "strings", default: [] };
const TOOLS = { name: "tools", kind: "json", default: [] };
const KWARGS = { name: "chat_template_kwargs", kind: "json", default: {} };
const FORMAT = { name: "response_format", kind: "json", default: null };
const EFFORT = { name: "reasoning_effort", kind: "choice", default: null, choices: ["low", "high"] };
const IGNORE = { name: "ignore_eos", kind: "boolean", default: false };
const SALT = { name: "cache_salt", kind: "text", default: "" };

test("numbers", () => {
  for (const [text, value] of [["0.5", 0.5], [" 2 ", 2], [".25", 0.25], ["1e-3", 0.001], ["0", 0]]) {
    assert.deepEqual(read(TEMPERATURE, text), { value });
  }
  for (const text of ["2.1", "-0.1", "1e999"]) assert.match(read(TEMPERATURE, text).problem, /from 0 to 2/);
  for (const text of ["0,5", "hot", "0x1", "Infinity", "NaN", "1 2"]) {
    assert.match(read(TEMPERATURE, text).problem, /Not a number/);
  }
  assert.match(read({ kind: "number", minimum: 1 }, "0").problem, /at least 1/);
});

test("whole numbers", () => {
  assert.deepEqual(read(SEED, "-17"), { value: -17 });
  assert.match(read(SEED, "1.5").problem, /whole number/);
  assert.match(read(SEED, "9007199254740993").problem, /9007199254740991/);
  assert.match(read({ kind: "integer", minimum: 1, maximum: 5 }, "6").problem, /from 1 to 5/);
});

test("strings, one a line", () => {
  assert.deepEqual(read(STOP, "END\n\n two words "), { value: ["END", " two words "] });
  assert.deepEqual(read(STOP, '"\\n\\n"\nx'), { value: ["\n\n", "x"] });
  assert.match(read(STOP, '"open').problem, /JSON string/);
  assert.deepEqual(read(STOP, "\n"), {});
});

test("JSON, of the default's type", () => {
  assert.deepEqual(read(FORMAT, '{"type": "json_object"}'), { value: { type: "json_object" } });
  assert.deepEqual(read(FORMAT, '"auto"'), { value: "auto" });
  assert.match(read(FORMAT, "auto").problem, /needs quotes, "auto"/);
  assert.match(read(FORMAT, '{"a"').problem, /^Not JSON: /);
  assert.match(read(TOOLS, "{}").problem, /list/);
  assert.match(read(KWARGS, "[]").problem, /object/);
});

test("choices, booleans and texts", () => {
  assert.deepEqual(read(EFFORT, "high"), { value: "high" });
  assert.match(read(EFFORT, "huge").problem, /low, high/);
  assert.deepEqual(read(IGNORE, "false"), { value: false });
  assert.deepEqual(read(IGNORE, "true"), { value: true });
  assert.match(read(IGNORE, "yes").problem, /True or false/);
  assert.deepEqual(read(SALT, " a "), { value: " a " });
});

test("only what is set is sent", () => {
  const all = [TEMPERATURE, SEED, STOP, TOOLS, FORMAT, EFFORT, IGNORE, SALT];
  assert.deepEqual(readAll(all, {}), { body: {}, problems: {} });
  assert.deepEqual(readAll(all, { temperature: "0", seed: " ", ignore_eos: "false", unknown: "1" }),
    { body: { temperature: 0, ignore_eos: false }, problems: {} });
  const { body, problems } = readAll(all, { temperature: "9", tools: "[]" });
  assert.deepEqual(body, { tools: [] });
  assert.deepEqual(Object.keys(problems), ["temperature"]);
});

test("what is shown of a parameter", () => {
  assert.equal(labelOf("top_p"), "Top p");
  assert.equal(labelOf("presence_penalty"), "Presence penalty");
  assert.deepEqual([TEMPERATURE, SEED, STOP, KWARGS, IGNORE, SALT].map(defaultOf),
    ["0.7", "not set", "none", "none", "false", "none"]);
  const groups = grouped([SALT, TEMPERATURE, { name: "new_one" }]);
  assert.deepEqual(groups.map(([title, members]) => [title, members.map(({ name }) => name)]),
    [["Sampling", ["temperature"]], ["Service", ["cache_salt", "new_one"]]]);
});
