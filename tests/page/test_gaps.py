"""Gaps between tokens and their reasons, where the service tells these when the test wants it."""

import time

import pytest

from tests.page.stage import Cue, life
from tests.page.talking import Talk

pytestmark = pytest.mark.slow

BEFORE, AFTER = {"executor": "executor-0", "epoch": 7}, {"executor": "executor-1", "epoch": 8}


def lost(at, pause_s):
    """A life that was moved then."""
    marks = (
        {"at": at - 9, "what": "queued", "tokens": 3},
        {"at": at - 8, "what": "admitted", **BEFORE},
        {"at": at - 7, "what": "first_token", **BEFORE},
        {"at": at, "what": "lost", **BEFORE, "cause": "disconnected"},
        {"at": at, "what": "admitted", **AFTER},
        {"at": at + pause_s, "what": "resumed", **AFTER},
    )
    return life("x", *marks)


def speak(cue, talk, words):
    """Have so many words come one after the other."""
    for _ in range(words):
        length = len(talk.text())
        cue.say("word ")
        talk.wait_for_text(length + 1)


def begin(visit, stage):
    cue = Cue()
    stage.talk = cue.talk
    talk = Talk(visit)
    talk.say("Speak.")
    talk.answer.wait_for()
    speak(cue, talk, 5)
    return cue, talk


@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "after the end"])
def test_a_gap_has_its_reason(browser, stage, is_late):
    """Also where the service tells it when the answer has ended."""
    with browser.visit(stage.url) as visit:
        questions, told = [], {}

        def asked(route):
            if told:
                route.fulfill(json=told | {"now": time.time()})
            else:
                questions.append(route)

        visit.page.route("**/page/requests/*", asked)
        cue, talk = begin(visit, stage)
        at = time.time()
        visit.page.wait_for_timeout(1500)
        speak(cue, talk, 5)
        while not questions:
            visit.page.wait_for_timeout(20)  # in which Playwright tells of requests
        if is_late:
            cue.end()
            talk.wait_for_state()
        told |= lost(at + 0.2, 1.0)
        for question in questions:
            asked(question)
        talk.wait_for_gap("executor-0 → executor-1")
        assert talk.swap_is_drawn()
        cue.end()
        talk.wait_for_state()
