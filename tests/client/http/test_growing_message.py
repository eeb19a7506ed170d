"""Deltas of a chat put together: wherever they were cut, they give one message."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.client.http.growing_message import Call, GrowingMessage

MESSAGE = {
    "content": "Let me look.",
    "role": "assistant",
    "refusal": None,
    "reasoning_content": "They ask for the weather.",
    "reasoning": "They ask for the weather.",
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": "Köln"}'}},
        {"id": "b", "type": "function", "function": {"name": "wait", "arguments": "{}"}},
    ],
}


@st.composite
def cuts(draw, text):
    edges = sorted({0, *draw(st.lists(st.integers(0, len(text)), max_size=4)), len(text)})
    return [text[start:end] for start, end in pairwise(edges)]


@given(st.data())
def test_any_cut_gives_the_same_message(data):
    message = GrowingMessage()
    message.add({"role": "assistant", "content": ""})
    for piece in data.draw(cuts(MESSAGE["reasoning"])):
        message.add({"reasoning_content": piece, "reasoning": piece})
    for piece in data.draw(cuts(MESSAGE["content"])):
        message.add({"content": piece, "tool_calls": None})
    for number, call in enumerate(MESSAGE["tool_calls"]):
        start = {"index": number, **call, "function": {**call["function"], "arguments": ""}}
        message.add({"content": None, "tool_calls": [start]})
        for piece in data.draw(cuts(call["function"]["arguments"])):
            message.add({"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
    assert message.json() == MESSAGE
    assert message.thought == MESSAGE["reasoning"]


def test_content_is_null_beside_calls_alone():
    message = GrowingMessage()
    message.add({"role": "assistant", "content": "", "tool_calls": [{"index": 0, "function": {"name": "f"}}]})
    assert message.json()["content"] is None


def test_calls_for_people():
    assert str(Call("", "look", '{"at": "Köln", "days": [1, 2]}')) == 'look(at="Köln", days=[1, 2])'
    assert str(Call("", "look", "")) == "look()"
    assert str(Call("", "look", '{"at": "Kö')) == 'look({"at": "Kö)', "cut short"
