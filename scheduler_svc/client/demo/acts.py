"""The acts of `baton demo`: in each, an answer is streamed while its executor goes away."""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

import click
import msgspec

from common.messages import StatusReport
from scheduler_svc.client.demo.questions import Question
from scheduler_svc.client.http.api import Api
from scheduler_svc.client.output import write_text
from scheduler_svc.client.processes.local_fleet import LocalFleet, executor_name

_JOIN_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class ActResult:
    """An answer whose executor went away.

    Attributes:
        text: the whole answer.
        num_before, num_after: number of tokens before and after the executor went.
        pause_s: the longest time that the client then waited for a piece of text.
    """

    text: str
    num_before: int
    num_after: int
    pause_s: float


@dataclass(frozen=True)
class Stage:
    """What all acts work with: the services."""

    fleet: LocalFleet
    api: Api

    def executors(self) -> dict[str, int]:
        """Executors that take part, as the scheduler sees them, and how many sequences each is running."""
        report = msgspec.json.decode(self.api.get("/status"), type=StatusReport)
        return {executor.executor: executor.running for executor in report.executors}

    def busiest(self) -> str:
        """The executor that runs the most sequences: the one that has the answer."""
        running = self.executors()
        return max(running, key=running.__getitem__)

    def wait_for_executor(self, index: int) -> None:
        """Wait until executor `index` takes part."""
        deadline = time.monotonic() + _JOIN_TIMEOUT_S
        while executor_name(index) not in self.executors():
            for end in self.fleet.poll():
                raise self.fleet.failure(end)
            if time.monotonic() > deadline:
                raise click.ClickException(f"{executor_name(index)} has not joined after {_JOIN_TIMEOUT_S:.0f} s")
            time.sleep(0.1)


class Act(ABC):
    """One streamed answer, disturbed in the middle; subclasses define the disturbance.

    Args:
        salt: of the request, as in `Question.stream`.
        intervene_after: number of pieces after which the disturbance happens.
    """

    def __init__(self, stage: Stage, question: Question, salt: str, intervene_after: int) -> None:
        self._stage = stage
        self._question = question
        self._salt = salt
        self._intervene_after = intervene_after
        self._at_line_start = True

    def play(self) -> ActResult:
        """Stream the answer to stdout."""
        pieces: list[str] = []
        pause_s = 0.0
        last_s = time.perf_counter()
        for piece in self._question.stream(self._salt):
            now_s = time.perf_counter()
            if len(pieces) >= self._intervene_after:
                pause_s = max(pause_s, now_s - last_s)
                self.after_intervention()
            last_s = now_s
            pieces.append(piece)
            self._write(piece)
            if len(pieces) == self._intervene_after:
                self.intervene()
        self.end()
        num_before = min(self._intervene_after, self._question.num_tokens)
        return ActResult("".join(pieces), num_before, self._question.num_tokens - num_before, pause_s)

    @abstractmethod
    def intervene(self) -> None:
        """Called once, in the middle of the answer."""

    @abstractmethod
    def after_intervention(self) -> None:
        """Called with each further piece of text, before it is written."""

    def end(self) -> None:
        """Called after the last piece."""
        self._write("\n")

    def mark(self, event: str, colour: str) -> None:
        """Write a line across the text that says what happens to the executors."""
        if not self._at_line_start:
            self._write("\n")
        click.secho(f"── {event} ──", fg=colour, bold=True)

    def _write(self, text: str) -> None:
        write_text(text)
        self._at_line_start = text.endswith("\n")


class KillAct(Act):
    """SIGKILL the executor that has the answer, start another, and see the answer go on there."""

    def __init__(self, stage: Stage, question: Question, salt: str, intervene_after: int, *, successor: int) -> None:
        super().__init__(stage, question, salt, intervene_after)
        self._successor = successor
        self._killed_s = 0.0
        self._joined = False

    def intervene(self) -> None:
        """Kill the executor and start another."""
        name, successor = self._stage.busiest(), executor_name(self._successor)
        pid = self._stage.fleet.pids[name]
        self._stage.fleet.kill_executor(_index(name))
        self._killed_s = time.perf_counter()
        self.mark(f"kill -9 {name} (pid {pid})", "red")
        pid = self._stage.fleet.start_executor(self._successor)
        self.mark(f"starting {successor} (pid {pid})", "yellow")

    def after_intervention(self) -> None:
        """Report when the successor has joined. (A token or two of the killed executor may still come before.)"""
        if not self._joined and executor_name(self._successor) in self._stage.executors():
            self._joined = True
            seconds = time.perf_counter() - self._killed_s
            self.mark(f"{executor_name(self._successor)} joined after {seconds:.1f} s; the stream goes on", "green")

    def end(self) -> None:
        """Check that the successor has joined."""
        super().end()
        if not self._joined:
            raise click.ClickException("the answer ended without the new executor")


class SwapAct(Act):
    """SIGTERM the executor that has the answer, and see the answer move to the other one."""

    def __init__(self, stage: Stage, question: Question, salt: str, intervene_after: int) -> None:
        super().__init__(stage, question, salt, intervene_after)
        self._leaving = ""
        self._left = False

    def intervene(self) -> None:
        """Drain the executor that has the answer."""
        self._leaving = self._stage.busiest()
        self.mark(
            f"SIGTERM {self._leaving} (pid {self._stage.fleet.pids[self._leaving]}): hand over and leave", "yellow"
        )
        self._stage.fleet.terminate_executor(_index(self._leaving))

    def after_intervention(self) -> None:
        """Report when it has handed over."""
        if not self._left and self._leaving not in (executors := self._stage.executors()):
            self._left = True
            self.mark(f"{', '.join(executors)} goes on", "green")

    def end(self) -> None:
        """Check that it left in order."""
        super().end()
        exit_code = self._stage.fleet.wait_executor(_index(self._leaving))
        if exit_code != 0:
            raise click.ClickException(f"{self._leaving} left with exit code {exit_code} instead of 0")


def _index(executor: str) -> int:
    return int(executor.rsplit("-", 1)[1])
