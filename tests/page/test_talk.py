"""The view Talk with a real service: what a reader does to a conversation."""

import pytest

from tests.page.talking import PROMPT, SEEDED, Talk, undisturbed
from tests.support.eventually import eventually

pytestmark = pytest.mark.slow


def test_a_conversation(browser, service):
    """Two answers, the second one to the whole conversation, in the words of the API."""
    with browser.visit(service.url) as visit:
        talk = Talk(visit)
        talk.set(**SEEDED, max_completion_tokens=30)
        talk.say(PROMPT)
        talk.wait_for_state()
        first = talk.text()
        assert first == undisturbed(service, [PROMPT], **SEEDED, max_completion_tokens=30)
        talk.say("And then?")
        talk.wait_for_state()
        said = [PROMPT, first, "And then?"]
        assert talk.text() == undisturbed(service, said, **SEEDED, max_completion_tokens=30)
        assert talk.messages() == [*said, talk.text()]
        assert "30 tokens" in talk.answer.locator("[data-testid=stat-tokens]").text_content()
        assert talk.answer.locator("[data-testid=stat-finish]").text_content() == "length"


def test_stop(browser, service):
    """What has come stays, and the service computes no more of it."""
    with browser.visit(service.url) as visit:
        talk = Talk(visit)
        talk.set(**SEEDED, max_completion_tokens=1500)
        talk.say(PROMPT)
        talk.wait_for_text(40)
        visit.page.click("text='Stop'")
        talk.wait_for_state("stopped")
        eventually(lambda: service.status()["running"] == 0)
        text = talk.text()
        assert undisturbed(service, [PROMPT], **SEEDED, max_completion_tokens=400).startswith(text[:400])
        visit.frames(5)
        assert talk.text() == text
        talk.set(max_completion_tokens=5)
        talk.say("Go on.")
        talk.wait_for_state()


def test_escape_stops(browser, service):
    with browser.visit(service.url) as visit:
        talk = Talk(visit)
        talk.set(**SEEDED, max_completion_tokens=1500)
        talk.say(PROMPT)
        talk.wait_for_text(1)
        visit.page.keyboard.press("Escape")
        talk.wait_for_state("stopped")
        eventually(lambda: service.status()["running"] == 0)


def test_edit(browser, service):
    """What followed the message goes; the answer is to the new one."""
    with browser.visit(service.url) as visit:
        talk = Talk(visit)
        talk.set(**SEEDED, max_completion_tokens=10)
        for text in (PROMPT, "And then?"):
            talk.say(text)
            talk.wait_for_state()
        visit.page.locator("#talk .message").first.locator("text='Edit'").click()
        visit.page.keyboard.press("Control+A")
        visit.page.keyboard.type("ROMEO:")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_function("() => document.querySelectorAll('#talk .message').length === 2")
        talk.wait_for_state()
        assert talk.messages() == ["ROMEO:", undisturbed(service, ["ROMEO:"], **SEEDED, max_completion_tokens=10)]


def test_regenerate(browser, service):
    with browser.visit(service.url) as visit:
        talk = Talk(visit)
        talk.set(**SEEDED, max_completion_tokens=10)
        talk.say(PROMPT)
        talk.wait_for_state()
        before, request = talk.text(), talk.request()
        talk.set(seed=43)
        talk.answer.locator("text='Regenerate'").click()
        visit.page.wait_for_selector(f"[data-testid=answer]:not([data-request={request}])[data-state=done]")
        assert talk.text() != before
        assert talk.messages() == [
            PROMPT,
            undisturbed(service, [PROMPT], **SEEDED | {"seed": 43}, max_completion_tokens=10),
        ]


def test_reload_in_the_middle(browser, service):
    """The answer is the same request's, and each piece of it is there once."""
    with browser.visit(service.url) as visit:
        talk = Talk(visit)
        talk.set(**SEEDED, max_completion_tokens=300)
        talk.say(PROMPT)
        talk.wait_for_text(60)
        request = talk.request()
        for _ in range(2):
            visit.page.reload()
            talk = Talk(visit)
            talk.wait_for_text(60)
            assert talk.request() == request
        talk.wait_for_state()
        assert talk.text() == undisturbed(service, [PROMPT], **SEEDED, max_completion_tokens=300)
        visit.page.reload()
        talk = Talk(visit)
        talk.wait_for_state()
        assert talk.messages() == [PROMPT, talk.text()]
        assert service.status()["running"] == 0


def test_two_columns(browser, service):
    """Each has settings of its own; the second one begins with the first one's."""
    with browser.visit(service.url) as visit:
        page, talk = visit.page, Talk(visit)
        talk.set(**SEEDED, max_completion_tokens=10)
        page.click("text='Compare'")
        page.evaluate("document.querySelectorAll('[data-testid=settings]').forEach((each) => { each.open = true; })")
        assert page.input_value("#b-seed") == "42"
        page.fill("#b-seed", "43")
        talk.say(PROMPT)
        for column, seed in (("a", 42), ("b", 43)):
            page.wait_for_selector(f"[data-testid=column-{column}] [data-testid=answer][data-state=done]")
            text = page.text_content(f"[data-testid=column-{column}] [data-testid=text]")
            assert text == undisturbed(service, [PROMPT], **SEEDED | {"seed": seed}, max_completion_tokens=10)


def test_a_wrong_setting_is_not_sent(browser, service):
    with browser.visit(service.url) as visit:
        page, talk = visit.page, Talk(visit)
        talk.set(temperature="hot")
        talk.say(PROMPT)
        page.wait_for_selector("#a-temperature[aria-invalid]")
        assert page.evaluate("document.activeElement.id") == "a-temperature"
        assert not [request for request in visit.requests if "completions" in request.url]
        assert page.input_value("#talk-input") == PROMPT, "what was typed is lost"


def test_what_the_service_refuses_is_told(browser, service):
    """In the API's words, beside the answer that did not come."""
    with browser.visit(service.url) as visit:
        visit.expects("status 400.*completions", r"console: .*400.*completions")
        talk = Talk(visit)
        talk.set(max_completion_tokens=10, min_tokens=20)
        talk.say(PROMPT)
        talk.wait_for_state("failed")
        assert "min_tokens" in talk.answer.locator("[data-testid=problem]").text_content()
