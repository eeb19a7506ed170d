"""A process beside a frontend that works on what clients and models have written: it may die of it, or be killed.

A question is a line on its stdin, and the answer a line on its stdout. The first line is its settings, whose answer
says that it is ready. Everything on the frontend's side blocks, so it is a thread's work.
"""

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from typing import NamedTuple

from common.errors import TryAgainError
from common.logging import get_logger
from scheduler_svc.frontend.helper_program import write_line

log = get_logger(__name__)

START_MAY_TAKE_S = 60.0  # a tokenizer of 150,000 tokens takes seconds on a busy machine
READ_BYTES = 2**16
MAX_ANSWER_BYTES = 2**25  # more than any process here answers by itself


class HelperEvents(NamedTuple):
    """What the log calls what happens to a process."""

    started: str
    died: str
    took_too_long: str
    does_not_start: str


class HelperUnavailable(TryAgainError):
    """The process does not start.

    Args:
        status: with which it ended, as `subprocess` has it; None if there was none.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class HelperProcess:
    """Starts when it is needed, and again after it died. Any thread may ask; one question is answered after the other.

    Args:
        events: for the log.
        module: its program, whose `main` calls `helper_program.answer_questions`.
        settings: the first line.
    """

    def __init__(self, events: HelperEvents, module: str, settings: bytes) -> None:
        self._events = events
        self._module = module
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()  # held from a question to its answer

    def start(self) -> bytes:
        """Start it anew. Returns the answer to its settings. Raises HelperUnavailable."""
        with self._lock:
            self.close()
            command = [sys.executable, "-m", self._module, str(os.getpid())]
            ready = None
            try:
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
                ready = self._answer_to(self._settings, START_MAY_TAKE_S)
            except (OSError, MemoryError, subprocess.SubprocessError) as error:  # a TimeoutError is an OSError
                log.error(self._events.does_not_start, error=str(error))
            if ready is None:
                raise HelperUnavailable(self._events.does_not_start, self.close())
            assert self._process is not None
            log.info(self._events.started, pid=self._process.pid)
            return ready

    def ask(self, question: bytes, may_take_s: float, **facts: str) -> bytes | None:
        """The answer; None if the process died of the question: twice, as it may die of other things.

        Args:
            question: without a line end.
            facts: for the log.

        Raises:
            TimeoutError: it took too long, and was killed.
            HelperUnavailable: the process does not start.
        """
        with self._lock:
            for _ in range(2):
                if self._process is None or self._process.poll() is not None:
                    self.start()
                try:
                    answer = self._answer_to(question, may_take_s)
                except TimeoutError:
                    log.warning(self._events.took_too_long, **facts)
                    self.close()  # its answer to this would be taken for that to the next
                    raise
                if answer is not None:
                    return answer
                log.warning(self._events.died, status=self.close(), **facts)
            return None

    def close(self) -> int | None:
        """End the process, if there is one. Returns its status."""
        if self._process is None:
            return None
        process, self._process = self._process, None
        process.kill()
        with process:  # closes its pipes and waits
            pass
        return process.returncode

    def _answer_to(self, question: bytes, may_take_s: float) -> bytes | None:
        """The answer; None if the process died. Raises TimeoutError."""
        assert self._process is not None
        with contextlib.suppress(BrokenPipeError):
            return _exchange(self._process, question, may_take_s)
        return None


def _exchange(process: subprocess.Popen[bytes], question: bytes, may_take_s: float) -> bytes | None:
    """Write a question and read its answer; None if there is none, or too long a one. Raises TimeoutError and
    BrokenPipeError."""
    assert process.stdin is not None
    assert process.stdout is not None
    deadline = time.monotonic() + may_take_s
    write_line(process.stdin.fileno(), question)  # it reads a whole line before it does anything else
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    answer = bytearray()
    while not answer.endswith(b"\n"):
        if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
            raise TimeoutError(f"no answer within {may_take_s:g} s")
        some = os.read(process.stdout.fileno(), READ_BYTES)
        if not some or len(answer) > MAX_ANSWER_BYTES:
            return None
        answer += some
    return bytes(answer)
