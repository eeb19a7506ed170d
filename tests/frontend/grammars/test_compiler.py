"""Grammars are compiled beside the frontend, each once, and what goes wrong with one concerns no other."""

import asyncio
import json
import os
import signal
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.grammars import checker_process
from scheduler_svc.frontend.grammars import compiler as compiler_module
from scheduler_svc.frontend.grammars.compiler import MAX_REASON_CHARS, GrammarCompiler
from scheduler_svc.frontend.grammars.spec import Checked, GrammarSpec
from tests.frontend.links import in_event_loop
from tests.support.eventually import eventually
from tests.support.frontend_process import COMPLETION, running_frontend

OBJECT = GrammarSpec("json", '{"type": "object"}')
DEEP = GrammarSpec("grammar", "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(4000)) + '\nr4000: "a"')
SLOW = GrammarSpec("json", json.dumps({"allOf": [{"type": "string", "pattern": f"a{{{i}}}.*b"} for i in range(100)]}))


@pytest.fixture
def compiler():
    """It leaves no process behind."""
    compiler = GrammarCompiler(DEMO_MODEL_DIR, (2045,))
    yield compiler
    compiler.close()


@pytest.fixture
def checks(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> list[GrammarSpec]:
    """What was compiled, and not remembered."""
    check, checks = compiler._check, []

    async def spy(spec: GrammarSpec, param: str) -> Checked:
        checks.append(spec)
        return await check(spec, param)

    monkeypatch.setattr(compiler, "_check", spy)
    return checks


async def refusal(compiler: GrammarCompiler, spec: GrammarSpec) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await compiler.compile(spec, "the_param", "")
    return caught.value


@in_event_loop
async def test_equal_grammars_are_compiled_once(compiler: GrammarCompiler, checks: list[GrammarSpec]):
    others = [GrammarSpec("regex", f"a{{{i}}}") for i in range(1, 4)]
    asked = [OBJECT, *others] * 4
    grammars = await asyncio.gather(*(compiler.compile(spec, "x", "") for spec in asked))
    assert checks == [OBJECT, *others]
    assert len(set(grammars)) == 4
    assert grammars[:4] * 4 == grammars
    wrong = GrammarSpec("regex", "(")
    for param in ("one", "other"):
        with pytest.raises(ApiError) as caught:
            await compiler.compile(wrong, param, "")
        assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_grammar", param)
        assert f"Invalid value for '{param}': " in caught.value.message
        assert "unclosed group" in caught.value.message
    assert checks == [OBJECT, *others, wrong]


@in_event_loop
async def test_old_ones_are_forgotten(
    compiler: GrammarCompiler, checks: list[GrammarSpec], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compiler_module, "MAX_REMEMBERED_CHARS", 2000)
    first, second, *others = [GrammarSpec("regex", f"a{{{i}}}") for i in range(1, 5)]
    for spec in (first, second, first, *others, first, second):
        await compiler.compile(spec, "x", "")
    assert checks == [first, second, *others, second], "the first was asked for again in between"


@in_event_loop
async def test_kinds_are_told_apart(compiler: GrammarCompiler):
    grammars = [await compiler.compile(GrammarSpec(kind, '["a"]'), "x", "") for kind in ("choice", "regex")]
    assert grammars[0] != grammars[1]


@in_event_loop
async def test_a_grammar_that_overflows_the_stack(compiler: GrammarCompiler, checks: list[GrammarSpec]):
    for _ in range(2):
        error = await refusal(compiler, DEEP)
        assert (error.status, error.code, error.param) == (400, "invalid_grammar", "the_param")
        assert "nested too deeply" in error.message
    assert checks == [DEEP], "it is not tried again"
    assert await compiler.compile(OBJECT, "x", "")


@in_event_loop
async def test_a_grammar_that_takes_too_long(
    compiler: GrammarCompiler, checks: list[GrammarSpec], monkeypatch: pytest.MonkeyPatch
):
    await compiler.compile(OBJECT, "x", "")
    process = compiler._process._process._process
    monkeypatch.setattr(checker_process, "COMPILE_MAY_TAKE_S", 0.1)
    for _ in range(2):
        error = await refusal(compiler, SLOW)
        assert (error.status, error.code) == (400, "invalid_grammar")
        assert "compiling it takes more than" in error.message
    assert process.returncode == -signal.SIGKILL
    monkeypatch.undo()
    assert await compiler.compile(GrammarSpec("regex", "b"), "x", "")


@in_event_loop
async def test_a_request_that_is_cancelled_leaves_no_answer_behind(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checker_process, "COMPILE_MAY_TAKE_S", 2.0)
    asked = asyncio.create_task(compiler.compile(SLOW, "x", ""))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert "/b+/" in await compiler.compile(GrammarSpec("regex", "b+"), "x", "")


@in_event_loop
async def test_a_process_that_was_killed_is_started_again(compiler: GrammarCompiler):
    await compiler.compile(OBJECT, "x", "")
    process = compiler._process._process._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert await compiler.compile(GrammarSpec("regex", "b+"), "x", ""), "no grammar was to blame"


@in_event_loop
async def test_so_many_wait(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiler._turns, "_max_waiting", 3)
    specs = [GrammarSpec("regex", "a" * i) for i in range(1, 6)]
    answers = await asyncio.gather(*(compiler.compile(spec, "x", "") for spec in specs), return_exceptions=True)
    assert [type(answer) for answer in answers] == [str, str, str, ApiError, ApiError]
    assert (answers[3].status, answers[3].code) == (503, "unavailable")
    assert answers[3].headers
    assert await compiler.compile(specs[4], "x", ""), "there is room again"


@in_event_loop
async def test_clients_take_turns(
    compiler: GrammarCompiler, checks: list[GrammarSpec], monkeypatch: pytest.MonkeyPatch
):
    """One that has filled its places keeps nobody else waiting."""
    monkeypatch.setattr(compiler._turns, "_max_waiting", 4)
    many = [GrammarSpec("regex", "a" * i) for i in range(1, 6)]
    few = [GrammarSpec("regex", "b" * i) for i in range(1, 3)]
    asked = [(spec, "many") for spec in many] + [(spec, "few") for spec in few]
    answers = await asyncio.gather(*(compiler.compile(spec, "x", who) for spec, who in asked), return_exceptions=True)
    assert [type(answer) for answer in answers] == [str] * 4 + [ApiError] + [str] * 2
    assert checks == [many[0], few[0], many[1], few[1], *many[2:4]]
    assert compiler._turns._queues == {}


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
async def test_a_checker_that_does_not_start(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiler._process._process, "_module", "scheduler_svc.no_such_module")
    assert (await refusal(compiler, OBJECT)).status == 503
    monkeypatch.undo()
    assert await compiler.compile(OBJECT, "x", ""), "and is not given up"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_its_processes_end_with_a_frontend(number: signal.Signals):
    with running_frontend() as frontend:
        answer = frontend.post("/v1/completions", COMPLETION | {"structured_outputs": {"regex": "a"}})
        assert answer.status_code == 200
        template, checker = children_of(frontend.process.pid)
        os.kill(frontend.process.pid, number)
        frontend.process.wait(20)
        eventually(lambda: not is_running(checker) and not is_running(template), 20)


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@in_event_loop
async def test_reasons_are_short(compiler: GrammarCompiler):
    error = await refusal(compiler, GrammarSpec("regex", "a" * 50_000 + "("))
    assert len(error.message) < MAX_REASON_CHARS + 50
    assert str(DEMO_MODEL_DIR) not in error.message
