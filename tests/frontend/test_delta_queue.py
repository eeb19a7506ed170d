"""Deltas of one HTTP request: what is taken, what is ignored, what is cancelled."""

import asyncio

import pytest

from common import messages as m
from common.errors import RequestRejected, WireError
from scheduler_svc.frontend.link import delta_queue
from scheduler_svc.frontend.link.delta_queue import DeltaQueue
from tests.frontend.fake_core import delta, int32

PARAMS = m.SamplingParams(max_tokens=5)


class Desk:
    """A queue and what it told the core and the link."""

    def __init__(self, *, prompts: int = 1, n: int = 1, stream: bool = True, resumable: bool = False) -> None:
        self.submits = [m.Submit(request_id=f"r{i}", prompt=int32([1]), params=PARAMS, n=n) for i in range(prompts)]
        self.told: list[m.Cancel | m.Detach] = []
        self.forgotten: list[DeltaQueue] = []
        self.queue = DeltaQueue(self.told.append, self.forgotten.append, is_streamed=stream, is_resumable=resumable)
        for prompt, submit in enumerate(self.submits):
            self.queue.add(submit.request_id, prompt, n)

    @property
    def cancelled(self) -> list[tuple[str, int]]:
        return [(message.request_id, message.index) for message in self.told if isinstance(message, m.Cancel)]

    @property
    def detached(self) -> list[str]:
        return [message.request_id for message in self.told if isinstance(message, m.Detach)]

    def put(self, prompt: int, *args: object, **more: object) -> None:
        self.queue.put(delta(self.submits[prompt], *args, **more))

    def get(self) -> list[tuple[int, m.TokenDelta]]:
        return asyncio.run(asyncio.wait_for(self.queue.get(), 1))


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
    desk.queue.close()
    assert desk.cancelled == [("r1", -1), ("r2", -1)]
    assert desk.forgotten == [desk.queue]
    assert desk.queue.request_ids == ["r0", "r1", "r2"]
    desk.queue.close()
    assert len(desk.cancelled) == 2


def test_a_choice_that_was_ended_here_takes_no_more():
    desk = Desk(n=2)
    desk.queue.end(1)
    assert desk.cancelled == [("r0", 1)]
    desk.put(0, [1], index=1)
    desk.put(0, [2], index=0)
    assert [choice for choice, _ in desk.get()] == [0]
    desk.queue.end(1)
    assert len(desk.cancelled) == 1


@pytest.mark.parametrize("bad", [{"index": 1}, {"index": 127}])
def test_a_sequence_that_was_not_asked_for(bad: dict):
    with pytest.raises(WireError, match="request r0 has 1"):
        Desk().put(0, [1], **bad)


def test_bytes_that_are_no_tokens():
    desk = Desk()
    with pytest.raises(WireError, match="multiple of 4"):
        desk.queue.put(m.TokenDelta(request_id="r0", index=0, token_ids=b"abc"))


def test_a_failure_comes_before_what_is_waiting():
    desk = Desk()
    desk.put(0, [1])
    desk.queue.fail(RequestRejected("gone", "unavailable"))
    desk.put(0, [2])
    with pytest.raises(RequestRejected, match="gone"):
        desk.get()
    desk.queue.close()
    assert desk.told == []  # the caller of `fail` tells the core what is necessary
    assert desk.forgotten[0] is desk.queue


def test_a_reader_that_leaves():
    for resumable in (False, True):
        desk = Desk(prompts=3, n=2, resumable=resumable)
        for index in (0, 1):
            desk.put(1, [], "length", index=index)
        desk.put(2, [], "length", index=1)
        desk.queue.leave()
        assert desk.cancelled == ([] if resumable else [("r0", -1), ("r2", -1)])
        assert desk.detached == (["r0", "r2"] if resumable else [])
        desk.queue.close()
        assert len(desk.told) == 2


def test_cancelling_waits_for_what_the_core_says():
    desk = Desk(prompts=2)
    desk.put(0, [], "length")
    desk.queue.cancel()
    assert desk.cancelled == [("r1", -1)]
    desk.put(1, [], "cancelled")
    assert [delta.finish_reason for _, delta in desk.get()] == ["length", "cancelled"]


def test_what_another_connection_reads_is_left_alone():
    desk = Desk(prompts=2, n=2)
    desk.put(1, [1], "length")
    desk.put(1, [], "error", code="taken_over")  # it is about the request, and has come by its first sequence
    with pytest.raises(RequestRejected) as caught:
        desk.get()
    assert caught.value.code == "taken_over"
    desk.queue.close()
    assert desk.told == []


def test_a_request_whose_id_is_in_use_is_not_cancelled():
    desk = Desk(prompts=2, n=2)
    desk.put(1, [], "error", code="request_exists")
    assert desk.get()[0][1].code == "request_exists"
    desk.queue.close()
    assert desk.cancelled == [("r0", -1)]  # that one is ours


@pytest.mark.parametrize("resumable", [False, True])
def test_a_reader_that_is_too_slow_is_dropped(monkeypatch: pytest.MonkeyPatch, resumable: bool):
    monkeypatch.setattr(delta_queue, "MAX_WAITING_TOKENS", 10)
    desk = Desk(resumable=resumable)
    for _ in range(3):
        desk.put(0, [1] * 10)
        desk.get()
    desk.put(0, [1] * 10)
    desk.put(0, [1])
    assert (desk.cancelled, desk.detached) == (([], ["r0"]) if resumable else ([("r0", -1)], []))
    with pytest.raises(RequestRejected, match="unread"):
        desk.get()


def test_nothing_is_too_much_for_a_whole_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delta_queue, "MAX_WAITING_TOKENS", 10)
    desk = Desk(stream=False)
    desk.put(0, [1] * 100)
    desk.put(0, [1] * 100, "length")
    assert len(desk.get()) == 2


def test_what_there_was_before_an_attach_does_not_count_as_unread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delta_queue, "MAX_WAITING_TOKENS", 10)
    desk = Desk(n=2)
    desk.put(0, [1] * 100, index=0)
    desk.put(0, [1] * 100, index=1)
    assert len(desk.get()) == 2
    desk.put(0, [1] * 11, index=1)
    with pytest.raises(RequestRejected, match="unread"):
        desk.get()
