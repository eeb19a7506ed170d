"""The view "One request": a life as a strip, a sentence and a table; and that of a request that has moved."""

import os
import signal

import pytest

from tests.page.lives import MOVED, told
from tests.page.services import wait_until_whole
from tests.page.talking import PROMPT, SEEDED, Talk

pytestmark = pytest.mark.slow


def test_a_life_that_moved(browser, stage):
    stage.lives["x"] = told(*MOVED)
    with browser.visit(stage.url, "request/x") as visit:
        page = visit.page
        sentence = page.locator("[data-testid=sentence]")
        sentence.wait_for()
        for part in ("It took 10 s", "executor-0 was lost", "64 of 120 tokens from the cache", "87 tokens", "1 pause"):
            assert part in sentence.text_content(), part
        assert page.get_attribute("[data-testid=strip]", "aria-label") == sentence.text_content()
        assert page.locator("[data-testid=sequence] tbody tr").count() == len(MOVED)
        widths = page.eval_on_selector_all(
            "[data-testid=strip] .segment",
            "all => all.map((one) => [one.className, Math.round(one.getBoundingClientRect().width)])",
        )
        whole = page.locator("[data-testid=strip]").evaluate("strip => strip.clientWidth")
        seconds = {"queued": 1.0, "paused": 0.5, "decode": 3.0}
        for kind, length in seconds.items():
            width = next(width for name, width in widths if kind in name)
            assert abs(width - whole * length / 10) <= 2, (kind, widths)
        visit.accessible()
        visit.frames(2)
        ends = "one => Math.round(one.getBoundingClientRect().bottom)"
        assert page.locator("[data-testid=sequence] .scroll").evaluate(ends) > 760, "the window is 800 high"
        assert page.locator("[data-testid=sequence] tr").last.evaluate(ends) < 800


def test_an_open_one_is_followed(browser, stage):
    """Until it ends; then nothing is asked any more."""
    stage.lives["x"] = told(*MOVED[:1], now=101.0)
    with browser.visit(stage.url, "request/x") as visit:
        page = visit.page
        page.wait_for_selector("[data-testid=sequence] tbody tr")
        page.wait_for_selector("[data-testid=note] >> text=It is open")
        for count in (2, 4, 9):
            stage.lives["x"] = told(*MOVED[:count], now=MOVED[count - 1]["at"])
            page.wait_for_selector(f"[data-testid=sequence] tbody tr >> nth={count - 1}")
        page.wait_for_selector("[data-testid=sentence] >> text=It took")
        asked = len(stage.asked)
        page.wait_for_timeout(1500)  # it asked once a second
        assert len(stage.asked) == asked


def test_several_sequences_share_an_axis(browser, stage):
    whole = told(*MOVED)
    [first] = whole["sequences"]
    whole["sequences"] = [first | {"index": i} for i in range(4)]
    stage.lives["x"] = whole
    with browser.visit(stage.url, "request/x") as visit:
        visit.page.wait_for_selector("[data-testid=sequence] >> nth=3")
        visit.accessible()


def test_by_the_form(browser, stage):
    stage.lives["a/b?c"] = told(*MOVED)
    stage.lives["a%2Fb%3Fc"] = stage.lives["a/b?c"]  # as the path has it
    with browser.visit(stage.url, "request") as visit:
        page = visit.page
        page.fill("#request-id", " a/b?c ")
        page.keyboard.press("Enter")
        page.wait_for_selector("[data-testid=sentence]")
        assert page.evaluate("location.hash") == "#request/a%2Fb%3Fc"
        visit.expects("status 404", "console: .*404")
        page.fill("#request-id", "nothing")
        page.keyboard.press("Enter")
        page.wait_for_selector("[data-testid=note] >> text=No request with the id nothing is known")
        assert not page.is_visible("[data-testid=life]")
        page.go_back()
        page.wait_for_selector("[data-testid=sentence]")


def test_a_request_whose_executor_is_killed(browser, service):
    """From the answer's own link, at a real service."""
    wait_until_whole(service)
    with browser.visit(service.url) as visit:
        page, talk = visit.page, Talk(visit)
        talk.set(**SEEDED, max_completion_tokens=300)
        talk.say(PROMPT)
        talk.wait_for_text(100)
        [busy] = [each for each in service.status()["executors"] if each["running"]]
        [idle] = [each for each in service.status()["executors"] if not each["running"]]
        os.kill(busy["pid"], signal.SIGKILL)
        talk.wait_for_state()
        talk.answer.locator("text='Request'").click()
        page.wait_for_selector(f"[data-testid=sentence] >> text={busy['executor']} was lost")
        whats = page.eval_on_selector_all(
            "[data-testid=sequence] tbody tr", "all => all.map((row) => row.dataset.what)"
        )
        before = ["queued", "admitted", "prefill", "first_token", "lost"]
        assert whats == [*before, "admitted", "prefill", "resumed", "ended"]
        assert idle["executor"] in page.inner_text("[data-testid=sequence]")
        visit.shot("request-moved-real")
