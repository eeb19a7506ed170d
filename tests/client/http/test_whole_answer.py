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
from scheduler_svc.frontend.parsing.message import CallPart

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
    for piece in pieces([(choice, "", None) for choice in range(3)], has_logprobs):
        if opening := form.opening(piece):
            answer.add(json.loads(to_json(opening)))
    for piece in pieces(STREAM, has_logprobs):
        answer.add(json.loads(to_json(form.chunk(piece))))
    answer.add(json.loads(to_json(form.ending(USAGE, MODEL))))
    whole = json.loads(to_json(form.whole(list(choices(kind, has_logprobs)), USAGE, MODEL)))
    assert json.dumps(answer.json()) == json.dumps(whole), "to the letter"


@pytest.mark.parametrize("content", ["", "Let me look."])
def test_thoughts_and_calls_are_put_together_too(content):
    form = ChatFormat("id-1", 1234, "model", include_usage=True)
    stream = [
        {"thought": "They ask "},
        {"thought": "for the weather."},
        {"text": content},
        {"calls": (CallPart(0, "look", ""),)},
        {"calls": (CallPart(0, "", '{"at": '), CallPart(1, "wait", ""))},
        {"calls": (CallPart(0, "", "7}"), CallPart(1, "", "{}"))},
        {"finish_reason": "tool_calls"},
    ]
    start = {"choice": 0, "text": "", "finish_reason": None, "num_tokens": 1, "model": MODEL}
    answer = WholeAnswer()
    answer.add(json.loads(to_json(form.opening(Piece(**start)))))
    for fields in stream:
        answer.add(json.loads(to_json(form.chunk(Piece(**start | fields)))))
    answer.add(json.loads(to_json(form.ending(USAGE, MODEL))))
    calls = (CallPart(0, "look", '{"at": 7}'), CallPart(1, "wait", "{}"))
    choice = WholeChoice(0, content, "tool_calls", None, thought="They ask for the weather.", calls=calls)
    whole = json.loads(to_json(form.whole([choice], USAGE, MODEL)))
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
