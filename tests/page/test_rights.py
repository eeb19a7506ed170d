"""What readers see and can do with keys of different rights, at a real service."""

import pytest

from scheduler_svc.api_key_file import client_id, digest
from tests.page.services import ADMIN, OTHER, PLAIN, READER, slowed
from tests.page.talking import PROMPT, SEEDED, Talk
from tests.support.eventually import eventually
from tests.support.plain_http import http

pytestmark = pytest.mark.slow

LONG = SEEDED | {"max_completion_tokens": 1500}


def status(service):
    return http.get(f"{service.url}/status", headers={"authorization": f"Bearer {ADMIN}"}).json()


def holders(service, epoch, block):
    url = f"{service.url}/page/executors/{epoch}/blocks/{block}"
    return http.get(url, headers={"authorization": f"Bearer {ADMIN}"}).json()["holders"]


def begin(visit):
    """Ask for an answer that is there for seconds. Returns its request."""
    talk = Talk(visit)
    talk.set(**LONG)
    talk.say(PROMPT)
    talk.wait_for_text(1)
    return talk.request()


def stop(service, *visits):
    """End the answers of these visits."""
    for visit in visits:
        visit.page.click("nav >> text='Talk'")
        visit.page.click("text='Stop'")
    eventually(lambda: status(service)["running"] == 0)


def test_a_plain_key_sees_its_own_requests(browser, keyed_service):
    """And the fleet's figures; of blocks it is not told who has them, and it cannot drain."""
    with (
        slowed(status(keyed_service)["executors"]),
        browser.visit(keyed_service.url, key=OTHER) as elsewhere,
        browser.visit(keyed_service.url, key=PLAIN) as visit,
    ):
        page = visit.page
        others, own = begin(elsewhere), begin(visit)
        page.click("nav >> text='Fleet'")
        page.wait_for_selector(f"[data-testid=running] tr[data-request='{own}']")
        page.wait_for_function(
            """() => document.querySelector("[data-testid=figure-running]").textContent === "2"
              && document.querySelectorAll("[data-testid=running] tbody tr").length === 1"""
        )
        assert others not in page.inner_text("#fleet")
        assert not page.locator("#fleet button").count(), "there is nothing that it could do"
        page.locator("[data-testid=blocks]").first.focus()
        page.wait_for_selector("[data-testid=block] >> text=Block 0")
        assert not [request.url for request in visit.requests if "/blocks/" in request.url]

        page.click(f"[data-testid=running] >> text={own}")
        page.wait_for_selector("[data-testid=sentence] >> text=so far")
        visit.expects("status 404: GET .*page/requests", "console: .*404.*page/requests")
        page.goto(f"{keyed_service.url}/#request/{others}")
        page.wait_for_selector("[data-testid=note] >> text=not one of yours")
        stop(keyed_service, visit, elsewhere)


def test_a_reader_sees_all_and_drains_nothing(browser, keyed_service):
    with (
        slowed(status(keyed_service)["executors"]),
        browser.visit(keyed_service.url, key=PLAIN) as elsewhere,
        browser.visit(keyed_service.url, "fleet", key=READER) as visit,
    ):
        page = visit.page
        request = f"{client_id(digest(PLAIN))}/{begin(elsewhere)}"  # as the core knows it
        row = page.locator(f"[data-testid=running] tr[data-request='{request}']")
        row.wait_for()
        assert "plain" in row.text_content()
        assert not page.locator("#fleet button").count()
        row.locator("a").click()
        page.wait_for_selector("[data-testid=sentence] >> text=so far")
        stop(keyed_service, elsewhere)
        page.wait_for_selector("[data-testid=sentence] >> text=cancelled")


def test_an_admin_sees_who_has_a_block(browser, keyed_service):
    with (
        slowed(status(keyed_service)["executors"]),
        browser.visit(keyed_service.url, key=PLAIN) as elsewhere,
        browser.visit(keyed_service.url, "fleet", key=ADMIN) as visit,
    ):
        page = visit.page
        request = f"{client_id(digest(PLAIN))}/{begin(elsewhere)}"  # as the core knows it
        row = page.locator(f"[data-testid=running] tr[data-request='{request}']")
        row.wait_for()
        [epoch] = [each["epoch"] for each in status(keyed_service)["executors"] if each["running"]]
        block = next(block for block in range(2048) if holders(keyed_service, epoch, block))
        card = page.locator(f"[data-testid=executor][data-epoch='{epoch}']")
        card.locator("[data-testid=blocks]").focus()
        for _ in range(block):
            page.keyboard.press("ArrowRight")
        card.locator("[data-testid=block]", has_text=f"{request}").wait_for()
        assert "plain" in card.locator("[data-testid=block]").text_content()
        assert card.locator("text=Drain").count()
        stop(keyed_service, elsewhere)


def test_a_key_is_needed_for_everything_but_the_page(keyed_service):
    for path in ("/page/live", "/page/requests/x", "/page/executors/1/blocks/0"):
        assert http.get(keyed_service.url + path).status_code == 401, path
        assert http.get(keyed_service.url + path, headers={"authorization": "Bearer x"}).status_code == 401, path
    about = http.get(f"{keyed_service.url}/page/about").json()
    assert about["needs_key"] is True
    assert about["client"] is None


@pytest.mark.parametrize("view", ["talk", "fleet", "request/x"])
def test_another_key_shows_what_it_may(browser, keyed_service, view):
    """A key that ends in the middle is asked for again; what the reader then sees is the new key's."""
    with browser.visit(keyed_service.url, view, key="gone") as visit:
        visit.expects("status 404: GET .*page/requests/x", "console: .*404.*page/requests/x")
        page = visit.page
        page.wait_for_selector("dialog#key[open]")
        page.fill("#key-input", READER)
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#{view.partition('/')[0]}:not([hidden])")
        assert not page.is_visible("dialog#key")
