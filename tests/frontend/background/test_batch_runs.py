"""Batches from their input to their files: a real store, a fake core, and a worker that a test may end at any time."""

import asyncio
import json
import time
from collections import Counter
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from common import messages as m
from common.clocks import read_clocks
from scheduler_svc.frontend.answers.batch_objects import BatchError, errors_json
from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.background import batch_lines, batches, line_run
from scheduler_svc.frontend.background.batch_tools import BatchTools
from scheduler_svc.frontend.background.batches import Batches
from scheduler_svc.frontend.background.line_gate import LineGate
from scheduler_svc.frontend.background.patient_store import PatientStore
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.link.many_requests import SUBMITS_AT_ONCE
from scheduler_svc.frontend.requests.batches.line_endpoints import line_endpoints
from scheduler_svc.frontend.requests.batches.ready_line import PRIORITY
from scheduler_svc.frontend.requests.chat_style import style_of
from scheduler_svc.frontend.requests.pooling_model import PoolingModel
from scheduler_svc.frontend.requests.reader import RequestReader
from scheduler_svc.frontend.storing.batches import BatchStore
from scheduler_svc.frontend.storing.files import FileStore
from scheduler_svc.frontend.storing.sweeping import Sweeper
from scheduler_svc.frontend.text.long_work import LongWork
from scheduler_svc.frontend_options import FrontendOptions
from scheduler_svc.store import batch_results, owners, quotas, sweep
from scheduler_svc.store import batches as stored_batches
from scheduler_svc.store.errors import QuotaExceeded
from scheduler_svc.store.records import OPEN_BATCH
from scheduler_svc.store.store_thread import StoreThread
from scheduler_svc.store_options import StoreOptions
from tests.frontend.keys import Keys
from tests.frontend.links import in_event_loop, linked_core, until
from tests.support.demo_tokenizer import TOKENIZER
from tests.support.fake_core import REPORT, FakeCore, delta, echo, outputs, refuse, silence, tokens_of
from tests.support.status_reports import executor_status

URL = "/v1/completions"
OPTIONS = FrontendOptions(served_model_name=("m",))
ROOMY = msgspec.structs.replace(REPORT, executors=[executor_status(max_num_seqs=64, num_blocks=9, free_blocks=9)])


class Place:
    """A store, a fake core, a link to it, and what a test asks of them."""

    def __init__(self, folder, core, link, keys, owner, clocks):
        self.core = core
        self.options = StoreOptions(folder)
        self.thread = StoreThread(folder, clocks=clocks)
        reader = RequestReader(link, TOKENIZER, OPTIONS, LongWork())
        self.tools = BatchTools(
            link=link,
            reader=reader,
            endpoints=line_endpoints(
                link, reader, style_of(TOKENIZER.chat_template, OPTIONS), "m", PoolingModel(("v",), TOKENIZER)
            ),
            store=PatientStore(self.thread, retry_s=0.0),
            gate=LineGate(),
            keys=keys,
            limit_bytes=0,
            flush_s=0.01,
            retry_s=0.0,
            look_s=0.01,
        )
        self.files = FileStore(self.thread, self.options, Sweeper(self.thread, keys))
        self.owner = owner
        self.running = None

    async def batch(self, *bodies, lines=None, endpoint=URL, window_s=3600.0):
        """A new batch of these bodies, or of these lines."""
        if lines is None:
            facts = {"method": "POST", "url": endpoint}
            lines = [json.dumps({"custom_id": f"c{i}", **facts, "body": body}) for i, body in enumerate(bodies)]
        upload = await self.files.begin(self.owner, "in.jsonl")
        await upload.add("\n".join(lines).encode())
        file = await upload.finish("batch", None)
        store = BatchStore(self.thread, self.options)
        asked = {"window": ("1h", window_s), "metadata": {}, "output_expires_after_s": None}
        made = await store.add(self.owner, input_file_id=file.file_id, endpoint=endpoint, **asked)
        if self.running is not None:
            self.running.start(self.owner, made.batch_id)
        return made.batch_id

    async def seen(self, batch_id):
        return await self.thread.run(self.owner, stored_batches.get, self.owner, batch_id, self.thread.clock.now())

    async def seen_as(self, batch_id, is_right):
        """A batch, once that is right of it."""
        async with asyncio.timeout(60):
            while not is_right(batch := await self.seen(batch_id)):
                await asyncio.sleep(0.005)
        return batch

    async def ended(self, batch_id):
        return await self.seen_as(batch_id, lambda batch: batch.status not in OPEN_BATCH)

    async def rows(self, file_id):
        """The lines of a file; none if there is no file."""
        if file_id is None:
            return []
        file = await self.files.get(self.owner, file_id)
        content = b"".join([chunk async for chunk in self.files.content(file)])
        return [json.loads(line) for line in content.splitlines()]

    async def results(self, batch):
        """Rows of the output and of the errors."""
        return await self.rows(batch.output_file_id), await self.rows(batch.error_file_id)

    @asynccontextmanager
    async def worker(self):
        """The batches of a worker, which is ended in the end: killed, as far as the store and the core can tell."""
        self.running = Batches(self.tools)
        task = asyncio.create_task(self.running.run())
        try:
            yield self.running
        finally:
            self.running = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def place(folder, *, script=echo, keys=None, owner="", clocks=read_clocks):
    async with linked_core(folder, script) as (core, link):
        core.report = ROOMY
        found = Place(folder / "store", core, link, keys or ApiKeys(), owner, clocks)
        try:
            yield found
        finally:
            found.thread.close()


def completion(text, **more):
    return {"model": "m", "prompt": text, "max_tokens": 5, **more}


def echoed(text):
    """What the fake core says to it."""
    (token_ids,) = TOKENIZER.encode([text], add_special_tokens=True)
    return b"".join(TOKENIZER.token_bytes[token_id] for token_id in token_ids[:5]).decode()


def lanes(number):
    """A report of one executor with so many lanes."""
    return msgspec.structs.replace(ROOMY, executors=[executor_status(max_num_seqs=number)])


@in_event_loop
async def test_a_batch_from_its_input_to_its_files(tmp_path):
    async with place(tmp_path) as here, here.worker():
        bodies = [completion("ROMEO: one two three"), completion("x", model="nope"), completion("JULIET: a b c", n=2)]
        batch_id = await here.batch(*bodies, "no object", completion("y", stop="zz", priority=3))
        batch = await here.ended(batch_id)
        assert (batch.status, batch.total) == ("failed", 0), "a body that is no object is no request"
        batch_id = await here.batch(*bodies, completion("y", stop="zz", priority=3))
        batch = await here.ended(batch_id)
        output, errors = await here.results(batch)
    assert (batch.status, batch.total, batch.completed, batch.failed) == ("completed", 4, 3, 1)
    assert [row["custom_id"] for row in output] == ["c0", "c2", "c3"]
    assert all(row["error"] is None and row["response"]["status_code"] == 200 for row in output + errors[1:])
    body = output[0]["response"]["body"]
    assert body["choices"][0]["text"] == echoed("ROMEO: one two three")
    assert body["id"] == output[0]["response"]["request_id"] == f"cmpl-{batch_id.removeprefix('batch_')}-0"
    assert len(output[1]["response"]["body"]["choices"]) == 2
    (error,) = errors
    assert (error["custom_id"], error["error"]) == ("c1", None)
    assert (error["response"]["status_code"], error["response"]["body"]["error"]["code"]) == (404, "model_not_found")
    assert [submit.priority for submit in here.core.submits] == [PRIORITY, PRIORITY, 3]
    assert all(submit.is_resumable for submit in here.core.submits)


@in_event_loop
async def test_chats(tmp_path):
    async with place(tmp_path) as here, here.worker():
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        batch = await here.ended(await here.batch(body, endpoint="/v1/chat/completions"))
        output, _ = await here.results(batch)
    assert output[0]["response"]["body"]["object"] == "chat.completion"


@in_event_loop
async def test_embeddings(tmp_path):
    def script(submit):
        hidden = np.arange(TOKENIZER.hidden_size, dtype="<f4") + len(submit.prompt)
        yield outputs(delta(submit, [], "stop", pooled=hidden.tobytes()))

    async with place(tmp_path, script=script) as here, here.worker():
        here.core.fleet = msgspec.structs.replace(
            here.core.fleet, tasks=(m.TaskState(task="embed", num_ready=1, max_model_len=100),)
        )
        body = {"model": "v", "input": ["one", "two words"], "dimensions": 4}
        batch = await here.ended(await here.batch(body, endpoint="/v1/embeddings"))
        output, errors = await here.results(batch)
    assert errors == []
    vectors = [entry["embedding"] for entry in output[0]["response"]["body"]["data"]]
    assert [len(vector) for vector in vectors] == [4, 4]
    assert vectors[0] != vectors[1]
    assert [submit.priority for submit in here.core.submits] == [PRIORITY, PRIORITY]


@in_event_loop
async def test_an_input_that_is_none(tmp_path):
    async with place(tmp_path) as here, here.worker():
        batch = await here.ended(await here.batch(lines=["", "{", '{"custom_id": 1}']))
        empty = await here.ended(await here.batch(lines=["", " "]))
    assert (batch.status, batch.output_file_id) == ("failed", None)
    assert [(error["code"], error["line"]) for error in json.loads(batch.errors)] == [
        ("invalid_json_line", 2),
        ("invalid_value", 3),
    ]
    assert [error["code"] for error in json.loads(empty.errors)] == ["empty_file"]


@in_event_loop
async def test_lines_are_sent_in_their_order_and_not_too_many_at_once(tmp_path):
    async with place(tmp_path, script=silence) as here, here.worker():
        here.core.report = lanes(16)
        batch_id = await here.batch(*[completion(f"line {i}") for i in range(40)])
        await until(lambda: len(here.core.submits) == 14)
        assert here.tools.gate.num_open == 14
        prefix = f"cmpl-{batch_id.removeprefix('batch_')}"
        assert [submit.request_id for submit in here.core.submits] == [f"{prefix}-{i}-0" for i in range(14)]


@in_event_loop
async def test_a_line_that_rests_leaves_the_gate_to_others(tmp_path):
    """The core has no room for some lines: neither lines of other batches nor all of this one's wait for them."""
    tokens = TOKENIZER.encode(["full"], add_special_tokens=True)[0]
    is_full = True

    def script(submit):
        if is_full and tokens_of(submit.prompt) == tokens:
            yield from refuse("it is full", "queue_full")(submit)
            del here.core.stories[submit.request_id]
        else:
            yield from echo(submit)

    async with place(tmp_path, script=script) as here:
        here.tools = replace(here.tools, retry_s=0.02)
        here.core.report = lanes(1)
        async with here.worker():
            resting = await here.batch(*[completion("full")] * 30)
            await until(lambda: len(here.core.submits) > 3 * batch_lines.MOST_RESTING)
            other = await here.batch(completion("y"))
            assert (await here.ended(other)).status == "completed"
            asked = {submit.request_id for submit in here.core.submits}
            assert len(asked) <= batch_lines.MOST_RESTING + 2, "a batch of which many rest begins no more"
            is_full = False
            assert (await here.ended(resting)).completed == 30


@in_event_loop
async def test_others_have_turns_while_lines_are_taken(tmp_path):
    """Lines that are refused here, and do not wait for anything, are the ones that could leave no turn to others."""
    num_turns, turns_of_lines = 0, []

    async def refused(*_):
        turns_of_lines.append(num_turns)
        raise ApiError(404, "no such model")

    async with place(tmp_path) as here:
        here.tools = replace(here.tools, endpoints={URL: refused})
        async with here.worker():
            batch_id = await here.batch(*[completion("x")] * 100)
            while (await asyncio.sleep(0), len(turns_of_lines))[1] < 100:
                num_turns += 1
            assert (await here.ended(batch_id)).failed == 100
    assert max(Counter(turns_of_lines).values()) <= batch_lines.LINES_AT_ONCE


@in_event_loop
async def test_a_line_with_many_inputs_is_submitted_some_at_a_time(tmp_path):
    num_open = [0]

    def script(submit):
        while num_open[-1] < 500:
            yield 0.01
        yield from echo(submit)

    async with place(tmp_path, script=script) as here, here.worker():
        batch_id = await here.batch({"model": "v", "input": [[5]] * 500}, endpoint="/v1/embeddings")
        while num_open[-1] < 500:
            await asyncio.sleep(0)
            num_open.append(here.tools.link.num_open)
        assert (await here.ended(batch_id)).completed == 1
    assert max(later - earlier for earlier, later in pairwise(num_open)) <= SUBMITS_AT_ONCE


@in_event_loop
async def test_a_line_that_is_refused_in_part_is_sent_until_it_has_room(tmp_path):
    """What the core had taken of it is cancelled each time, which is not taken for a client's doing."""
    num_refused = 0

    def script(submit):
        nonlocal num_refused
        if submit.request_id.endswith("-1") and num_refused < 2 * line_run.MAX_LOST:
            num_refused += 1
            yield from refuse("it is full", "queue_full")(submit)
            del here.core.stories[submit.request_id]
        else:
            yield 0.01
            yield from echo(submit)

    async with place(tmp_path, script=script) as here, here.worker():
        batch = await here.ended(await here.batch(completion(["x", "y"])))
    assert (batch.completed, batch.failed) == (1, 0)


CODES_THAT_PASS = ("queue_full", "too_many_requests", "rate_limit_exceeded", "unavailable", "capacity_lost")


@pytest.mark.parametrize("code", CODES_THAT_PASS)
@in_event_loop
async def test_what_passes_is_no_answer(tmp_path, code):
    """The line is sent again, until the core takes it."""
    num_refused = 0

    def script(submit):
        nonlocal num_refused
        if num_refused == 5:
            yield from echo(submit)
            return
        num_refused += 1
        yield from refuse("not now", code)(submit)
        del here.core.stories[submit.request_id]  # a core keeps nothing of what it refuses

    async with place(tmp_path, script=script) as here, here.worker():
        batch = await here.ended(await here.batch(*[completion(f"line {i}") for i in range(3)]))
    assert (batch.status, batch.completed, batch.failed) == ("completed", 3, 0)
    assert len(here.core.submits) == 3 + 5


@in_event_loop
async def test_a_fault_of_the_line_is_its_error(tmp_path):
    async with place(tmp_path, script=refuse("too long", "context_length_exceeded")) as here, here.worker():
        batch = await here.ended(await here.batch(completion("x")))
        _, (error,) = await here.results(batch)
    assert (batch.status, batch.completed, batch.failed) == ("completed", 0, 1)
    assert error["response"]["status_code"] == 400
    assert error["response"]["body"]["error"]["code"] == "context_length_exceeded"


@in_event_loop
async def test_a_line_that_the_core_gave_up_is_asked_for_anew(tmp_path):
    """The worker was away for longer than the core keeps what nobody reads. One that is cancelled each time is wanted
    by nobody."""

    def give_up(submit):
        yield outputs(delta(submit, [], "cancelled"))

    def script(submit):
        return (echo if ".1-" in submit.request_id else give_up)(submit)

    async with place(tmp_path, script=script) as here, here.worker():
        batch = await here.ended(await here.batch(completion("x")))
        assert (batch.completed, batch.failed) == (1, 0)
        here.core.script = give_up
        batch = await here.ended(await here.batch(completion("x")))
        _, (error,) = await here.results(batch)
    assert error["response"]["status_code"] == 499
    assert len(here.core.submits) == 2 + 1 + line_run.MAX_LOST


@in_event_loop
async def test_another_worker_goes_on_and_computes_nothing_twice(tmp_path):
    """The first one is ended when some lines have results, some are with the core, and some have not begun."""
    held = asyncio.Event()

    def script(submit):
        number = int(submit.request_id.split("-")[-2])
        while number % 3 == 2 and not held.is_set():
            yield 0.005
        yield from echo(submit)

    async with place(tmp_path, script=script) as here:
        bodies = [completion(f"line number {i}") for i in range(60)]
        async with here.worker():
            batch_id = await here.batch(*bodies)
            await here.seen_as(batch_id, lambda batch: batch.completed >= 30)
        submitted = len(here.core.submits)
        assert submitted >= 30
        held.set()
        async with here.worker():  # it finds the batch in the store
            batch = await here.ended(batch_id)
        output, errors = await here.results(batch)
    assert (batch.completed, errors) == (60, [])
    assert [row["custom_id"] for row in output] == [f"c{i}" for i in range(60)]
    for i, row in enumerate(output):
        assert row["response"]["body"]["choices"][0]["text"] == echoed(f"line number {i}")
    new = {submit.request_id for submit in here.core.submits}
    assert len(new) == 60, "each line has one request, however often it was asked for"
    again = len(here.core.submits) - 60
    # Both workers have one link here, so an answer that was on its way to the first may reach the second one.
    assert 0 < len(here.core.attaches) <= again <= 60 - 30, "what was open was attached to, what was done not asked for"


@in_event_loop
async def test_a_core_that_goes_away_loses_nothing(tmp_path):
    """A core that comes back without its requests is asked for them again."""
    async with place(tmp_path, script=silence) as here, here.worker():
        batch_id = await here.batch(*[completion(f"line {i}") for i in range(5)])
        await until(lambda: len(here.core.submits) == 5)
        here.core.close()
        await until(lambda: not here.tools.link.is_up)
        with closing(FakeCore(tmp_path)) as again:
            again.report = ROOMY
            batch = await here.ended(batch_id)
    assert (batch.status, batch.completed) == ("completed", 5)


@in_event_loop
async def test_cancelling_ends_what_is_open_and_keeps_results(tmp_path):
    def script(submit):
        return (echo if "-0-0" in submit.request_id else silence)(submit)

    async with place(tmp_path, script=script) as here, here.worker() as worker:
        batch_id = await here.batch(*[completion(f"line {i}") for i in range(10)])
        worker.start(here.owner, batch_id)
        await here.seen_as(batch_id, lambda batch: batch.completed and len(here.core.submits) == 10)
        await BatchStore(here.thread, here.options).cancel(here.owner, batch_id)
        worker.cancel(here.owner, batch_id)
        batch = await here.ended(batch_id)
        await until(lambda: len(here.core.cancels) == 9)
        output, errors = await here.results(batch)
    assert (batch.status, [row["custom_id"] for row in output], errors) == ("cancelled", ["c0"], [])
    assert here.core.detaches == []


@in_event_loop
async def test_cancelling_ends_what_an_earlier_worker_has_left(tmp_path):
    async with place(tmp_path, script=silence) as here:
        async with here.worker():
            batch_id = await here.batch(completion(["x", "y"]))
            await until(lambda: len(here.core.submits) == 2)
        await until(lambda: len(here.core.detaches) == 2)
        here.core.answers_attaches = False
        async with here.worker() as worker:
            await until(lambda: here.core.attaches)
            await BatchStore(here.thread, here.options).cancel(here.owner, batch_id)
            worker.cancel(here.owner, batch_id)
            assert (await here.ended(batch_id)).status == "cancelled"
            asked = {submit.request_id for submit in here.core.submits}
            await until(lambda: {cancel.request_id for cancel in here.core.cancels} == asked)


@in_event_loop
async def test_a_wall_clock_that_jumps_a_month_ahead_ends_no_batch(tmp_path):
    ahead_s = 0.0

    def clocks():
        now = read_clocks()
        return msgspec.structs.replace(now, wall_s=now.wall_s + ahead_s)

    async with place(tmp_path, clocks=clocks) as here:
        batch_id = await here.batch(completion("one"))
        ahead_s = 30 * 86_400.0
        async with here.worker():
            batch = await here.ended(batch_id)
        assert (batch.status, batch.completed) == ("completed", 1)
        output, _ = await here.results(batch)
        assert len(output) == 1


@in_event_loop
async def test_the_end_of_the_window_ends_a_batch(tmp_path):
    """Lines without a result say so; those with one keep it."""
    async with place(tmp_path, script=silence) as here:
        batch_id = await here.batch(*[completion(f"line {i}") for i in range(4)], window_s=0.0)
        now = time.time()
        await here.thread.run(here.owner, stored_batches.start, here.owner, batch_id, now, total=4)
        done = batch_lines.answered(batch_id, 2, "c2", batch_lines.LineResponse(200, "r", msgspec.Raw(b"{}")))
        await here.thread.run(here.owner, batch_results.add_results, here.owner, batch_id, now, [done])
        async with here.worker():
            batch = await here.ended(batch_id)
        output, errors = await here.results(batch)
    assert (batch.status, batch.completed, batch.failed) == ("expired", 1, 3)
    assert [row["custom_id"] for row in output] == ["c2"]
    assert [(row["custom_id"], row["response"], row["error"]["code"]) for row in errors] == [
        (f"c{i}", None, "batch_expired") for i in (0, 1, 3)
    ]


ERRORS = errors_json([BatchError("invalid_api_key", "The API key of this batch was revoked.")])


@in_event_loop
async def test_a_key_that_is_revoked_ends_its_batches(tmp_path):
    """What runs is cancelled, and what has a result keeps it. A batch that waits for its check fails, too."""
    keys = Keys()

    def script(submit):
        yield from (echo if "-0-0" in submit.request_id else silence)(submit)

    async with place(tmp_path, script=script, keys=keys, owner="alice") as here:
        async with here.worker() as worker:
            here.core.report = lanes(2)
            batch_id = await here.batch(*[completion(f"line {i}") for i in range(30)])
            await here.seen_as(batch_id, lambda batch: batch.completed)
            keys.taken.add("alice")
            await here.thread.run("", owners.revoke, here.owner, time.time(), errors=ERRORS)
            worker.look()
            batch = await here.ended(batch_id)
            output, errors = await here.results(batch)
            await until(lambda: here.core.cancels)
        waits = await here.batch(completion("later"))
        assert await here.thread.run("", owners.revoke, here.owner, time.time(), errors=ERRORS) == 1
        assert (await here.seen(waits)).status == "failed"
    assert (batch.status, batch.errors, errors) == ("failed", ERRORS, [])
    assert [row["custom_id"] for row in output] == ["c0"]
    assert all((submit.client, submit.client_name) == ("alice", "alice's name") for submit in here.core.submits)


@in_event_loop
async def test_a_batch_whose_key_is_not_there_waits_until_it_is(tmp_path):
    """A start with another file of keys ends nothing."""
    keys = Keys()
    async with place(tmp_path, keys=keys, owner="alice") as here, here.worker():
        keys.taken.add("alice")
        batch_id = await here.batch(completion("a"), completion("b"))
        await until(lambda: keys.num_missing > 1)
        assert not here.core.submits
        keys.taken.clear()
        assert (await here.ended(batch_id)).completed == 2


@pytest.mark.parametrize(("n", "num_lines"), [(1, 3), (2, 1), (3, 1), (7, 1)])
@in_event_loop
async def test_half_of_what_a_key_may_have_open_is_for_its_batches(tmp_path, n, num_lines):
    """Its sequences count, as they do at the core. A line of more than half waits until it is alone."""
    keys = Keys(max_open_requests=7, weight=2.5)
    async with place(tmp_path, script=silence, keys=keys, owner="alice") as here, here.worker():
        await here.batch(*[completion(f"line {i}", n=n) for i in range(30)])
        await until(lambda: len(here.core.submits) == num_lines)
        await until(lambda: here.tools.gate.is_waiting)
        assert here.tools.gate.num_open == num_lines * n
    assert {(submit.client_limit, submit.weight, submit.address) for submit in here.core.submits} == {(7, 2.5, "")}


@in_event_loop
async def test_a_line_that_its_key_can_never_send_is_its_error(tmp_path):
    """As of a single request; to ask for it until the window ends would help nothing."""
    keys = Keys(max_open_requests=3)
    async with place(tmp_path, keys=keys, owner="alice") as here, here.worker():
        bodies = [completion(["a", "b", "c", "d"]), completion(["a", "b", "c"]), completion("e", n=3)]
        batch = await here.ended(await here.batch(*bodies, completion(["f", "g"], n=2)))
        _, errors = await here.results(batch)
    assert (batch.status, batch.completed, batch.failed) == ("completed", 2, 2)
    assert [(error["custom_id"], error["response"]["status_code"]) for error in errors] == [("c0", 400), ("c3", 400)]
    for error in errors:
        message = "The request has 4 sequences (prompts times n), and this API key may have 3 open at once."
        assert error["response"]["body"]["error"]["message"] == message


@in_event_loop
async def test_a_line_that_the_core_can_never_take_is_its_error(tmp_path):
    async with place(tmp_path) as here, here.worker():
        here.core.fleet = msgspec.structs.replace(here.core.fleet, max_waiting=5)
        await until(lambda: here.tools.link.fleet.max_waiting)
        batch = await here.ended(await here.batch(completion(["a", "b"], n=3), completion(["a", "b"], n=2)))
        _, (error,) = await here.results(batch)
    assert (batch.status, batch.completed, batch.failed) == ("completed", 1, 1)
    assert (
        error["response"]["body"]["error"]["message"] == "The request has 6 sequences, and 5 may wait in this service."
    )


@in_event_loop
async def test_results_without_room_end_a_batch(tmp_path):
    async with place(tmp_path) as here:
        here.tools = replace(here.tools, limit_bytes=3000)
        batch_id = await here.batch(*[completion(f"line {i}") for i in range(20)])
        async with here.worker():
            batch = await here.ended(batch_id)
    assert batch.status == "failed"
    assert [error["code"] for error in json.loads(batch.errors)] == ["insufficient_quota"]


@in_event_loop
async def test_results_wait_for_the_room_that_a_deleted_file_is_about_to_give(tmp_path):
    refusals = []

    class Noting(PatientStore):
        async def ask(self, *args, **kwargs):
            try:
                return await super().ask(*args, **kwargs)
            except QuotaExceeded as error:
                refusals.append(error)
                raise

    async with place(tmp_path) as here:
        batch_id = await here.batch(*[completion(f"line {i}") for i in range(20)])
        upload = await here.files.begin(here.owner, "large")
        await upload.add(bytes(1_000_000))
        await upload.add(bytes(100_000))
        await upload.abandon()
        used = await here.thread.run(here.owner, quotas.used_bytes, here.owner)
        here.tools = replace(here.tools, limit_bytes=used, store=Noting(here.thread))
        async with here.worker():
            await until(lambda: len(refusals) >= 3)
            assert (await here.seen(batch_id)).completed == 0
            await here.thread.run("", sweep.sweep, time.time())
            batch = await here.ended(batch_id)
    assert (batch.status, batch.completed) == ("completed", 20)


@in_event_loop
async def test_an_input_that_is_deleted_ends_a_batch(tmp_path):
    async with place(tmp_path) as here:
        batch_id = await here.batch(completion("x"))
        input_id = (await here.seen(batch_id)).input_file_id
        await here.thread.run(here.owner, stored_batches.start, here.owner, batch_id, time.time(), total=1)
        await here.files.delete(here.owner, input_id)
        async with here.worker():
            batch = await here.ended(batch_id)
    assert (batch.status, [error["code"] for error in json.loads(batch.errors)]) == ("failed", ["file_not_found"])


@in_event_loop
async def test_a_batch_that_waits_behind_others_is_validated_and_expires(tmp_path):
    async with place(tmp_path, script=silence) as here:
        here.tools = replace(here.tools, rescan_s=0.05)
        async with here.worker() as worker:
            ahead = [await here.batch(completion(f"batch {i}")) for i in range(batches.RUNS_OF_OWNER)]
            for batch_id in ahead:
                await here.seen_as(batch_id, lambda batch: batch.status == "in_progress")
            wrong = await here.batch(lines=["{"])
            assert (await here.ended(wrong)).status == "failed"
            late = await here.batch(completion("late"), window_s=0.5)
            batch = await here.ended(late)
            assert (batch.status, batch.failed) == ("expired", 1)
            unwanted = await here.batch(completion("unwanted"))
            await BatchStore(here.thread, here.options).cancel(here.owner, unwanted)
            worker.cancel(here.owner, unwanted)
            assert (await here.ended(unwanted)).status == "cancelled"
            assert {(await here.seen(batch_id)).status for batch_id in ahead} == {"in_progress"}
            assert worker.num_waiting == 0


@in_event_loop
async def test_some_batches_of_an_owner_run_and_the_others_follow(tmp_path):
    async with place(tmp_path, script=silence) as here:
        made = [await here.batch(completion(f"batch {i}")) for i in range(batches.RUNS_OF_OWNER + 3)]
        async with here.worker() as worker:
            await until(lambda: worker.num_waiting == 3)
            await until(lambda: len(here.core.submits) == batches.RUNS_OF_OWNER)
            here.core.script = echo
            for batch_id in made[: batches.RUNS_OF_OWNER]:
                await BatchStore(here.thread, here.options).cancel(here.owner, batch_id)
                worker.cancel(here.owner, batch_id)
            ends = [(await here.ended(batch_id)).status for batch_id in made]
            assert ends == ["cancelled"] * batches.RUNS_OF_OWNER + ["completed"] * 3
