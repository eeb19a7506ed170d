"""The acts of `baton demo`: in each, an answer is streamed while its executor goes away."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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
        num_before, num_after: number of tokens before and after the first executor went.
        pauses_s: the longest time that the client waited for a piece of text after each of them went.
    """

    text: str
    num_before: int
    num_after: int
    pauses_s: tuple[float, ...]


@dataclass(frozen=True)
class Stage:
    """What all acts work with: the services."""

    fleet: LocalFleet
    api: Api

    def report(self) -> StatusReport:
        """The scheduler's."""
        return msgspec.json.decode(self.api.get("/status"), type=StatusReport)

    def executors(self) -> dict[str, int]:
        """Executors that take part, as the scheduler sees them, and how many sequences each is running."""
        return {executor.executor: executor.running for executor in self.report().executors}

    def wait_for_standby(self) -> None:
        """Wait until another process waits for the memory of each executor."""
        self._wait("no standby waits", lambda: all(each.has_standby for each in self.report().executors))

    def busiest(self) -> str:
        """The executor that runs the most sequences: the one that has the answer."""
        running = self.executors()
        return max(running, key=running.__getitem__)

    def wait_for_executor(self, index: int) -> None:
        """Wait until executor `index` takes part."""
        name = executor_name(index)
        self._wait(f"{name} has not joined", lambda: name in self.executors())

    def _wait(self, failure: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _JOIN_TIMEOUT_S
        while not is_so():
            for end in self.fleet.poll():
                raise self.fleet.failure(end)
            if time.monotonic() > deadline:
                raise click.ClickException(f"{failure} after {_JOIN_TIMEOUT_S:.0f} s")
            time.sleep(0.1)


class Act(ABC):
    """One streamed answer, disturbed in the middle; subclasses define the disturbance.

    Args:
        salt: of the request, as in `Question.stream`.
        intervene_after: numbers of pieces after which a disturbance happens.
    """

    def __init__(self, stage: Stage, question: Question, salt: str, *intervene_after: int) -> None:
        self._stage = stage
        self._question = question
        self._salt = salt
        self._intervene_after = intervene_after
        self._at_line_start = True

    def play(self) -> ActResult:
        """Stream the answer to stdout."""
        pieces: list[str] = []
        pauses_s: list[float] = []
        last_s = time.perf_counter()
        for piece in self._question.stream(self._salt):
            now_s = time.perf_counter()
            if pauses_s:
                pauses_s[-1] = max(pauses_s[-1], now_s - last_s)
                self.after_intervention()
            last_s = time.perf_counter() if pauses_s else now_s
            pieces.append(piece)
            self._write(piece)
            if len(pieces) in self._intervene_after:
                pauses_s.append(0.0)
                self.intervene()
        self.end()
        num_before = min(self._intervene_after[0], self._question.num_tokens)
        return ActResult("".join(pieces), num_before, self._question.num_tokens - num_before, tuple(pauses_s))

    @abstractmethod
    def intervene(self) -> None:
        """Called at each disturbance, in the middle of the answer."""

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


class RelayAct(Act):
    """One executor after the other goes away in the middle of an answer, and a standby goes on each time: the first
    ones are killed, the last one is told to leave. Nothing is computed again."""

    def __init__(self, stage: Stage, question: Question, salt: str, intervene_after: Sequence[int]) -> None:
        super().__init__(stage, question, salt, *intervene_after)
        self._num_turns = len(intervene_after)
        self._gone: list[str] = []
        self._gone_at = 0.0
        self._before = stage.report()

    @property
    def num_recomputed(self) -> int:
        """Tokens that were computed again during the act."""
        return self._stage.report().recomputed_tokens - self._before.recomputed_tokens

    def intervene(self) -> None:
        """Kill the executor that has the answer, or tell it to leave if it is the last one's turn."""
        name = self._stage.busiest()
        pid = self._stage.fleet.pids[name]
        self._gone_at = time.perf_counter()
        if len(self._gone) == self._num_turns - 1:
            self._stage.fleet.terminate_executor(_index(name))
            self.mark(f"rollout: {name} (pid {pid}) is told to leave", "yellow")
        else:
            self._stage.fleet.kill_executor(_index(name))
            self.mark(f"kill -9 {name} (pid {pid})", "red")
        self._gone.append(name)

    def after_intervention(self) -> None:
        """Report which executor goes on."""
        if self._gone_at and (present := [name for name in self._stage.executors() if name not in self._gone]):
            self.mark(f"{present[0]} goes on", "green")
            self._gone_at = 0.0

    def end(self) -> None:
        """Check that the last one left in order."""
        super().end()
        exit_code = self._stage.fleet.wait_executor(_index(self._gone[-1]))
        if exit_code != 0:
            raise click.ClickException(f"{self._gone[-1]} left with exit code {exit_code} instead of 0")


def _index(executor: str) -> int:
    return int(executor.rsplit("-", 1)[1])
