"""What becomes of deltas that an undisturbed answer does not have."""

import asyncio

import pytest

from common import messages as m
from common.errors import RequestRejected
from scheduler_svc.frontend.answers.choice import Piece
from scheduler_svc.frontend.answers.event_ids import Position
from scheduler_svc.frontend.answers.generation import AnswerSpec, Generation
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from tests.frontend.answers import contexts
from tests.support.demo_tokenizer import TOKENIZER
from tests.support.fake_core import int32
from tests.support.instructions import instructions_of

ONE, TWO, THREE = (TOKENIZER.encode([word], add_special_tokens=False)[0] for word in ("one", " two", " three"))


class Desk:
    """A generation and its queue."""

    def __init__(self, *, n: int = 1, stop: tuple[str, ...] = (), after: str = "", **limits: int) -> None:
        context = contexts.context_of("completion", n=n, stop=stop)
        self.told: list[m.Cancel | m.Detach] = []
        self.queue = DeltaQueue(self.told.append, lambda _: None, is_streamed=True, is_resumable=True)
        self.queue.add("r", 0, n)
        position = Position.after(after, n) if after else Position.start(n)
        self.generation = Generation(self.queue, TOKENIZER, AnswerSpec("r", context, 3, position), **limits)

    def put(self, token_ids: list[int], reason: m.FinishReason | None = None, index: int = 0, **more: str) -> None:
        delta = m.TokenDelta(request_id="r", index=index, token_ids=int32(token_ids), finish_reason=reason, **more)
        self.queue.put(delta)

    def turns(self) -> tuple[list[list[Piece]], RequestRejected | None]:
        """All that can be had of what was put."""
        turns: list[list[Piece]] = []

        async def run() -> None:
            with self.generation:
                async for pieces in self.generation.pieces():
                    turns.append(pieces)  # noqa: PERF401  (an error must not take them along)

        try:
            asyncio.run(asyncio.wait_for(run(), 5))
        except RequestRejected as rejected:
            return turns, rejected
        return turns, None


def test_what_came_before_an_error_is_given_first():
    desk = Desk(n=2)
    desk.put(ONE)
    desk.put(TWO, index=1)
    desk.put(TWO, "error", error="it burnt", code="internal_error")
    [pieces], failure = desk.turns()
    assert [(piece.choice, piece.text, piece.finish_reason) for piece in pieces] == [
        (0, "one two", None),
        (1, " two", None),
    ]
    assert (failure.code, str(failure)) == ("internal_error", "it burnt")
    assert [message.request_id for message in desk.told] == ["r"]  # the other sequence has no reader


def test_a_stop_string_in_what_was_cancelled():
    """The core was asked to cancel what comes after it, and another frontend reads that."""
    desk = Desk(stop=(" tw",))
    desk.put([*ONE, *TWO, *THREE], "cancelled")
    [[piece]], failure = desk.turns()
    assert (piece.text, piece.finish_reason, piece.num_tokens, failure) == ("one", "stop", len(ONE + TWO), None)


def test_a_request_that_was_cancelled():
    desk = Desk()
    desk.put(ONE, "cancelled")
    [[piece]], failure = desk.turns()
    assert (piece.text, piece.finish_reason, failure.code) == ("one", None, "cancelled")


@pytest.mark.parametrize("reason", ["cancelled", "error", "length", "stop"])
def test_the_end_of_what_the_client_has_ended_with(reason: m.FinishReason):
    """After a crash the core may have lost tokens of a choice whose end its client knows. Whatever becomes of it then
    is no news."""
    desk = Desk(n=2, after="5!.1")
    desk.put(ONE, reason, error="deadline")
    desk.put([*ONE, *TWO], "length", index=1)
    turns, failure = desk.turns()
    assert [(piece.choice, piece.text, piece.finish_reason) for piece in turns[0]] == [(1, " two", "length")]
    assert failure is None


def test_long_answers_are_read_in_parts():
    tokens = [*ONE, *TWO, *THREE] * 5
    whole = Desk()
    whole.put(tokens, "length", model="a/b", error="")
    [[expected]], _ = whole.turns()
    desk = Desk(most_bytes=8)
    desk.put(tokens, "length", model="a/b")
    turns, _ = desk.turns()
    assert len(turns) == (len(tokens) + 1) // 2
    pieces = [piece for pieces in turns for piece in pieces]
    assert "".join(piece.text for piece in pieces) == expected.text
    assert [piece.finish_reason for piece in pieces] == [*[None] * (len(pieces) - 1), "length"]
    assert pieces[-1]._replace(text=expected.text) == expected


def test_stop_strings_are_prepared_once_for_all_choices():

    def cost(n: int) -> int:
        """Of a long stop string, beside a short one."""
        long, short = (instructions_of(lambda stop=stop: Desk(n=n, stop=(stop,))) for stop in ("x" * 256, "x"))
        return long - short

    assert cost(1) > 256
    assert cost(128) < 2 * cost(1)


def test_another_model_goes_on():
    desk = Desk()
    desk.put(ONE, model="a/b")
    desk.put(TWO)
    desk.put(THREE, "length", model="c/d")
    [pieces], _ = desk.turns()
    assert [(piece.text, piece.model, piece.finish_reason) for piece in pieces] == [
        ("one two", "a/b", None),
        (" three", "c/d", "length"),
    ]
    assert desk.generation.model == "c/d"
