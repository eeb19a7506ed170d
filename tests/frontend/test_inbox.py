"""Deltas of one HTTP request: what is taken, what is ignored, what is cancelled."""

import asyncio

import pytest

from common import messages as m
from common.errors import RequestRejected, WireError
from scheduler_svc.frontend import inbox as inbox_module
from scheduler_svc.frontend.inbox import Inbox
from tests.frontend.fake_core import delta, int32

PARAMS = m.SamplingParams(max_tokens=5)


class Desk:
    """An inbox and what it told the link."""

    def __init__(self, *, prompts: int = 1, n: int = 1, stream: bool = True) -> None:
        self.submits = [
            m.Submit(request_id=f"r{i}", prompt=int32([1]), params=PARAMS, n=n, stream=stream) for i in range(prompts)
        ]
        self.cancelled: list[tuple[str, int]] = []
        self.forgotten: list[str] = []
        self.inbox = Inbox(
            self.submits, lambda request_id, index: self.cancelled.append((request_id, index)), self.forgotten.append
        )

    def put(self, prompt: int, *args: object, **more: object) -> None:
        self.inbox.put(delta(self.submits[prompt], *args, **more))

    def get(self) -> list[tuple[int, m.TokenDelta]]:
        return asyncio.run(asyncio.wait_for(self.inbox.get(), 1))


def test_choices_are_numbered_as_openai_does():
    desk = Desk(prompts=2, n=3)
    desk.put(1, [5], index=2)
    desk.put(0, [6], index=1)
    assert [choice for choice, _ in desk.get()] == [5, 1]


def test_all_that_came_is_one_batch():
    desk = Desk()
    for token in range(3):
        desk.put(0, [token])
    assert len(desk.get()) == 3


def test_only_what_has_not_ended_is_cancelled():
    desk = Desk(prompts=3, n=2)
    desk.put(0, [], "length", index=0)
    desk.put(0, [], "stop", index=1)
    desk.put(1, [], "length", index=0)
    desk.inbox.close()
    assert desk.cancelled == [("r1", -1), ("r2", -1)]
    assert desk.forgotten == ["r0", "r1", "r2"]
    desk.inbox.close()
    assert len(desk.cancelled) == 2


def test_a_choice_that_was_ended_here_takes_no_more():
    desk = Desk(n=2)
    desk.inbox.end(1)
    assert desk.cancelled == [("r0", 1)]
    desk.put(0, [1], index=1)
    desk.put(0, [2], index=0)
    assert [choice for choice, _ in desk.get()] == [0]
    desk.inbox.end(1)
    assert len(desk.cancelled) == 1


@pytest.mark.parametrize("bad", [{"index": 1}, {"index": 127}])
def test_a_sequence_that_was_not_asked_for(bad: dict):
    with pytest.raises(WireError, match="request r0 has 1"):
        Desk().put(0, [1], **bad)


def test_bytes_that_are_no_tokens():
    desk = Desk()
    with pytest.raises(WireError, match="multiple of 4"):
        desk.inbox.put(m.TokenDelta(request_id="r0", index=0, token_ids=b"abc"))


def test_a_failure_comes_before_what_is_waiting():
    desk = Desk()
    desk.put(0, [1])
    desk.inbox.fail(RequestRejected("gone", "unavailable"))
    with pytest.raises(RequestRejected, match="gone"):
        desk.get()
    assert desk.cancelled == [("r0", -1)]


def test_a_reader_that_is_too_slow_is_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inbox_module, "MAX_WAITING_TOKENS", 10)
    desk = Desk()
    for _ in range(3):
        desk.put(0, [1] * 10)
        desk.get()
    desk.put(0, [1] * 10)
    desk.put(0, [1])
    assert desk.cancelled == [("r0", -1)]
    with pytest.raises(RequestRejected, match="unread"):
        desk.get()
    whole = Desk(stream=False)
    whole.put(0, [1] * 100, "length")
    assert len(whole.get()) == 1
