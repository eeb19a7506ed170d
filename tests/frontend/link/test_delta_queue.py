"""Deltas of one HTTP request: what is taken, what is ignored, what is cancelled."""

import asyncio

import pytest

from common import messages as m
from common.errors import RequestRejected, WireError
from scheduler_svc.frontend.link.delta_queue import MAX_WAITING_TOKENS, DeltaQueue
from tests.support.fake_core import delta, int32

PARAMS = m.SamplingParams(max_tokens=5)


class Reader:
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
    reader = Reader(prompts=2, n=3)
    reader.put(1, [5], index=2)
    reader.put(0, [6], index=1)
    assert [choice for choice, _ in reader.get()] == [5, 1]


def test_all_that_came_is_one_batch():
    reader = Reader()
    for token in range(3):
        reader.put(0, [token])
    assert len(reader.get()) == 3


def test_only_what_has_not_ended_is_cancelled():
    reader = Reader(prompts=3, n=2)
    reader.put(0, [], "length", index=0)
    reader.put(0, [], "stop", index=1)
    reader.put(1, [], "length", index=0)
    reader.queue.close()
    assert reader.cancelled == [("r1", -1), ("r2", -1)]
    assert reader.forgotten == [reader.queue]
    assert reader.queue.request_ids == ["r0", "r1", "r2"]
    reader.queue.close()
    assert len(reader.cancelled) == 2


def test_a_choice_that_was_ended_here_takes_no_more():
    reader = Reader(n=2)
    reader.queue.end(1)
    assert reader.cancelled == [("r0", 1)]
    reader.put(0, [1], index=1)
    reader.put(0, [2], index=0)
    assert [choice for choice, _ in reader.get()] == [0]
    reader.queue.end(1)
    assert len(reader.cancelled) == 1


@pytest.mark.parametrize("bad", [{"index": 1}, {"index": 127}])
def test_a_sequence_that_was_not_asked_for(bad: dict):
    with pytest.raises(WireError, match="request r0 has 1"):
        Reader().put(0, [1], **bad)


def test_bytes_that_are_no_tokens():
    reader = Reader()
    with pytest.raises(WireError, match="multiple of 4"):
        reader.queue.put(m.TokenDelta(request_id="r0", index=0, token_ids=b"abc"))


@pytest.mark.parametrize(("num_ids", "num_values"), [(2, 3), (3, 3), (1, 1)])
def test_log_probabilities_that_belong_to_no_tokens(num_ids: int, num_values: int):
    reader = Reader()
    with pytest.raises(WireError, match="logprob_ids and logprobs have"):
        reader.put(0, [1, 2], logprob_ids=bytes(4 * num_ids), logprobs=bytes(4 * num_values))
    reader.put(0, [1, 2], logprob_ids=bytes(4 * 4), logprobs=bytes(4 * 4))
    reader.put(0, [], "length")
    assert len(reader.get()) == 2


@pytest.mark.parametrize(("num_ids", "num_values"), [(4, 8), (8, 0), (6, 6)])
def test_log_probabilities_of_prompts_that_do_not_fit(num_ids: int, num_values: int):
    with pytest.raises(WireError, match="prompt_logprob_ids and prompt_logprobs have"):
        Reader().put(0, [], prompt_logprob_ids=bytes(num_ids), prompt_logprobs=bytes(num_values))


def test_a_failure_comes_before_what_is_waiting():
    reader = Reader()
    reader.put(0, [1])
    reader.queue.fail(RequestRejected("gone", "unavailable"))
    reader.put(0, [2])
    with pytest.raises(RequestRejected, match="gone"):
        reader.get()
    reader.queue.close()
    assert reader.told == []  # the caller of `fail` tells the core what is necessary
    assert reader.forgotten[0] is reader.queue


def test_a_reader_that_leaves():
    for resumable in (False, True):
        reader = Reader(prompts=3, n=2, resumable=resumable)
        for index in (0, 1):
            reader.put(1, [], "length", index=index)
        reader.put(2, [], "length", index=1)
        reader.queue.leave()
        assert reader.cancelled == ([] if resumable else [("r0", -1), ("r2", -1)])
        assert reader.detached == (["r0", "r2"] if resumable else [])
        reader.queue.close()
        assert len(reader.told) == 2


def test_cancelling_waits_for_what_the_core_says():
    reader = Reader(prompts=2)
    reader.put(0, [], "length")
    reader.queue.cancel()
    assert reader.cancelled == [("r1", -1)]
    reader.put(1, [], "cancelled")
    assert [delta.finish_reason for _, delta in reader.get()] == ["length", "cancelled"]


def test_what_another_connection_reads_is_left_alone():
    reader = Reader(prompts=2, n=2)
    reader.put(1, [1], "length")
    reader.put(1, [], "error", code="taken_over")  # it is about the request, and has come by its first sequence
    with pytest.raises(RequestRejected) as caught:
        reader.get()
    assert caught.value.code == "taken_over"
    reader.queue.close()
    assert reader.told == []


def test_a_request_whose_id_is_in_use_is_not_cancelled():
    reader = Reader(prompts=2, n=2)
    reader.put(1, [], "error", code="request_exists")
    assert reader.get()[0][1].code == "request_exists"
    reader.queue.close()
    assert reader.cancelled == [("r0", -1)]  # that one is ours


@pytest.mark.parametrize("resumable", [False, True])
def test_a_reader_that_is_too_slow_is_dropped(resumable: bool):
    reader = Reader(resumable=resumable)
    for _ in range(3):
        reader.put(0, [1] * MAX_WAITING_TOKENS)
        reader.get()
    reader.put(0, [1] * MAX_WAITING_TOKENS)
    reader.put(0, [1])
    assert (reader.cancelled, reader.detached) == (([], ["r0"]) if resumable else ([("r0", -1)], []))
    with pytest.raises(RequestRejected, match="unread"):
        reader.get()


def test_nothing_is_too_much_for_a_whole_answer():
    reader = Reader(stream=False)
    reader.put(0, [1] * (MAX_WAITING_TOKENS + 1))
    reader.put(0, [1] * (MAX_WAITING_TOKENS + 1), "length")
    assert len(reader.get()) == 2


def test_what_there_was_before_an_attach_does_not_count_as_unread():
    reader = Reader(n=2)
    reader.put(0, [1] * (MAX_WAITING_TOKENS + 1), index=0)
    reader.put(0, [1] * (MAX_WAITING_TOKENS + 1), index=1)
    assert len(reader.get()) == 2
    reader.put(0, [1] * (MAX_WAITING_TOKENS + 1), index=1)
    with pytest.raises(RequestRejected, match="unread"):
        reader.get()


def test_log_probabilities_of_a_prompt_are_no_unread_tokens():
    """After an attach they may come by themselves, and then all earlier tokens."""
    reader = Reader()
    reader.put(0, [], prompt_logprob_ids=bytes(8 * MAX_WAITING_TOKENS), prompt_logprobs=bytes(8 * MAX_WAITING_TOKENS))
    reader.put(0, [1] * (MAX_WAITING_TOKENS + 1))
    assert len(reader.get()) == 2


def test_a_request_is_accepted_when_all_of_its_prompts_are():
    """Tokens say so, too; a refusal does not."""

    async def scenario() -> None:
        reader = Reader(prompts=3)
        accepted = asyncio.ensure_future(reader.queue.accepted())
        for happens in (
            lambda: reader.queue.accept("r0"),
            lambda: reader.queue.accept("r0"),
            lambda: reader.put(1, [5]),
            lambda: reader.put(2, [], "error", code="queue_full"),
        ):
            happens()
            await asyncio.sleep(0)
            assert not accepted.done()
        reader.queue.accept("r2")
        await asyncio.wait_for(accepted, 60)

    asyncio.run(scenario())
