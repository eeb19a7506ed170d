"""A stream put together is what the service itself answers without streaming; checked against its own formats."""

import json

import pytest

from scheduler_svc.client.http.whole_answer import WholeAnswer
from scheduler_svc.frontend.answers.choice import Piece
from scheduler_svc.frontend.answers.formats import ChatFormat, CompletionFormat
from scheduler_svc.frontend.answers.generation import WholeChoice
from scheduler_svc.frontend.answers.logprobs import Entry, LogprobsJson
from scheduler_svc.frontend.answers.openai_objects import (
    PromptTokensDetails,
    TokenLogprob,
    TopLogprob,
    Usage,
    to_json,
)

USAGE = Usage(7, 6, 13, PromptTokensDetails(2))
MODEL = "0123456789abcdef/float32"
STREAM = [
    (1, "one ", None),
    (0, "zero ", None),
    (1, "more", None),
    (0, "", "length"),
    (2, "", "stop"),
    (1, "!", "stop"),
]
WHOLE = [(0, "zero ", "length"), (1, "one more!", "stop"), (2, "", "stop")]


@pytest.mark.parametrize("has_logprobs", [False, True])
@pytest.mark.parametrize(("form_type", "kind"), [(CompletionFormat, "completion"), (ChatFormat, "chat")])
def test_a_stream_put_together_is_the_whole_answer(form_type, kind, has_logprobs):
    form = form_type("id-1", 1234, "model", include_usage=True)
    answer = WholeAnswer()
    for choice in range(3):
        if opening := form.opening(choice, MODEL):
            answer.add(json.loads(to_json(opening)))
    for piece in pieces(STREAM, has_logprobs):
        answer.add(json.loads(to_json(form.chunk(piece))))
    answer.add(json.loads(to_json(form.ending(USAGE, MODEL))))
    whole = json.loads(to_json(form.whole(list(choices(kind, has_logprobs)), USAGE, MODEL)))
    assert json.dumps(answer.json()) == json.dumps(whole), "to the letter"


def pieces(facts, has_logprobs):
    return [
        Piece(choice, text, reason, num_tokens=1, model=MODEL, logprobs=entries(text) if has_logprobs else None)
        for choice, text, reason in facts
    ]


def choices(kind, has_logprobs):
    """The whole ones, whose log-probabilities come in two parts."""
    for choice, text, reason in WHOLE:
        logprobs = LogprobsJson(kind)
        logprobs.add(entries(text[:2]))
        logprobs.add(entries(text[2:]))
        yield WholeChoice(choice, text, reason, logprobs.json() if has_logprobs else None)


def entries(text):
    """One for each letter."""
    return [
        Entry(TokenLogprob(letter, [ord(letter)], -ord(letter) / 7, [TopLogprob("x", None, -0.5)]), ord(letter))
        for letter in text
    ]
