"""Requests that are read anew: who gets their deltas, who does not any more, and what the core is told."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from common import messages as m
from common.errors import RequestRejected
from tests.frontend.links import in_event_loop, linked_core, submit, until
from tests.support.fake_core import Step, delta, int32, outputs, say, silence


@in_event_loop
async def test_attaching(tmp_path: Path):
    async with linked_core(tmp_path, say([1, 2, 3])) as (_, link):
        link.open([submit("a"), submit("b")]).detach()
        queue = link.attach_queue()
        assert not (await link.attach("unknown", 0, queue)).found
        answers = await asyncio.gather(link.attach("b", 1, queue), link.attach("a", 0, queue))
        assert [(answer.found, answer.request_id, len(answer.prompt) // 4) for answer in answers] == [
            (True, "b", 3),
            (True, "a", 3),
        ]
        batch: list = []
        while len(batch) < 2:
            batch += await queue.get()
        assert sorted((choice, delta.token_ids) for choice, delta in batch) == [
            (0, int32([1, 2, 3])),
            (1, int32([1, 2, 3])),
        ]


@in_event_loop
async def test_attaches_that_meet(tmp_path: Path):
    """The last one gets the request, from its first token and once; an earlier one that leaves does not disturb it."""

    def script(request: m.Submit) -> Iterator[Step]:
        yield outputs(delta(request, [1, 2]))
        yield 0.2
        yield outputs(delta(request, [3], "length"))

    async with linked_core(tmp_path, script) as (core, link):
        first = link.open([submit("a")])
        queues = [link.attach_queue() for _ in range(3)]
        *answers, last = [link.attach("a", 0, queue) for queue in queues]
        for queue in (first, *queues[:2]):
            with pytest.raises(RequestRejected) as caught:
                await queue.get()
            assert caught.value.code == "taken_over"
            queue.close()
            queue.detach()
        for answer in answers:
            with pytest.raises(RequestRejected):
                await answer
        assert (await last).found
        tokens = b""
        while len(tokens) < 12:
            tokens += b"".join(delta.token_ids for _, delta in await queues[2].get())
        assert tokens == int32([1, 2, 3])
        assert not core.cancels
        assert not core.detaches


@in_event_loop
async def test_a_prompt_of_what_is_taken_over_meanwhile(tmp_path: Path):
    """Of a list of prompts, one attach is under way when another connection comes for the first prompt."""
    async with linked_core(tmp_path, silence) as (core, link):
        link.open([submit("a"), submit("b")]).detach()
        early, late = link.attach_queue(), link.attach_queue()
        await link.attach("a", 0, early)
        under_way = link.attach("b", 1, early)
        await link.attach("a", 0, late)
        await link.status()
        assert early.has_failed
        assert (await under_way).found
        early.close()
        await link.attach("b", 1, late)
        await link.status()
        assert late.request_ids == ["a", "b"]
        assert len(core.detaches) == 2  # those of the beginning
        assert not core.cancels


@in_event_loop
async def test_an_answer_that_nobody_waits_for_any_more(tmp_path: Path):
    async with linked_core(tmp_path, silence) as (core, link):
        link.open([submit("a")]).detach()
        queue = link.attach_queue()
        link.attach("a", 0, queue).cancel()
        await until(lambda: len(core.detaches) == 2)
        assert queue.request_ids == []
        assert link.num_open == 0


@in_event_loop
async def test_an_answer_that_comes_too_late(tmp_path: Path):
    """A reader that asked again has read the replay for its first request: it must not read a second one."""
    async with linked_core(tmp_path, silence) as (core, link):
        link.open([submit("a")]).detach()
        queue = link.attach_queue()
        link.attach("a", 0, link.attach_queue()).cancel()  # out of patience
        assert (await link.attach("a", 0, queue)).found
        with pytest.raises(RequestRejected, match="lost its place") as caught:
            await queue.get()
        assert caught.value.code == "unavailable"
        await until(lambda: len(core.detaches) == 2)


@in_event_loop
async def test_a_core_that_is_lost_while_attaching(tmp_path: Path):
    async with linked_core(tmp_path, silence) as (core, link):
        core.answers_attaches = False
        answers = [link.attach(name, 0, link.attach_queue()) for name in "ab"]
        await asyncio.to_thread(core.close)
        for answer in answers:
            with pytest.raises(RequestRejected) as caught:
                await asyncio.wait_for(answer, 60)
            assert caught.value.code == "unavailable"
        with pytest.raises(RequestRejected, match="cannot be reached"):
            link.attach("a", 0, link.attach_queue())
