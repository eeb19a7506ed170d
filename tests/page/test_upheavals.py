"""Answers on the page while processes of the service end: the same text, and the pause is drawn with its reason."""

import functools
import os
import signal

import pytest

from tests.e2e.service import frozen
from tests.page.services import scheduler_alone, slowed, wait_until_whole
from tests.page.talking import PROMPT, SEEDED, Talk, undisturbed
from tests.support.eventually import eventually

pytestmark = pytest.mark.slow

SOME, MORE, MOST = 240, 400, 800  # tokens of an answer: two seconds of work, or as many as a reader's clicks take


@pytest.fixture(autouse=True)
def whole_service(service):
    """What an earlier test has killed is back."""
    wait_until_whole(service)


@pytest.fixture(scope="module")
def told(service):
    """Gives the answer of so many tokens that comes when nothing ends."""

    @functools.cache
    def answer(num_tokens):
        return undisturbed(service, [PROMPT], **SEEDED, max_completion_tokens=num_tokens)

    return answer


def begin(visit, service, num_tokens=SOME):
    """Ask for a long answer. Returns when some of it is there and most of it is not, with the executor that has it."""
    with slowed(service.status()["executors"]):
        talk = Talk(visit)
        talk.set(**SEEDED, max_completion_tokens=num_tokens)
        talk.say(PROMPT)
        talk.wait_for_text(20)
        return talk, holder(service)


def holder(service):
    """The report of the executor that has the one answer."""
    return eventually(lambda: next((each for each in service.status()["executors"] if each["running"]), None))


def other(service, holder):
    """The report of the executor beside it."""
    return next(each for each in service.status()["executors"] if each["epoch"] != holder["epoch"])


def wait_until_reconnecting(page):
    """Return when the page has noticed that its connection is broken."""
    page.wait_for_selector("[data-testid=stat-finish] >> text='reconnecting…'")


def test_an_executor_is_killed(browser, service, told):
    with browser.visit(service.url) as visit:
        talk, busy = begin(visit, service)
        idle = other(service, busy)
        with frozen(idle["pid"]):  # so that the pause is long enough to be one on every machine
            os.kill(busy["pid"], signal.SIGKILL)
            eventually(lambda: holder(service)["epoch"] == idle["epoch"])
            length = len(talk.text())
            visit.page.wait_for_timeout(500)  # the pause itself
        talk.wait_for_gap(f"{busy['executor']} → {idle['executor']}")
        talk.wait_for_state()
        assert length < len(talk.text()), "it was killed after the end"
        assert talk.text() == told(SOME)
        assert talk.swap_is_drawn()
        label = talk.answer.locator(".ticks").get_attribute("aria-label")
        assert f"{busy['executor']} → {idle['executor']}" in label, "those who do not see it are not told"
        visit.shot("talk-executor-killed")


def kill_scheduler(visit, service):
    """Kill it in the middle of an answer; it comes back when the page has noticed."""
    with service.supervisor_frozen():
        service.kill_scheduler()
        wait_until_reconnecting(visit.page)


def test_the_scheduler_is_killed(browser, service, told):
    with browser.visit(service.url) as visit:
        visit.expects("net::ERR_", "status 50[023]", r"console: .*50[023]")
        talk, _ = begin(visit, service)
        kill_scheduler(visit, service)
        talk.wait_for_state()
        assert talk.text() == told(SOME)
        talk.wait_for_gap("scheduler restarted")
        assert talk.gap_is_drawn()
        visit.shot("talk-scheduler-killed")


def test_the_page_is_reloaded_while_the_scheduler_is_away(browser, service, told):
    with browser.visit(service.url) as visit:
        visit.expects("net::ERR_", "status 50[023]", r"console: .*50[023]")
        talk, _ = begin(visit, service)
        kill_scheduler(visit, service)
        eventually(lambda: loaded(visit.page, f"{service.url}/"))
        talk = Talk(visit)
        talk.wait_for_state()
        assert talk.text() == told(SOME)


def loaded(page, url):
    """Whether the page could be had anew. Where it could not, the browser shows a page of its own."""
    try:
        return page.goto(url).ok
    except page_error():
        return False


def page_error():
    """What Playwright raises; imported late, as the package may be missing where tests are only collected."""
    return pytest.importorskip("playwright.sync_api").Error


def test_drained_by_the_button(browser, service, told):
    """After a confirmation; the answer goes on elsewhere, and `baton up` starts a successor."""
    with browser.visit(service.url) as visit:
        page = visit.page
        talk, busy = begin(visit, service, MORE)
        page.click("nav >> text='Fleet'")
        card = f"[data-testid=executor][data-epoch='{busy['epoch']}']"
        page.click(f"{card} >> text=Drain")
        page.wait_for_selector("dialog[open] >> text=Its process ends")
        assert service.status()["executors"][0]["state"] == "ready", "it has not been confirmed"
        page.click("dialog[open] >> text='Cancel'")
        assert not page.is_visible("dialog[open]")
        page.click(f"{card} >> text=Drain")
        page.click("dialog[open] button.primary")
        page.wait_for_selector(card, state="detached")
        page.wait_for_selector(f"[data-testid=events] li[data-kind=left] >> text={busy['executor']}")
        eventually(lambda: len(service.status()["executors"]) == 2)
        page.wait_for_function("() => document.querySelectorAll('[data-testid=executor]').length === 2")
        page.click("nav >> text='Talk'")
        talk.wait_for_state()
        assert talk.text() == told(MORE)


def test_no_executor(browser, tmp_path):
    """Both views say so. A new request is refused, with a button to try again."""
    with scheduler_alone(tmp_path) as url, browser.visit(url, "fleet") as visit:
        visit.expects("status 503: POST .*completions", "console: .*503.*completions")
        visit.page.wait_for_selector("#fleet >> text=No executor is there.")
        visit.page.click("nav >> text='Talk'")
        talk = Talk(visit)
        talk.say(PROMPT)
        talk.wait_for_state("failed")
        assert "executor" in talk.answer.locator("[data-testid=problem]").text_content()
        request = talk.request()
        talk.answer.locator("text='Retry'").click()
        visit.page.wait_for_selector(f"[data-testid=answer]:not([data-request={request}])[data-state=failed]")
        assert talk.messages() == [PROMPT, ""]


def test_the_last_executor_is_lost(browser, service, told):
    """The answer waits, the Fleet view says for what, and both go on when an executor is there again."""
    with browser.visit(service.url) as visit:
        page = visit.page
        talk, _ = begin(visit, service)
        with service.supervisor_frozen():
            for executor in service.status()["executors"]:
                os.kill(executor["pid"], signal.SIGKILL)
            page.click("nav >> text='Fleet'")
            page.wait_for_selector("[data-testid=waiting] >> text=no executor can take it")
            page.wait_for_selector("#fleet >> text=No executor is there.")
        page.wait_for_selector("[data-testid=running] tr[data-request] >> text=executor-")
        page.click("nav >> text='Talk'")
        talk.wait_for_state()
        assert talk.text() == told(SOME)


def test_rolled_out_by_the_button(browser, service, told):
    """One executor after the other is replaced, and an answer goes on through all of it."""
    before = {each["epoch"] for each in service.status()["executors"]}
    with browser.visit(service.url) as visit:
        page = visit.page
        talk, _ = begin(visit, service, MOST)
        page.click("nav >> text='Fleet'")
        page.click("#fleet >> text=Roll out")
        page.wait_for_selector("dialog[open] >> text=one after the other")
        page.click("dialog[open] button.primary")
        page.wait_for_selector("[data-testid=rollout] >> text=Done: 2 of 2")
        wait_until_whole(service)
        assert not before & {each["epoch"] for each in service.status()["executors"]}
        page.click("nav >> text='Talk'")
        talk.wait_for_state()
        assert talk.text() == told(MOST)
