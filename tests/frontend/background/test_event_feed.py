"""Readers of one response in the background: its events are written once for all that read them now, and again, byte
for byte, for those that come later."""

import asyncio

import pytest

from common import messages as m
from scheduler_svc.frontend.answers.responses.events import BEGINNING, NEVER, ResponseEvents
from scheduler_svc.frontend.background.event_feed import MAX_UNREAD_BYTES, EventFeed
from scheduler_svc.frontend.background.response_run import ResponseRun
from scheduler_svc.frontend.requests.responses.background_work import WORK_VERSION, BackgroundWork
from tests.frontend.answers.responses.told import ID, context_of, events_in, spec_of
from tests.frontend.links import in_event_loop, until
from tests.support.demo_tokenizer import TOKENIZER, ids
from tests.support.fake_core import int32

WORDS = ids(" ".join(["one two three four five six seven"] * 20))


class Core:
    """Takes a request, and says what it is told to say."""

    def __init__(self) -> None:
        self.queue = None

    def attach_queue(self):
        return self

    def detach(self):
        pass

    close = leave = cancel = detach

    async def attach(self, *_):
        return m.Attached(request_id="r", found=False)

    def open(self, submits, *, is_resumable):
        self.queue = asyncio.Queue()
        return self

    async def accepted(self):
        pass

    async def get(self):
        return [(0, await self.queue.get())]

    def say(self, tokens, reason=None):
        self.queue.put_nowait(m.TokenDelta(request_id="r", index=0, token_ids=int32(tokens), finish_reason=reason))


def make_run(core: Core) -> ResponseRun:
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
    return ResponseRun(core, TOKENIZER, work)


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
async def test_events_are_written_once_for_all_who_read_them(monkeypatch: pytest.MonkeyPatch):
    written = []
    write = ResponseEvents._write

    def counted(self, name, data, number):
        written.append(number)
        return write(self, name, data, number)

    monkeypatch.setattr(ResponseEvents, "_write", counted)
    core = Core()
    run = make_run(core)
    running = asyncio.create_task(run.run())
    await until(lambda: core.queue)
    first = [Reader(run) for _ in range(20)]
    core.say(WORDS[:40])
    await until(lambda: all(reader.data for reader in first))
    assert len(written) == len(set(written))
    late = Reader(run)
    await until(lambda: late.data)
    assert late.data == first[0].data, "byte for byte"
    del written[:]
    core.say(WORDS[40:])
    await until(lambda: len(events_in(late.data)) == len(events_in(first[0].data)) > 80)
    assert len(written) == len(set(written)), "it shares what comes now"
    core.say([], "length")
    await running
    run.is_kept.set()
    for reader in [*first, late]:
        await reader.task
        assert reader.has_all
        assert reader.data == first[0].data
    numbers = [event["sequence_number"] for event in events_in(late.data)]
    assert numbers == list(range(len(BEGINNING), len(BEGINNING) + len(numbers)))
    assert not any("response" in event for event in events_in(late.data)), "those have the head"


@in_event_loop
async def test_a_reader_gets_what_comes_after_what_it_has_of_another_worker():
    core = Core()
    run = make_run(core)
    running = asyncio.create_task(run.run())
    await until(lambda: core.queue)
    whole, rest = Reader(run), Reader(run, after=30)
    for start in range(0, len(WORDS), 7):
        core.say(WORDS[start : start + 7])
        await asyncio.sleep(0.001)
    core.say([], "length")
    await running
    await asyncio.gather(whole.task, rest.task)
    assert whole.has_all
    assert rest.has_all
    assert events_in(rest.data) == [event for event in events_in(whole.data) if event["sequence_number"] > 30]


@in_event_loop
async def test_a_run_that_is_broken_off_ends_its_readers_without_an_end():
    core = Core()
    run = make_run(core)
    running = asyncio.create_task(run.run())
    await until(lambda: core.queue)
    core.say(WORDS[:9])
    reader, ahead = Reader(run), Reader(run, after=100)
    await until(lambda: reader.data)
    run.break_off()
    assert await running is None
    for each in (reader, ahead, Reader(run)):
        await each.task
        assert not each.has_all


@in_event_loop
async def test_without_readers_nothing_is_written():
    feed = EventFeed(spec_of())
    assert feed.events._after == NEVER
    with feed.reader(), feed.reader():
        assert feed.events._after == len(BEGINNING) - 1
    assert feed.events._after == NEVER


@in_event_loop
async def test_a_reader_that_does_not_read_is_let_go():
    class Long:
        def of(self, _pieces):
            yield b"x" * (MAX_UNREAD_BYTES // 2)

        def write_after(self, _number):
            pass

    feed = EventFeed(spec_of())
    feed.events = Long()
    with feed.reader() as slow, feed.reader() as quick:
        for _ in range(5):
            feed.write([])
            assert len(await quick.next()) == MAX_UNREAD_BYTES // 2
        assert slow.is_over
        assert not slow.is_whole
        assert len(await slow.next()) < 2 * MAX_UNREAD_BYTES
        assert await slow.next() == b""
        feed.close(is_whole=True)
        assert quick.is_whole
