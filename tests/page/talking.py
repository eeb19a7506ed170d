"""What a reader does in the view Talk, and what there is to see."""

import json

from tests.support.plain_http import http

SEEDED = {"temperature": 0.8, "seed": 42, "ignore_eos": True}
PROMPT = "JULIET: O Romeo, Romeo! wherefore art thou Romeo?"


class Talk:
    """The first column of a visit's page."""

    def __init__(self, visit):
        self.page = visit.page
        self.page.wait_for_selector("#talk-input")

    def set(self, **values):
        """Type into the settings; they stay open."""
        self.page.evaluate("document.querySelector('[data-testid=settings]').open = true")
        for name, value in values.items():
            control = self.page.locator(f"#a-{name}")
            text = value if isinstance(value, str) else json.dumps(value)
            if control.evaluate("control => control.tagName") == "SELECT":
                control.select_option(text)
            else:
                control.fill(text)
        self.page.evaluate("document.querySelector('[data-testid=settings]').open = false")

    def say(self, text):
        """Send a message."""
        self.page.fill("#talk-input", text)
        self.page.press("#talk-input", "Enter")

    @property
    def answer(self):
        """The last one."""
        return self.page.locator("[data-testid=answer]").last

    def text(self):
        """Of the last answer."""
        return self.answer.locator("[data-testid=text]").text_content()

    def messages(self):
        """Texts of all messages, in order."""
        return self.page.locator("#talk .message > .text").all_text_contents()

    def request(self):
        """The id of the last answer's request."""
        return self.answer.get_attribute("data-request")

    def wait_for_text(self, num_characters=1):
        """Return when so much of the last answer stands there."""
        self.page.wait_for_function(
            """(count) => {
              const texts = document.querySelectorAll("[data-testid=answer] > [data-testid=text]");
              return texts.length > 0 && texts[texts.length - 1].textContent.length >= count;
            }""",
            arg=num_characters,
        )

    def wait_for_state(self, state="done"):
        """Return when the last answer has ended so."""
        self.page.wait_for_selector(f"#talk .messages > :last-child[data-testid=answer][data-state={state}]")

    def gaps(self):
        """Labels of the last answer's gaps, the longest kind first seen."""
        return self.answer.locator(".gap-label").all_text_contents()

    def wait_for_gap(self, text):
        """Return when a gap of the last answer is labelled with this."""
        self.answer.locator(".gap-label", has_text=text).first.wait_for()

    def gap_is_drawn(self):
        """Whether there is a box of some width for a gap that is no swap."""
        return self.answer.locator("path.gap:not(.swap)").evaluate("path => path.getBBox().width") > 0

    def swap_is_drawn(self):
        """Whether there is a box of some width for a swap, in a colour that nothing else on the axis has."""
        colours = "paths => paths.map((path) => getComputedStyle(path)).map(({fill, stroke}) => [fill, stroke])"
        (gap, _), (swap, swap_line), (_, tick) = self.answer.locator(".ticks path").evaluate_all(colours)
        is_own = swap == swap_line and swap not in (gap, tick)
        return is_own and self.answer.locator("path.swap").evaluate("path => path.getBBox().width") > 0


def undisturbed(service, messages, key=None, **parameters):
    """What the service answers to these messages without an event."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)]
    body = {"model": "baton-demo", "messages": said, **parameters}
    answer = http.post(f"{service.url}/v1/chat/completions", json=body, headers=headers, timeout=120)
    return answer.raise_for_status().json()["choices"][0]["message"]["content"]
