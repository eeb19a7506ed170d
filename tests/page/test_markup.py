"""What models, clients and operators write stays text, whatever it looks like."""

import pytest

from tests.page import fleets
from tests.page.fleets import MARKUP
from tests.page.talking import Talk

pytestmark = pytest.mark.slow

MARKDOWN = (
    "# Title\n\n**bold** [link](javascript:window.ran=1) ![image](http://127.0.0.1:9/x.png)\n\n| a |\n|---|\n\n&lt;"
)
SAID = [MARKUP[:7], MARKUP[7:], "\n", MARKDOWN, "</div><style>*{display:none}</style>", "\u202e \x00 \ud83d", "\ude00"]


def assert_is_text(page, count=None):
    """Nothing of it has become an element, or has run."""
    assert page.evaluate("window.ran ?? null") is None
    assert (
        page.evaluate("document.querySelectorAll('main :is(img, script, style, iframe, object, embed, link)').length")
        == 0
    )
    links = page.eval_on_selector_all("a[href]", "all => all.map((link) => link.getAttribute('href'))")
    assert not [link for link in links if not link.startswith("#")]


def test_in_an_answer(browser, stage):
    whole = "".join(SAID).encode("utf-16", "surrogatepass").decode("utf-16")
    call = {"index": 0, "id": MARKUP, "function": {"name": MARKUP, "arguments": f'{{"a": "{MARKUP}"}}'}}
    stage.talk = lambda _: [{"reasoning_content": MARKUP}, *SAID, {"tool_calls": [call]}]
    with browser.visit(stage.url) as visit:
        talk = Talk(visit)
        talk.say(MARKUP)
        talk.wait_for_state()
        assert talk.text() == whole
        assert visit.page.text_content("[data-testid=message] > .text") == MARKUP
        assert MARKUP in talk.answer.locator(".thought").text_content()
        assert MARKUP in talk.answer.locator("[data-testid=call]").text_content()
        assert_is_text(visit.page)
        visit.shot("talk-markup")
        visit.page.reload()
        talk = Talk(visit)
        talk.wait_for_state()
        assert talk.text() == whole
        assert_is_text(visit.page)


def refusal(body):
    return lambda route: route.fulfill(status=400, body=body)


def test_in_an_error(browser, stage):
    """From the API, and from something on the way that answers in its place."""
    with browser.visit(stage.url) as visit:
        visit.expects("status 4", "console: ")
        talk = Talk(visit)
        for body in (f'{{"error": {{"message": "{MARKUP}"}}}}', MARKUP):
            visit.page.route("**/v1/chat/completions", refusal(body))
            talk.say("x")
            talk.wait_for_state("failed")
            assert_is_text(visit.page)
        assert MARKUP in visit.page.text_content("#talk")


def test_in_the_fleet(browser, stage):
    name = MARKUP
    executor = fleets.executor(7, name, node=MARKUP, build=MARKUP, device=MARKUP, num_blocks=64)
    reason = {"number": 1, "at": 1.0, "kind": "lost", "executor": name, "epoch": 7, "cause": MARKUP, "reason": MARKUP}
    stage.live = [
        ("status", fleets.report([executor])),
        ("waiting", [fleets.waiting(1, MARKUP, request=MARKUP, reason=MARKUP)]),
        ("running", [fleets.running(1, 7, MARKUP) | {"request": MARKUP}]),
        ("events", [reason, reason | {"number": 2, "kind": MARKUP}]),
        ("history", fleets.history()),
        ("map", fleets.pool_map(7, fleets.blocks(64))),
    ]
    holder = {"request": MARKUP, "index": 0, "client": MARKUP, "blocks": [0, 1]}
    stage.answers["GET", "/page/executors/7/blocks/0"] = {"holders": [holder]}
    with browser.visit(stage.url, "fleet") as visit:
        page = visit.page
        page.wait_for_selector("[data-testid=events] li >> nth=1")
        page.wait_for_selector("[data-testid=waiting] tbody tr")
        page.focus("[data-testid=blocks]")
        page.wait_for_selector("[data-testid=block] a")
        assert MARKUP in page.text_content("[data-testid=executor]")
        assert_is_text(page)
        page.click("[data-testid=executor] >> text=Drain")
        page.wait_for_selector("dialog[open]")
        assert MARKUP in page.text_content("dialog[open]")
        assert_is_text(page)


def test_in_a_request(browser, stage):
    mark = {"at": 1.0, "what": "queued", "tokens": 3}
    admitted = {"at": 2.0, "what": "admitted", "executor": MARKUP, "epoch": 1}
    lost = {"at": 3.0, "what": "lost", "executor": MARKUP, "epoch": 1, "cause": MARKUP}
    ended = {"at": 4.0, "what": "ended", "cause": MARKUP}
    marks = [mark, admitted, lost, {"at": 3.5, "what": MARKUP}, ended]
    sequence = {"index": 0, "output": 1, "num_left_out": 0, "marks": marks}
    stage.lives["x"] = {"request": "x", "now": 5.0, "sequences": [sequence]}
    with browser.visit(stage.url, "request/x") as visit:
        visit.page.wait_for_selector("[data-testid=sentence] >> text=onerror")
        assert_is_text(visit.page)
        visit.expects("status 404", "console: .*404")
        visit.page.goto(f"{stage.url}/#request/%3Cimg%20src%3Dx%20onerror%3Dwindow.ran%3D1%3E")
        visit.page.wait_for_selector("[data-testid=note] >> text=<img src=x")
        assert_is_text(visit.page)


def test_chunks_that_no_service_of_ours_sends(browser, stage):
    """Nothing of these stops the page from working."""
    odd = [{"content": None}, {"content": ""}, {}, {"tool_calls": []}, {"content": "x"}]
    stage.talk = lambda _: odd
    with browser.visit(stage.url) as visit:
        talk = Talk(visit)
        talk.say("x")
        talk.wait_for_state()
        assert talk.text() == "x"
