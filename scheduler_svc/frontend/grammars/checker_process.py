"""The checker's process as a frontend holds it. Everything here blocks, so it is a thread's work."""

import contextlib
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from common.errors import BatonError
from common.logging import get_logger
from scheduler_svc.frontend.grammars.spec import Checked, CheckerSettings, GrammarSpec

log = get_logger(__name__)

START_MAY_TAKE_S = 60.0  # a tokenizer of 150,000 tokens takes seconds on a busy machine
COMPILE_MAY_TAKE_S = 2.0  # a plan may start four grammars, and an executor that takes 10 s for it counts as hung
READ_BYTES = 2**16

_MODULE = "scheduler_svc.frontend.grammars.checker"
_decoder = msgspec.json.Decoder(Checked)


class CheckerUnavailable(BatonError):
    """The process does not start."""


class CheckerProcess:
    """Starts when it is needed, and again after it died.

    Args:
        tokenizer_file: path of the model's tokenizer.json.
        eos_token_ids: tokens that end the model's texts.
    """

    def __init__(self, tokenizer_file: Path, eos_token_ids: tuple[int, ...]) -> None:
        self._settings = CheckerSettings(str(tokenizer_file), list(eos_token_ids), os.getpid())
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, spec: GrammarSpec) -> Checked:
        """What the process says, or that it died of the spec: twice, as it may die of other things.

        Raises:
            TimeoutError: it took too long, and was killed.
            CheckerUnavailable: the process does not start.
        """
        for _ in range(2):
            checked = self._ask(spec)
            if checked is not None:
                return checked
        return Checked(reason="llguidance fails on it: it is nested too deeply, or takes too much memory")

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            with self._process:  # closes its pipes and waits
                self._process = None

    def _ask(self, spec: GrammarSpec) -> Checked | None:
        """What the process says; None if it died."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
        assert self._process is not None
        checked = None
        try:
            with contextlib.suppress(BrokenPipeError):
                _write(self._process, spec)
                checked = _read(self._process, COMPILE_MAY_TAKE_S)
        except TimeoutError:
            log.warning("grammar checker took too long", kind=spec.kind)
            self.close()  # its answer to this would be taken for that to the next
            raise
        if checked is None:
            log.warning("grammar checker died", kind=spec.kind, status=self._process.wait())
        return checked

    def _start(self) -> None:
        command = [sys.executable, "-m", _MODULE, msgspec.json.encode(self._settings).decode()]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            is_ready = _read(self._process, START_MAY_TAKE_S) is not None
        except (OSError, MemoryError, subprocess.SubprocessError) as error:  # a TimeoutError is an OSError
            log.error("grammar checker does not start", error=str(error))
            is_ready = False
        if not is_ready:
            self.close()
            raise CheckerUnavailable("the grammar checker does not start")
        assert self._process is not None
        log.info("grammar checker started", pid=self._process.pid)


def _write(process: subprocess.Popen[bytes], spec: GrammarSpec) -> None:
    assert process.stdin is not None
    line = memoryview(msgspec.json.encode(spec) + b"\n")
    while line:
        line = line[process.stdin.write(line) :]  # a pipe takes a part of what is long


def _read(process: subprocess.Popen[bytes], may_take_s: float) -> Checked | None:
    """The next answer; None if the process died. Raises TimeoutError."""
    assert process.stdout is not None
    deadline = time.monotonic() + may_take_s
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
            raise TimeoutError(f"no answer within {may_take_s:g} s")
        some = os.read(process.stdout.fileno(), READ_BYTES)
        if not some:
            return None
        line += some
    return _decoder.decode(line)
