"""Grammars are compiled beside the frontend, each once, and what goes wrong with one concerns no other."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.grammars.checker_process import CheckerProcess
from scheduler_svc.frontend.grammars.compiler import MAX_REASON_CHARS, GrammarCompiler
from scheduler_svc.frontend.grammars.spec import Checked, GrammarSpec
from tests.frontend.links import in_event_loop, until
from tests.support.children import children_of
from tests.support.eventually import eventually
from tests.support.frontend_process import COMPLETION, running_frontend
from tests.support.processes import is_running

OBJECT = GrammarSpec("json", '{"type": "object"}')
DEEP = GrammarSpec("grammar", "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(4000)) + '\nr4000: "a"')
SLOW = GrammarSpec("json", json.dumps({"allOf": [{"type": "string", "pattern": f"a{{{i}}}.*b"} for i in range(100)]}))


class Noting(CheckerProcess):
    """Notes what it compiles."""

    def __init__(self, folder: Path = DEMO_MODEL_DIR) -> None:
        super().__init__(folder, (2045,), compile_may_take_s=60.0)  # a busy machine is no fault of a grammar
        self.asked: list[GrammarSpec] = []

    def check(self, spec: GrammarSpec) -> Checked:
        self.asked.append(spec)
        return super().check(spec)


@pytest.fixture
def process() -> Noting:
    return Noting()


@pytest.fixture
def compiler(process: Noting) -> Iterator[GrammarCompiler]:
    """It leaves no process behind."""
    with closing(GrammarCompiler(process)) as compiler:
        yield compiler


def checkers() -> set[int]:
    return children_of(os.getpid())


async def refusal(compiler: GrammarCompiler, spec: GrammarSpec) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await compiler.compile(spec, "the_param", "")
    return caught.value


@in_event_loop
async def test_equal_grammars_are_compiled_once(compiler: GrammarCompiler, process: Noting):
    others = [GrammarSpec("regex", f"a{{{i}}}") for i in range(1, 4)]
    asked = [OBJECT, *others] * 4
    grammars = await asyncio.gather(*(compiler.compile(spec, "x", "") for spec in asked))
    assert process.asked == [OBJECT, *others]
    assert len(set(grammars)) == 4
    assert grammars[:4] * 4 == grammars
    wrong = GrammarSpec("regex", "(")
    for param in ("one", "other"):
        with pytest.raises(ApiError) as caught:
            await compiler.compile(wrong, param, "")
        assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_grammar", param)
        assert f"Invalid value for '{param}': " in caught.value.message
        assert "unclosed group" in caught.value.message
    assert process.asked == [OBJECT, *others, wrong]


@in_event_loop
async def test_old_ones_are_forgotten(process: Noting):
    first, second, *others = [GrammarSpec("regex", f"a{{{i}}}") for i in range(1, 5)]
    with closing(GrammarCompiler(process, max_remembered_chars=2000)) as compiler:
        for spec in (first, second, first, *others, first, second):
            await compiler.compile(spec, "x", "")
    assert process.asked == [first, second, *others, second], "the first was asked for again in between"


@in_event_loop
async def test_kinds_are_told_apart(compiler: GrammarCompiler):
    grammars = [await compiler.compile(GrammarSpec(kind, '["a"]'), "x", "") for kind in ("choice", "regex")]
    assert grammars[0] != grammars[1]


@in_event_loop
async def test_a_grammar_that_overflows_the_stack(compiler: GrammarCompiler, process: Noting):
    for _ in range(2):
        error = await refusal(compiler, DEEP)
        assert (error.status, error.code, error.param) == (400, "invalid_grammar", "the_param")
        assert "nested too deeply" in error.message
    assert process.asked == [DEEP], "it is not tried again"
    assert await compiler.compile(OBJECT, "x", "")


@in_event_loop
async def test_a_grammar_that_takes_too_long(compiler: GrammarCompiler, process: Noting):
    await compiler.compile(OBJECT, "x", "")
    before = checkers()
    process.compile_may_take_s = 0.1
    for _ in range(2):
        error = await refusal(compiler, SLOW)
        assert (error.status, error.code) == (400, "invalid_grammar")
        assert "compiling it takes more than 0.1 s" in error.message
    assert len(before - checkers()) == 1, "it is killed"
    process.compile_may_take_s = 60.0
    assert await compiler.compile(GrammarSpec("regex", "b"), "x", "")


@in_event_loop
async def test_a_request_that_is_cancelled_leaves_no_answer_behind(compiler: GrammarCompiler, process: Noting):
    process.compile_may_take_s = 2.0
    asked = asyncio.create_task(compiler.compile(SLOW, "x", ""))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert "/b+/" in await compiler.compile(GrammarSpec("regex", "b+"), "x", "")


@in_event_loop
async def test_a_process_that_was_killed_is_started_again(compiler: GrammarCompiler):
    before = checkers()
    await compiler.compile(OBJECT, "x", "")
    [pid] = checkers() - before
    os.kill(pid, signal.SIGKILL)
    await until(lambda: pid not in checkers())
    assert await compiler.compile(GrammarSpec("regex", "b+"), "x", ""), "no grammar was to blame"


@in_event_loop
async def test_clients_take_turns(process: Noting):
    """One that has filled its places keeps nobody else waiting."""
    many = [GrammarSpec("regex", "a" * i) for i in range(1, 6)]
    few = [GrammarSpec("regex", "b" * i) for i in range(1, 3)]
    asked = [(spec, "many") for spec in many] + [(spec, "few") for spec in few]
    with closing(GrammarCompiler(process, max_waiting=4)) as compiler:
        compiling = (compiler.compile(spec, "x", who) for spec, who in asked)
        answers = await asyncio.gather(*compiling, return_exceptions=True)
        assert await compiler.compile(many[4], "x", "many"), "there is room again"
    assert [type(answer) for answer in answers] == [str] * 4 + [ApiError] + [str] * 2
    assert (answers[4].status, answers[4].code) == (503, "unavailable")
    assert answers[4].headers
    assert process.asked == [many[0], few[0], many[1], few[1], *many[2:]]


@in_event_loop
async def test_the_event_loop_goes_on(compiler: GrammarCompiler):
    """A long compilation costs no more turns of the loop than a short one: it is another process's."""
    await compiler.compile(OBJECT, "x", "")
    schema = {"type": "object", "properties": {f"name {i}": {"type": "string"} for i in range(1500)}}
    loop = asyncio.get_running_loop()
    asked = asyncio.create_task(compiler.compile(GrammarSpec("json", json.dumps(schema)), "x", ""))
    turns = [loop.time()]
    while not asked.done():
        await asyncio.sleep(0.001)
        turns.append(loop.time())
    assert await asked
    assert max(later - earlier for earlier, later in pairwise(turns)) < (turns[-1] - turns[0]) / 2


@in_event_loop
async def test_a_checker_that_does_not_start(tmp_path: Path):
    with closing(GrammarCompiler(Noting(tmp_path / "model"))) as compiler:
        assert (await refusal(compiler, OBJECT)).status == 503
        (tmp_path / "model").symlink_to(DEMO_MODEL_DIR)
        assert await compiler.compile(OBJECT, "x", ""), "and is not given up"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_its_processes_end_with_a_frontend(number: signal.Signals):
    with running_frontend() as frontend:
        answer = frontend.post("/v1/completions", COMPLETION | {"structured_outputs": {"regex": "a"}})
        assert answer.status_code == 200
        template, checker = sorted(children_of(frontend.process.pid))
        os.kill(frontend.process.pid, number)
        frontend.process.wait(20)
        eventually(lambda: not is_running(checker) and not is_running(template))


@in_event_loop
async def test_reasons_are_short(compiler: GrammarCompiler):
    error = await refusal(compiler, GrammarSpec("regex", "a" * 50_000 + "("))
    assert len(error.message) < MAX_REASON_CHARS + 50
    assert str(DEMO_MODEL_DIR) not in error.message
