"""Keys that a reader gives to an input method, which writes Japanese, Chinese or Korean, and not to the page.

Chromium says so while a word is being written. Safari ends the word first and then sends the key that ended it, with
nothing but the old key code to tell it by; such a key is made here as Safari sends it.
"""

import threading

import pytest

from tests.page.talking import Talk

OF_INPUT_METHOD = 229  # the old key code of all its keys


@pytest.fixture
def device(browser, stage):
    """A visit to a service that answers when it is told to, and the means to press a key as an input method."""
    may_answer = threading.Event()

    def answer(_):
        yield "Begun"
        may_answer.wait(60)
        yield " and done."

    stage.talk = answer
    with browser.visit(stage.url) as visit:
        yield Device(visit, may_answer)
        may_answer.set()


class Device:
    def __init__(self, visit, may_answer):
        self.visit, self.page, self.may_answer = visit, visit.page, may_answer
        self.talk = Talk(visit)
        self._session = visit.page.context.new_cdp_session(visit.page)

    def compose(self, text):
        """A word that the reader is still choosing."""
        self._session.send("Input.imeSetComposition", {"text": text, "selectionStart": 0, "selectionEnd": len(text)})

    def choose(self, text):
        self._session.send("Input.insertText", {"text": text})

    def press(self, key):
        codes = {"key": key, "code": key, "windowsVirtualKeyCode": OF_INPUT_METHOD}
        for kind in ("rawKeyDown", "keyUp"):
            self._session.send("Input.dispatchKeyEvent", {"type": kind, **codes})
        self.visit.frames()


@pytest.mark.parametrize("ends_first", [False, True], ids=["chromium", "safari"])
def test_enter_that_chooses_a_word_does_not_send(device, stage, ends_first):
    device.page.focus("#talk-input")
    device.compose("にほん")
    if ends_first:
        device.choose("日本")
        device.press("Enter")
    else:
        device.press("Enter")
        device.choose("日本")
    assert device.page.input_value("#talk-input") == "日本"
    assert device.talk.messages() == []
    device.page.keyboard.press("Enter")
    device.may_answer.set()
    device.talk.wait_for_state()
    assert device.talk.messages()[0] == "日本"


def test_escape_that_gives_a_word_up_stops_no_answer(device):
    device.talk.say("Say it.")
    device.talk.wait_for_text()
    device.page.focus("#talk-input")
    device.compose("にほん")
    device.press("Escape")
    device.may_answer.set()
    device.talk.wait_for_state()
    assert device.talk.text() == "Begun and done."


def test_an_input_methods_keys_neither_end_nor_send_an_edit(device):
    device.may_answer.set()
    device.talk.say("Say it.")
    device.talk.wait_for_state()
    device.page.locator("#talk .message").first.locator("text='Edit'").click()
    for key in ("Escape", "Enter"):
        device.press(key)
    assert device.page.locator("form.edit textarea").input_value() == "Say it."
    assert len(device.talk.messages()) == 2
    device.page.keyboard.press("Enter")
    device.talk.wait_for_state()
    assert not device.page.locator("form.edit").count()
