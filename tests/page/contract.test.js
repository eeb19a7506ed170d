// The page's logic reads what the service tells, as it is written down in contract/.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { BlockMap, decodeChanges, decodeSnapshot } from "../../scheduler_svc/frontend/page/files/fleet/blocks.js";
import { NOTHING, reduce } from "../../scheduler_svc/frontend/page/files/fleet/live.js";
import { causeOf, eventKind, stateOf, waitReason } from "../../scheduler_svc/frontend/page/files/fleet/words.js";
import { lifeOf, markOf, sentenceOf } from "../../scheduler_svc/frontend/page/files/request/life.js";
import { EventParser } from "../../scheduler_svc/frontend/page/files/sse.js";
import { interruptionsOf } from "../../scheduler_svc/frontend/page/files/talk/life.js";

const read = (name) => readFileSync(new URL(`contract/${name}`, import.meta.url), "utf8");
const json = (name) => JSON.parse(read(name));

const told = new EventParser().feed(read("events.txt")).map(({ event, data }) => [event, JSON.parse(data)]);

test("every event is read into the state", () => {
  const state = told.reduce((before, [name, data]) => reduce(before, name, data, 1000), NOTHING);
  assert.equal(state.connection, "gone");
  assert.equal(state.report.executors[0].epoch, 7);
  assert.deepEqual(state.waiting, []);
  assert.deepEqual(state.running.map(({ request, epoch }) => [request, epoch]), [["w", 7]]);
  assert.deepEqual(state.events.map(({ kind }) => kind), ["joined", "lost", "joined"]);
  assert.equal(state.history.length, 3);
});

test("maps and changes of blocks are read", async () => {
  const [, map] = told.find(([name]) => name === "map");
  const blocks = new BlockMap(await decodeSnapshot(map.states), 1000);
  const [, changes] = told.find(([name]) => name === "blocks");
  assert.deepEqual([...decodeChanges(changes.changed)], [8 * 1 + 3, 8 * 2 + 2]);
  assert.deepEqual([...decodeChanges(changes.found)], [8 * 4 + 1]);
  assert.equal(blocks.states.length, map.num_blocks);
});

test("a life is read by both views that show it", () => {
  const answer = json("life.json");
  const life = lifeOf(answer.sequences[0], answer.now);
  assert.equal(life.cached, 64);
  assert.match(sentenceOf(life), /64/);
  const [interruption] = interruptionsOf(answer, 1000 * answer.now);
  assert.match(JSON.stringify(interruption), /one.*two/);
});

test("every word of the service has a phrase", () => {
  const words = json("words.json");
  const known = (phrase, word, same) => assert.ok(phrase !== word || same.includes(word), word);
  for (const reason of words.wait_reasons) known(waitReason(reason), reason, []);
  for (const kind of words.event_kinds) known(eventKind(kind).word, kind, ["joined", "left", "lost", "preempted"]);
  for (const kind of words.mark_kinds) known(markOf({ what: kind }), kind, ["ended"]);
  for (const state of words.states) assert.notEqual(stateOf(state).mark, stateOf("unknown").mark);
  for (const cause of words.causes) known(causeOf(cause), cause, []);
});
