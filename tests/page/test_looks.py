"""Every view in both themes and two widths: axe-core finds nothing serious, nothing is wider than the window, and there
are pictures for people in build/page-shots/."""

import pytest

from tests.page import fleets
from tests.page.browsing import NARROW, WIDE
from tests.page.lives import MOVED, told
from tests.page.stage import ABOUT
from tests.page.talking import Talk

pytestmark = pytest.mark.slow

ANSWER = "The quality of mercy is not strained. It droppeth as the gentle rain from heaven. " * 6
LOOKS = [(False, WIDE), (True, NARROW)]
PARAMETERS = [
    *ABOUT["parameters"],
    {"name": "stop", "kind": "strings", "help": "The text ends before these strings, one a line.", "default": None},
    {"name": "ignore_eos", "kind": "boolean", "help": "The model's own stop tokens do not end it.", "default": False},
    {"name": "response_format", "kind": "json", "help": "What the text has to be.", "default": None},
    {"name": "reasoning_effort", "kind": "choice", "help": "How much.", "default": None, "choices": ["low", "high"]},
]


def looked_at(visit, name, dark, width):
    """Check what any view has to keep, and take a picture."""
    visit.frames(3)
    visit.accessible()
    overflow = visit.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0, "the page scrolls sideways"
    assert visit.page.evaluate(OUTSIDE) == []
    visit.shot(f"{name}-{width}-{'dark' if dark else 'light'}")


# Controls and texts that reach out of the window, where no box around them scrolls.
OUTSIDE = """() => {
  const scrolls = (node) => {
    for (let each = node.parentElement; each; each = each.parentElement) {
      if (["auto", "scroll"].includes(getComputedStyle(each).overflowX)) return true;
    }
    return false;
  };
  return [...document.querySelectorAll("main :is(button, input, select, textarea, a, p, h2, h3, dd, dt, td, canvas)")]
    .filter((node) => node.checkVisibility() && node.getBoundingClientRect().right > innerWidth + 1 && !scrolls(node))
    .map((node) => node.outerHTML.slice(0, 200));
}"""


@pytest.mark.parametrize(("dark", "width"), LOOKS)
def test_talk(browser, stage, dark, width):
    stage.about["parameters"] = PARAMETERS
    call = {"index": 0, "id": "c", "function": {"name": "weather", "arguments": '{"city": "Verona", "days": [1, 2]}'}}
    answers = [
        ["I have to think. ", ANSWER],
        [{"reasoning_content": "Let me see. " * 9}, ANSWER],
        [{"tool_calls": [call]}],
    ]
    with browser.visit(stage.url, dark=dark, width=width) as visit:
        talk = Talk(visit)
        looked_at(visit, "talk-empty", dark, width)
        for i, answer in enumerate(answers):
            stage.talk = lambda _, answer=answer: answer
            talk.say(f"Question {i}, which is quite a bit longer than one line of a telephone so that it wraps there.")
            talk.wait_for_state()
        looked_at(visit, "talk", dark, width)
        visit.page.click("text='Compare'")
        looked_at(visit, "talk-compare", dark, width)
        visit.page.click("text='Compare'")
        visit.page.click("[data-testid=settings] summary >> nth=0")
        visit.page.fill("#a-temperature", "hot")
        looked_at(visit, "talk-settings", dark, width)


@pytest.mark.parametrize(("dark", "width"), LOOKS)
def test_talk_with_an_error(browser, stage, dark, width):
    with browser.visit(stage.url, dark=dark, width=width) as visit:
        visit.expects("status 400", "console: ")
        body = '{"error": {"message": "The prompt has 3000 tokens, and the model takes 2048.", "code": "too_long"}}'
        visit.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, body=body))
        talk = Talk(visit)
        talk.say("x")
        talk.wait_for_state("failed")
        looked_at(visit, "talk-error", dark, width)


@pytest.mark.parametrize(("dark", "width"), LOOKS)
def test_fleet(browser, stage, dark, width):
    stage.live = fleets.whole_fleet(num_blocks=20_000)
    with browser.visit(stage.url, "fleet", dark=dark, width=width) as visit:
        visit.page.wait_for_selector("[data-testid=executor] >> nth=1 >> text=in use 5,000 (25%)")
        visit.page.wait_for_selector("[data-testid=running] tbody tr")
        looked_at(visit, "fleet", dark, width)
        visit.page.click("[data-testid=executor][data-epoch='7'] >> text=Drain")
        looked_at(visit, "fleet-drain", dark, width)
        visit.page.keyboard.press("Escape")
        visit.page.click("#fleet >> text=age")
        looked_at(visit, "fleet-age", dark, width)


@pytest.mark.parametrize(("dark", "width"), LOOKS)
def test_fleet_without_anything(browser, stage, dark, width):
    stage.live = [("status", fleets.report([])), ("waiting", []), ("running", []), ("events", []), ("history", [])]
    with browser.visit(stage.url, "fleet", dark=dark, width=width) as visit:
        visit.page.wait_for_selector("#fleet >> text=No executor is there.")
        looked_at(visit, "fleet-empty", dark, width)


@pytest.mark.parametrize(("dark", "width"), LOOKS)
def test_request(browser, stage, dark, width):
    stage.lives["x"] = told(*MOVED)
    with browser.visit(stage.url, "request/x", dark=dark, width=width) as visit:
        visit.page.wait_for_selector("[data-testid=sentence]")
        looked_at(visit, "request", dark, width)
