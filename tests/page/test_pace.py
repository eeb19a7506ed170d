"""The page keeps its pace, and stands still where nothing is new: while answers come, in long conversations, and with
large pools. Work is counted, so that no test depends on the machine."""

import re

import pytest

from tests.page import fleets
from tests.page.stage import Cue, pool_changes, pool_map
from tests.page.talking import Talk

pytestmark = pytest.mark.slow

MAX_SHIFT = 0.005  # the sum of all; up to 0.1 counts as good among those who measure pages (web.dev/cls)
NUM_MESSAGES = 1000
COUNT_CHANGES = """() => {
  window.changes = 0;
  new MutationObserver((records) => { changes += records.length; })
    .observe(document.getElementById("talk"), {subtree: true, childList: true, characterData: true, attributes: true});
}"""
AT_END = """() => {
  const log = document.querySelector("#talk .log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 2;
}"""
# As the page itself keeps a conversation, by its own module.
KEEP = """async (count) => {
  const {Conversation} = await import("/page/talk/conversation.js");
  const {Keeper} = await import("/page/talk/storage.js");
  const {newAnswer} = await import("/page/talk/answer.js");
  const talk = new Conversation();
  const text = "It is the east, and Juliet is the sun. ".repeat(8);
  const messages = [];
  for (let i = 0; i < count; i += 2) {
    messages.push(talk.say(`${i}: ${text}`));
    const answer = newAnswer(`page-${i}`, {}, Date.now(), {key: `k${i}`});
    messages.push(talk.add({...answer, text, state: "done", finish: "stop", tokens: 80}));
  }
  const keeper = new Keeper(sessionStorage, {compares: false, draft: "", columns: [talk, new Conversation()]});
  keeper.note(...messages);
  keeper.note();
  keeper.flush();
  return keeper.isFull;
}"""

# Of at least 5,000 pixels each. They are read from a copy: a canvas that is read from often is made another one.
HAS_FOUR_COLOURS = """() => {
  const map = document.querySelector("[data-testid=blocks]");
  const context = new OffscreenCanvas(map.width, map.height).getContext("2d");
  context.drawImage(map, 0, 0);
  const counts = new Map();
  for (const pixel of new Uint32Array(context.getImageData(0, 0, map.width, map.height).data.buffer)) {
    counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  }
  return [...counts].filter(([pixel, count]) => pixel && count > 5000).length === 4;
}"""


def assert_steady(visit, but_for=r"\0"):
    """Nothing has moved but elements whose tag has this in it."""
    moved = [shift for shift in visit.shifts() if not all(re.search(but_for, node) for node in shift["nodes"])]
    assert sum(shift["value"] for shift in moved) < MAX_SHIFT, moved


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_moves_while_an_answer_comes(browser, stage, width):
    """But the conversation itself, which is scrolled: what stands above and below it stays where it is."""
    cue = Cue()
    stage.talk = cue.talk
    with browser.visit(stage.url, width=width) as visit:
        talk = Talk(visit)
        talk.say("Speak.")
        visit.page.wait_for_selector("[data-testid=answer]")
        visit.page.wait_for_timeout(600)  # a shift within 500 ms of an input does not count
        visit.shifts()
        length = 0
        for i in range(60):
            said = f"word {i} " if i % 7 else f"a line\n\n{i} "
            cue.say({"reasoning_content": said} if i < 10 else said)
            length += len(said) if i >= 10 else 0
            if i % 5 == 0 and i > 10:
                talk.wait_for_text(length)
                visit.frames(1)
        cue.end()
        talk.wait_for_state()
        visit.frames(3)
        # The ticks and figures below a text go down with each of its lines, until the column is full.
        assert_steady(visit, but_for='class="(track|stats)"|data-testid="stat-')


def test_a_long_conversation_costs_a_token_no_more(browser, stage):
    """The same changes in the page for each token as in a new conversation, and not one of the old messages."""
    with browser.visit(stage.url) as visit:
        few = changes_of_an_answer(visit, stage)
    with browser.visit(stage.url, "fleet") as visit:  # where no view of a conversation is that would keep its own
        assert visit.page.evaluate(KEEP, NUM_MESSAGES) is False
        visit.page.click("nav >> text='Talk'")
        visit.page.wait_for_function(f"() => document.querySelectorAll('#talk .message').length === {NUM_MESSAGES}")
        visit.page.wait_for_function(AT_END)
        many = changes_of_an_answer(visit, stage)
        assert many < 2 * few, "what changes with a token grows with the conversation"
        visit.page.wait_for_function(AT_END)


def changes_of_an_answer(visit, stage, num_tokens=50):
    """In the page, from the moment the first token is there."""
    cue = Cue()
    stage.talk = cue.talk
    talk = Talk(visit)
    talk.say("Speak.")
    cue.say("x")
    talk.wait_for_text(1)
    visit.page.evaluate("setInterval = () => 0")  # what happens by the clock does not count
    visit.page.evaluate(COUNT_CHANGES)
    for i in range(num_tokens):
        cue.say("y")
        talk.wait_for_text(2 + i)
    changes = visit.page.evaluate("changes")
    cue.end()
    talk.wait_for_state()
    return changes


def test_a_map_of_20000_blocks(browser, stage):
    """All of them drawn and counted; a change draws what has changed."""
    stage.live = fleets.whole_fleet(num_blocks=20_000)
    with browser.visit(stage.url, "fleet") as visit:
        page = visit.page
        legend = page.locator("[data-testid=executor] >> nth=0").locator(".legend >> nth=0")
        legend.locator("text=in use 5,000 (25%)").wait_for()
        page.locator("[data-testid=blocks] >> nth=0").scroll_into_view_if_needed()  # what is not in sight is not drawn
        page.wait_for_function(HAS_FOUR_COLOURS)
        stage.send("blocks", pool_changes(7, [(block, fleets.IN_USE) for block in range(5_000)]))
        legend.locator("text=free 0 (0%)").wait_for()
        legend.locator("text=in use 10,000 (50%)").wait_for()
        print("long tasks, ms:", visit.long_tasks())


def test_the_fleet_stands_still_while_it_works(browser, stage):
    """Figures change four times a second; nothing jumps, and a row that was read stays the same element."""
    stage.live = fleets.whole_fleet(num_blocks=512)
    with browser.visit(stage.url, "fleet") as visit:
        page = visit.page
        page.wait_for_selector("[data-testid=executor] >> nth=1")
        page.wait_for_selector("[data-testid=running] tbody tr")
        page.evaluate("window.first = document.querySelector('[data-testid=running] tbody tr')")
        visit.frames(5)
        visit.shifts()
        for i in range(20):
            executors = [fleets.executor(7, running=i % 16, num_blocks=512, steps=1000 + 37 * i, step_ms=3.7 * i)]
            executors.append(fleets.executor(8, num_blocks=512, running=i))
            rate = 10.0**i if i < 6 else 61.5
            stage.send("status", fleets.report(executors, running=5 * i, output_tokens=10**i, output_tokens_per_s=rate))
            stage.send("running", [fleets.running(j, 7, "bob") for j in range(1 + i)])
            stage.send("history", [[fleets.history()[-1][0] + i, rate, 0.0, 0.5, i, i]])
            stage.send("blocks", pool_changes(7, [(i, fleets.SHARED)]))
            page.wait_for_selector(f"[data-testid=running] tbody tr >> nth={i}")
            visit.frames(1)
        assert page.evaluate("first.isConnected")
        assert_steady(visit)


def test_many_maps_at_once(browser, stage):
    """A fleet of 32 executors, whose maps come one after the other."""
    epochs = range(1, 33)
    stage.live = [("status", fleets.report([fleets.executor(epoch, num_blocks=2048) for epoch in epochs]))]
    stage.live += [("map", pool_map(epoch, fleets.blocks(2048))) for epoch in epochs]
    with browser.visit(stage.url, "fleet") as visit:
        visit.page.wait_for_selector("[data-testid=executor] >> nth=31")
        last = visit.page.locator("[data-testid=executor] >> nth=31")
        last.scroll_into_view_if_needed()
        last.locator("text=in use 512 (25%)").wait_for()
        print("long tasks, ms:", visit.long_tasks())
