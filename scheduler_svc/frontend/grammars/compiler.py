"""Grammars of requests, compiled by a process beside the frontend that may die of them or be killed."""

import asyncio
import contextlib
import hashlib
import os
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from common.grammars import grammar_library
from common.logging import get_logger
from common.messages import MAX_GRAMMAR_CHARS
from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend.grammars.spec import Checked, CheckerSettings, GrammarSpec

log = get_logger(__name__)

START_MAY_TAKE_S = 60.0  # a tokenizer of 150,000 tokens takes seconds on a busy machine
COMPILE_MAY_TAKE_S = 5.0
MAX_WAITING = 16  # compilations; with the time of one, this bounds how long any of them waits
MAX_REMEMBERED_CHARS = 2**23
MAX_REASON_CHARS = 600
MAX_LINE_BYTES = 8 * MAX_GRAMMAR_CHARS  # of an answer: JSON may take six bytes for a character

_CHECKER = "scheduler_svc.frontend.grammars.checker"
_decoder = msgspec.json.Decoder(Checked)


class GrammarCompiler:
    """Compiles one grammar at a time, each of those that are asked for lately once. The process starts with the first.

    Args:
        tokenizer_file: path of the model's tokenizer.json.
        eos_token_ids: tokens that end the model's texts.
    """

    def __init__(self, tokenizer_file: Path, eos_token_ids: tuple[int, ...]) -> None:
        self._settings = CheckerSettings(str(tokenizer_file), list(eos_token_ids), os.getpid())
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._num_waiting = 0
        self._known: OrderedDict[bytes, Checked] = OrderedDict()
        self._known_chars = 0

    async def compile(self, spec: GrammarSpec, param: str) -> str:
        """The grammar in llguidance's own format.

        Args:
            param: the request's parameter that has the spec; errors name it.

        Raises:
            ApiError: (400) the grammar is refused, or llguidance is not installed; (503) too many are waiting, or the
                process does not start.
        """
        name = hashlib.blake2b(msgspec.msgpack.encode(spec)).digest()
        checked = self._known.get(name)
        if checked is None:
            async with self._waiting():
                checked = self._known.get(name)  # another request may have asked for the same meanwhile
                if checked is None:
                    checked = await self._check(spec, param)
                    self._remember(name, checked)
        else:
            self._known.move_to_end(name)
        if checked.reason:
            raise _refusal(param, checked.reason)
        return checked.grammar

    @contextlib.asynccontextmanager
    async def _waiting(self) -> AsyncIterator[None]:
        if self._num_waiting >= MAX_WAITING:
            raise ApiError(503, "Too many grammars are being compiled.", code="unavailable", retry=True)
        self._num_waiting += 1
        try:
            async with self._turn:
                yield
        finally:
            self._num_waiting -= 1

    def _remember(self, name: bytes, checked: Checked) -> None:
        self._known[name] = checked
        self._known_chars += _size(checked)
        while self._known_chars > MAX_REMEMBERED_CHARS:
            self._known_chars -= _size(self._known.popitem(last=False)[1])

    async def _check(self, spec: GrammarSpec, param: str) -> Checked:
        """What the process says, or that it died of the grammar. If anything goes wrong no process is left: its answer
        to this would be taken for one to the next."""
        is_done = False
        try:
            process = self._process or await self._start(param)
            try:
                async with asyncio.timeout(COMPILE_MAY_TAKE_S):
                    checked = await _ask(process, spec)
            except TimeoutError:  # not remembered: on a machine with less to do it may take less
                raise _refusal(param, f"compiling it takes more than {COMPILE_MAY_TAKE_S:g} s") from None
            if checked is None:
                log.warning("grammar checker died", kind=spec.kind)
                return Checked(reason="llguidance fails on it: it is nested too deeply, or takes too much memory")
            is_done = True
            return checked
        finally:
            if not is_done:
                self._kill()

    async def _start(self, param: str) -> asyncio.subprocess.Process:
        if not grammar_library():
            message = f"Invalid value for '{param}': this server has no llguidance, which compiles grammars."
            raise ApiError(400, message, code="unsupported_parameter", param=param)
        settings = msgspec.json.encode(self._settings).decode()
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _CHECKER,
                settings,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=MAX_LINE_BYTES,
            )
            async with asyncio.timeout(START_MAY_TAKE_S):
                is_ready = await _answer(process) is not None
        except (OSError, TimeoutError) as error:
            log.error("grammar checker does not start", error=str(error))
            is_ready = False
        if not is_ready:
            raise ApiError(503, "Grammars cannot be compiled; the server's log says more.", code="unavailable")
        log.info("grammar checker started", pid=process.pid)
        return process

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._process = None


def _refusal(param: str, reason: str) -> ApiError:
    reason = reason.strip()[:MAX_REASON_CHARS].rstrip(".")
    return ApiError(400, f"Invalid value for '{param}': {reason}.", code="invalid_grammar", param=param)


async def _ask(process: asyncio.subprocess.Process, spec: GrammarSpec) -> Checked | None:
    """The answer; None if the process died."""
    assert process.stdin is not None
    try:
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        await process.stdin.drain()
    except ConnectionError:
        return None
    return await _answer(process)


async def _answer(process: asyncio.subprocess.Process) -> Checked | None:
    assert process.stdout is not None
    line = await process.stdout.readline()
    return _decoder.decode(line) if line.endswith(b"\n") else None


def _size(checked: Checked) -> int:
    return 512 + len(checked.grammar) + len(checked.reason)
