"""Readers of one response in the background: its events are written once for all that read them now, and again, byte
for byte, for those that come later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from common import messages as m
from scheduler_svc.frontend.answers.choice import Piece
from scheduler_svc.frontend.answers.responses.events import BEGINNING
from scheduler_svc.frontend.background.event_feed import MAX_UNREAD_BYTES, EventFeed
from scheduler_svc.frontend.background.response_run import ResponseRun
from scheduler_svc.frontend.requests.responses.background_work import WORK_VERSION, BackgroundWork
from tests.frontend.answers.responses.told import ID, context_of, events_in, spec_of
from tests.frontend.links import in_event_loop, linked_core, until
from tests.support.demo_tokenizer import TOKENIZER, ids
from tests.support.fake_core import Prompter, int32
from tests.support.instructions import instructions_of

WORDS = ids(" ".join(["one two three four five six seven"] * 20))


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Prompter, ResponseRun, asyncio.Task]]:
    """What the core says when it is told to, and a response that is run beside it."""
    submit = m.Submit(
        request_id=f"{ID}-0",
        prompt=int32([1, 2, 3]),
        params=m.SamplingParams(max_tokens=500),
        context=context_of().encode(),
        stream=True,
        is_resumable=True,
    )
    work = BackgroundWork.decode(BackgroundWork(WORK_VERSION, spec_of(), submit).encode())
    assert work.spec.head == b"", "the worker holds no heads"
    core = Prompter()
    async with linked_core(folder, core) as (_, link):
        run = ResponseRun(link, TOKENIZER, work)
        yield core, run, asyncio.create_task(run.run())


class Reader:
    """Has read so much."""

    def __init__(self, run: ResponseRun, after: int = -1) -> None:
        self.data = b""
        self.has_all = False
        self._events = run.events(after)
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for part in self._events:
            self.data += part
            self.has_all = not part


@in_event_loop
async def test_all_readers_get_the_same_bytes_whenever_they_come(tmp_path: Path):
    async with running(tmp_path) as (core, run, task):
        readers = [Reader(run) for _ in range(20)]
        core.say(WORDS[:40])
        await until(lambda: all(reader.data for reader in readers))
        readers.append(late := Reader(run))
        await until(lambda: late.data)
        assert late.data == readers[0].data, "byte for byte"
        core.say(WORDS[40:])
        core.say([], "length")
        await task
        run.is_kept.set()
        for reader in readers:
            await reader.task
            assert reader.has_all
            assert reader.data == readers[0].data
    numbers = [event["sequence_number"] for event in events_in(late.data)]
    assert numbers == list(range(len(BEGINNING), len(BEGINNING) + len(numbers)))
    assert not any("response" in event for event in events_in(late.data)), "those have the head"


@in_event_loop
async def test_a_reader_gets_what_comes_after_what_it_has_of_another_worker(tmp_path: Path):
    async with running(tmp_path) as (core, run, task):
        whole, rest = Reader(run), Reader(run, after=30)
        for start in range(0, len(WORDS), 7):
            core.say(WORDS[start : start + 7])
        core.say([], "length")
        await task
        await asyncio.gather(whole.task, rest.task)
    assert whole.has_all
    assert rest.has_all
    assert events_in(rest.data) == [event for event in events_in(whole.data) if event["sequence_number"] > 30]


@in_event_loop
async def test_a_run_that_is_broken_off_ends_its_readers_without_an_end(tmp_path: Path):
    async with running(tmp_path) as (core, run, task):
        core.say(WORDS[:9])
        reader, ahead = Reader(run), Reader(run, after=100)
        await until(lambda: reader.data)
        run.break_off()
        assert await task is None
        for each in (reader, ahead, Reader(run)):
            await each.task
            assert not each.has_all


def piece(text: str) -> Piece:
    return Piece(choice=0, text=text, finish_reason=None, num_tokens=1, model="")


def cost_of_writing(num_readers: int, after: int = 0) -> int:
    """What the next events cost that are written while there are so many readers, and `after` others have gone."""
    feed = EventFeed(spec_of())
    for _ in range(after):
        with feed.reader():
            pass
    with ExitStack() as readers:
        for _ in range(num_readers):
            readers.enter_context(feed.reader())
        return instructions_of(lambda: feed.write([piece("word")] * 50))


@in_event_loop
async def test_events_are_written_once_for_all_who_read_them_and_never_for_none():
    one = cost_of_writing(1)
    assert cost_of_writing(20) < 1.2 * one
    assert cost_of_writing(0) < 0.85 * one
    assert cost_of_writing(0, after=3) < 0.85 * one, "they have gone"


@in_event_loop
async def test_a_reader_that_does_not_read_is_let_go():
    feed = EventFeed(spec_of())
    text = "x" * (MAX_UNREAD_BYTES // 2)
    with feed.reader() as slow, feed.reader() as quick:
        for _ in range(5):
            feed.write([piece(text)])
            assert len(await quick.next()) > len(text)
        assert slow.is_over
        assert not slow.is_whole
        assert len(await slow.next()) < 3 * MAX_UNREAD_BYTES
        assert await slow.next() == b""
        feed.close(is_whole=True)
        assert quick.is_whole
