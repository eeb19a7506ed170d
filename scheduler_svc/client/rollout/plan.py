"""Replacing executors one by one: what to do next, given what the scheduler reports; pure.

Each executor in turn:

    GATHERING ──as many ready as at the start──▶ LEAVING ──its epoch is gone──▶ SUCCESSION ──▶ the next one
        └─(--replace-with)─▶ JOINING ──a new one is ready──▶┘           a new one is ready, and as many as at the start

Where standbys wait for the memory of executors, one that is new is ready when the executor's status says that a standby
waits. A standby that waited before the rollout began is the first successor; it is old, so its turn comes at the end,
and it is counted from the start.

Reports and the time go in, actions come out; `commands/rollout.py` carries them out.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from common.messages import StatusReport
from scheduler_svc.client.rollout.roster import ExecutorProcess, Roster

_MAX_DRAINS = 3
_SILENT_S = 10.0  # in one state of a turn, until the operator is told what is waited for
_RESUME_S = 5.0  # streams go on within a step or two; some may wait for memory for longer


@dataclass(frozen=True)
class RolloutSettings:
    """What the operator asked for.

    Attributes:
        timeout_s: limit for each executor, from its turn to its successor.
        finish: let the sequences of each end there, instead of handing them over.
        starts_successors: whether this rollout starts a successor for each; otherwise a supervisor does.
        starts_standbys: whether these successors are standbys, which do not join before the executor has left.
        build: that each successor must have, with or without its commit; empty for any.
        fingerprint: start of the fingerprint that each successor must have; empty for any.
    """

    timeout_s: float
    finish: bool = False
    starts_successors: bool = False
    starts_standbys: bool = False
    build: str = ""
    fingerprint: str = ""

    def objection(self, newcomer: ExecutorProcess) -> str:
        """What is wrong with a new executor; empty if it is as asked for."""
        status = newcomer.status
        if self.build and self.build not in (status.build, status.build.partition("+")[0]):
            return f"has build {status.build}, expected is {self.build}"
        if not status.fingerprint.startswith(self.fingerprint):
            return f"has fingerprint {status.fingerprint}, expected is {self.fingerprint}"
        return ""


@dataclass(frozen=True)
class Say:
    """Tell the operator."""

    line: str


@dataclass(frozen=True)
class StartSuccessor:
    """Start a successor; if it ends before it has joined, call `Rollout.stop`."""


@dataclass(frozen=True)
class Drain:
    """Tell an executor to leave; tell `Rollout` what the scheduler answered."""

    epoch: int


Action = Say | StartSuccessor | Drain


class TurnState(Enum):
    """Where the turn of an executor stands; see the diagram above."""

    GATHERING = auto()
    JOINING = auto()
    LEAVING = auto()
    SUCCESSION = auto()


@dataclass(frozen=True)
class Replaced:
    """An executor that has a successor.

    Attributes:
        pause_s: the longest pause of a stream that it had; None if that is not known, or not over.
        seconds: from the begin of its turn to its end; most of that, it serves.
    """

    name: str
    epoch: int
    successor: ExecutorProcess
    pause_s: float | None
    seconds: float


@dataclass(eq=False)
class _Turn:
    """What has been done about the executor whose turn it is.

    Attributes:
        since_s: when it came to this state.
        is_told: whether the operator was told what it waits for in this state.
        succeeded_s: when its successor was ready; None before.
        drained: its epochs that were told to leave, each with the number of scheduler restarts until then.
    """

    begun_s: float
    since_s: float
    is_told: bool = False
    state: TurnState = TurnState.GATHERING
    succeeded_s: float | None = None
    drained: dict[int, int] = field(default_factory=dict)


class Rollout:
    """A rollout of some executors or all.

    Args:
        report: status of the fleet at the start.
        names: executors to replace; all that are ready if it is empty.
        now_s: the present time, as in all calls.

    Attributes:
        replaced: executors replaced so far.
        queue: executors that are left to replace; it is the first one's turn.
        stopped: why the rollout ended early; empty if it did not.
        misfit: the new executor that is not as asked for, for which it ended; None if there is none.
    """

    def __init__(self, report: StatusReport, names: tuple[str, ...], settings: RolloutSettings, now_s: float) -> None:
        self._settings = settings
        self._roster = Roster(report)
        ready = [process for process in self._roster.processes if process.is_ready]
        self._num_wanted = len(ready)
        self.queue = [process for process in ready if not names or process.name in names]
        self._first_epochs = {process: process.epoch for process in self.queue}
        self._spares: list[ExecutorProcess] = []
        self._has_old_standby = any(process.status.has_standby for process in ready)
        self._waits_for_standbys = self._has_old_standby or settings.starts_standbys
        self._num_targets = len(self.queue) + self._has_old_standby
        self._pauses_s = report.pauses_s
        self._turn = _Turn(now_s, now_s)
        self.replaced: list[Replaced] = []
        self.stopped = ""
        self.misfit: ExecutorProcess | None = None

    @property
    def turn_state(self) -> TurnState:
        """Where the turn of the first executor in the queue stands."""
        return self._turn.state

    @property
    def waits_for_supervisor(self) -> bool:
        """Whether a supervisor has to start what the turn waits for; otherwise this rollout has started it."""
        return not self._settings.starts_successors

    @property
    def where(self) -> str:
        """Where the turn stands, for the operator."""
        if self.misfit is not None and not self.queue[0].is_present:
            return f"replaced by {_named(self.misfit)}, which is not as expected"
        match self.turn_state:
            case TurnState.GATHERING:
                return "not touched"
            case TurnState.JOINING if self.waits_for_supervisor:
                return "not touched; no standby waits"
            case TurnState.JOINING:
                return "not touched; a successor was started"
            case TurnState.LEAVING:
                return "asked to leave, still there"
            case TurnState.SUCCESSION:
                return "gone, without a successor"

    @property
    def targets(self) -> str:
        """The executors that are left to replace, by name, and the standby whose turn comes at the end."""
        names = [process.name for process in self.queue]
        return ", ".join([*names, "then the standby that waits"] if self._has_old_standby else names)

    @property
    def waits_for_start(self) -> bool:
        """Whether a successor was started that has not joined yet."""
        return not self.is_done and self.turn_state is TurnState.JOINING

    @property
    def is_done(self) -> bool:
        """Whether the rollout is over."""
        return not self.queue or bool(self.stopped)

    def stop(self, reason: str) -> None:
        """End the rollout early."""
        self.stopped = self.stopped or reason

    def drain_accepted(self, epoch: int) -> None:
        """The scheduler has told the executor with this epoch to leave."""
        self._turn.drained[epoch] = self._roster.num_restarts

    def drain_refused(self, reason: str) -> None:
        """The scheduler has refused to let the executor leave."""
        if self.queue[0].status.state == "ready":
            self.stop(f"the scheduler refused: {reason}")

    def see(self, report: StatusReport | None, now_s: float) -> list[Action]:
        """What to do after a status report; None if the scheduler did not answer."""
        actions: list[Action] = []
        if report is not None and not self.is_done:
            actions += self._take_in(report, now_s)
        while report is not None and not self.is_done:
            turn, state = self._turn, self._turn.state
            actions += self._advance(now_s)
            if (turn, state) == (self._turn, self._turn.state):
                break
            self._turn.since_s, self._turn.is_told = now_s, False
        if not self.is_done and not self._turn.is_told and now_s - self._turn.since_s >= _SILENT_S:
            self._turn.is_told = True
            actions.append(self._progress(f"waits {self._what_for()}"))
        if not self.is_done and now_s - self._turn.begun_s > self._settings.timeout_s:
            self.stop(self._what_did_not_happen(report is not None))
        return actions

    def _take_in(self, report: StatusReport, now_s: float) -> list[Action]:
        """Update which executors are there."""
        target, is_restart = self.queue[0], self._roster.shows_restart(report)
        self._pauses_s = report.pauses_s
        is_leaving = self._turn.drained.get(target.epoch) == self._roster.num_restarts and not is_restart
        if is_leaving and not self._settings.finish:
            # It was told to leave, so it has left when its epoch is gone; one that looks the same is its successor.
            target.has_left |= all(status.epoch != target.epoch for status in report.executors)
        newcomers = self._roster.see(report, now_s)
        target.has_left |= is_leaving and not target.is_present
        self._spares += newcomers
        for newcomer in newcomers:
            if objection := self._settings.objection(newcomer):
                self.misfit = self.misfit or newcomer
                self.stop(f"the new executor {_named(newcomer)} {objection}")
        return [Say("the scheduler was restarted; executors are known by name and pid")] if is_restart else []

    def _advance(self, now_s: float) -> list[Action]:
        """Take one step, if there is one to take."""
        target, turn, starts = self.queue[0], self._turn, self._settings.starts_successors
        is_gone, spare = target.is_gone(now_s), self._spare_for(target)
        match turn.state:
            case TurnState.GATHERING if self._is_complete(now_s) and (target.is_present or is_gone):
                turn.state = TurnState.JOINING
                return [StartSuccessor()] if starts else []
            case TurnState.JOINING if self._has_joined(target, spare):
                turn.state = TurnState.LEAVING
                return [self._progress("is leaving" if target.is_present else "has gone by itself")]
            case TurnState.LEAVING if target.is_present:
                return self._drain(target, now_s)
            case TurnState.LEAVING if is_gone:
                turn.state = TurnState.SUCCESSION
            case TurnState.SUCCESSION if target.is_present:  # it had only lost its connection
                turn.state = TurnState.LEAVING
            case TurnState.SUCCESSION if spare is not None and self._is_complete(now_s):
                turn.succeeded_s = turn.succeeded_s or now_s
                if target.epoch in self._pauses_s or now_s - turn.succeeded_s >= _RESUME_S:
                    return self._succeeded(target, spare, now_s)
        return []

    def _has_joined(self, target: ExecutorProcess, spare: ExecutorProcess | None) -> bool:
        """Whether the executor may leave: its successor is ready, or comes when it has left."""
        if self._waits_for_standbys:
            return target.status.has_standby
        return spare is not None or not self._settings.starts_successors

    def _is_complete(self, now_s: float) -> bool:
        """Whether as many executors are ready as at the start; where this rollout starts the successors, less those
        that died before their turn was over."""
        num_dead = 0
        if self._settings.starts_successors:
            waiting = self.queue[self.turn_state is TurnState.SUCCESSION :]
            num_dead = sum(process.is_gone(now_s) for process in waiting)
        return self._roster.num_ready + num_dead >= self._num_wanted

    def _drain(self, target: ExecutorProcess, now_s: float) -> list[Action]:
        """Repeat the drain until the scheduler has answered for the epoch that the executor has now."""
        if target.epoch in self._turn.drained or not self._is_complete(now_s):
            return []
        if len(self._turn.drained) >= _MAX_DRAINS:
            self.stop(f"{_named(target)} was told to leave {_MAX_DRAINS} times, and came back each time")
            return []
        return [Drain(target.epoch)]

    def _succeeded(self, target: ExecutorProcess, successor: ExecutorProcess, now_s: float) -> list[Action]:
        seconds, pause_s = now_s - self._turn.begun_s, self._pauses_s.get(target.epoch)
        paused = _paused(pause_s)
        said = self._progress(
            f"→ {_named(successor)}, build {successor.status.build}; {paused}, the turn took {seconds:.1f} s"
        )
        self._spares.remove(successor)
        if self._has_old_standby:
            self._has_old_standby = False
            self._first_epochs[successor] = successor.epoch
            self.queue.append(successor)
        self.replaced.append(Replaced(target.name, self._first_epochs[target], successor, pause_s, seconds))
        del self.queue[0]
        self._turn = _Turn(now_s, now_s)
        return [said]

    def _spare_for(self, target: ExecutorProcess) -> ExecutorProcess | None:
        """A new executor that is ready: preferably of the same name, and last one whose name is still in the queue."""
        names = {waiting.name for waiting in self.queue[1:]}
        ready = [spare for spare in self._spares if spare.is_ready]
        return min(ready, key=lambda spare: (spare.name != target.name, spare.name in names), default=None)

    def _progress(self, what: str) -> Say:
        return Say(f"{len(self.replaced) + 1}/{self._num_targets} {_named(self.queue[0])} {what}")

    def _what_for(self) -> str:
        match self.turn_state:
            case TurnState.GATHERING:
                return f"until the fleet is complete: {self._num_of_wanted()}"
            case TurnState.JOINING if self.waits_for_supervisor:
                return "for a standby: this command starts none; a supervisor has to, or --replace-with"
            case TurnState.JOINING:
                return "for the successor that was started to join"
            case TurnState.LEAVING:
                return f"until it has left ({self.queue[0].status.running} sequences)"
            case TurnState.SUCCESSION if self.waits_for_supervisor:
                return "for a successor: this command starts none; a supervisor has to, or --replace-with"
            case TurnState.SUCCESSION:
                return "for its successor to be ready"

    def _num_of_wanted(self) -> str:
        return f"{self._roster.num_ready} of {self._num_wanted} executors are ready"

    def _what_did_not_happen(self, has_answer: bool) -> str:
        name, timeout = self.queue[0].name, f"within {self._settings.timeout_s:g} s"
        if not has_answer:
            return f"the scheduler does not answer, and the turn of {name} was not over {timeout}"
        ready = self._num_of_wanted()
        match self.turn_state:
            case TurnState.GATHERING:
                return f"the fleet was not complete again {timeout} ({ready})"
            case TurnState.JOINING if self.waits_for_supervisor:
                return f"no standby came for {name} {timeout}, and this command starts none"
            case TurnState.JOINING:
                return f"the successor that was started did not join {timeout}"
            case TurnState.LEAVING:
                status = self.queue[0].status
                return f"{name} did not leave {timeout} ({status.state}, {status.running} sequences)"
            case TurnState.SUCCESSION:
                return f"no successor of {name} came {timeout} ({ready})"


def _paused(pause_s: float | None) -> str:
    if pause_s is None:
        return "how long its streams paused is not known"
    return f"its streams paused {pause_s:.2f} s" if pause_s else "no stream paused"


def _named(process: ExecutorProcess) -> str:
    return f"{process.name} (epoch {process.epoch})"
