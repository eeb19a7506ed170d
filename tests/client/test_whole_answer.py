"""A stream put together is what the service itself answers without streaming; checked against its own formats."""

import json

import pytest

from scheduler_svc.client.http.whole_answer import WholeAnswer
from scheduler_svc.frontend.answers.formats import ChatFormat, CompletionFormat
from scheduler_svc.frontend.answers.generation import Piece
from scheduler_svc.frontend.answers.openai_objects import PromptTokensDetails, Usage, to_json

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


@pytest.mark.parametrize("form_type", [CompletionFormat, ChatFormat])
def test_a_stream_put_together_is_the_whole_answer(form_type):
    form = form_type("id-1", 1234, "model", include_usage=True)
    answer = WholeAnswer()
    for choice in range(3):
        if opening := form.opening(choice, MODEL):
            answer.add(json.loads(to_json(opening)))
    for piece in pieces(STREAM):
        answer.add(json.loads(to_json(form.chunk(piece))))
    answer.add(json.loads(to_json(form.ending(USAGE, MODEL))))
    whole = json.loads(to_json(form.whole(pieces(WHOLE), USAGE, MODEL)))
    assert json.dumps(answer.json()) == json.dumps(whole), "to the letter"


def pieces(facts):
    return [Piece(choice, text, reason, num_tokens=1, model=MODEL) for choice, text, reason in facts]
