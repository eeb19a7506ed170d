"""A fleet in virtual time, as its status reports show it: executors that leave, die, and are started again."""

import itertools
from dataclasses import dataclass, field

from tests.support.status_reports import executor_status, status_report


@dataclass
class Executor:
    """A process. `epoch` is 0 while it is not in the fleet."""

    name: str
    pid: int
    build: str
    epoch: int = 0
    joins_at: float = 0.0
    leaves_at: float | None = None
    is_finishing: bool = False


@dataclass
class FleetModel:
    """The scheduler, its executors, and a supervisor that starts another executor for each that ends.

    Attributes:
        names: of the first executors.
        build: of those that are started later.
        restart_s: from an executor's end to its successor's Hello; None if there is no supervisor.
        leave_s: from a drain to an executor's end.
        same_pid: successors have the pid of who was there before, as in a container.
        standby: build of an executor that waits for the memory of another one, and is there as soon as that has ended;
            the supervisor starts standbys only. Empty for none.
        tells_pauses: how long streams paused; not while some still wait.
    """

    names: tuple[str, ...] = ("a", "b", "c")
    build: str = "2"
    restart_s: float | None = 4.0
    leave_s: float = 1.0
    same_pid: bool = False
    standby: str = ""
    tells_pauses: bool = True
    now: float = 1000.0
    scheduler_since: float = 0.0
    executors: list[Executor] = field(default_factory=list)
    drained: list[int] = field(default_factory=list)
    min_ready: int = 99
    ended: dict[int, float] = field(default_factory=dict)
    pauses_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self):
        self._pids = itertools.count(100)
        self._epochs = itertools.count(1)
        self.waiting: list[Executor] = []
        if self.standby:
            self.waiting.append(Executor("standby", next(self._pids), build=self.standby))
        for name in self.names:
            self.executors.append(Executor(name, next(self._pids), build="1", epoch=next(self._epochs)))

    @property
    def ready(self):
        return [one for one in self.executors if one.epoch and one.leaves_at is None and not one.is_finishing]

    def named(self, name):
        return next(one for one in self.executors if one.name == name)

    def report(self):
        return status_report(
            version="1",
            model="m",
            uptime_s=self.now - self.scheduler_since,
            executors=[self._status(one) for one in self.executors if one.epoch],
            pauses_s=dict(self.pauses_s) if self.tells_pauses else {},
        )

    @property
    def has_standby(self):
        return any(one.joins_at <= self.now for one in self.waiting)

    def _status(self, one):
        state = "ready" if one in self.ready else "finishing" if one.is_finishing else "draining"
        facts = {"executor": one.name, "epoch": one.epoch, "pid": one.pid, "build": one.build}
        return executor_status(**facts, state=state, fingerprint=f"f{one.build}", has_standby=self.has_standby)

    def tick(self, seconds=0.5):
        """Let time pass."""
        self.now += seconds
        for one in list(self.executors):
            if one.leaves_at is not None and one.leaves_at <= self.now:
                self.kill(one)
        for one in self.executors:
            if not one.epoch and one.joins_at <= self.now:
                one.epoch = next(self._epochs)
        if self.ready:  # streams of those that are gone go on
            self.pauses_s |= {epoch: self.now - at for epoch, at in self.ended.items() if at < self.now}
            self.ended = {epoch: at for epoch, at in self.ended.items() if at == self.now}
        self.min_ready = min(self.min_ready, len(self.ready))

    def drain(self, epoch, *, finish=False):
        """Returns whether there is such an epoch."""
        one = next((one for one in self.executors if one.epoch == epoch), None)
        if one is not None:
            self.drained.append(epoch)
            one.leaves_at = self.now + self.leave_s
            one.is_finishing = finish
        return one is not None

    def kill(self, one):
        """End a process; the supervisor takes notice."""
        self.executors.remove(one)
        self.ended[one.epoch] = self.now
        if self.has_standby:
            heir = next(heir for heir in self.waiting if heir.joins_at <= self.now)
            self.waiting.remove(heir)
            heir.epoch = next(self._epochs)
            self.executors.append(heir)
        if self.standby and self.restart_s is not None:
            self.start_standby(one.name, after_s=self.restart_s)
        elif self.restart_s is not None:
            self.start(one.name, pid=one.pid if self.same_pid else None, after_s=self.restart_s)

    def start(self, name, *, pid=None, after_s=2.0, build=None):
        """Start a process that joins after a while."""
        one = Executor(name, pid or next(self._pids), build or self.build, joins_at=self.now + after_s)
        self.executors.append(one)
        return one

    def start_standby(self, name, *, after_s=2.0):
        """Start a process that waits for the memory of another one."""
        self.waiting.append(Executor(name, next(self._pids), self.build, joins_at=self.now + after_s))

    def blink(self, one, seconds=1.0):
        """A failed step or a broken connection: it leaves its epoch, and says Hello again."""
        one.epoch, one.leaves_at, one.is_finishing = 0, None, False
        one.joins_at = self.now + seconds

    def restart_scheduler(self):
        """Executors that are finishing know nothing of it and stay; those that were told to leave end."""
        self.scheduler_since = self.now
        self.ended.clear()
        self.pauses_s.clear()
        for one in list(self.executors):
            if one.leaves_at is not None and not one.is_finishing:
                self.kill(one)
            else:
                self.blink(one)
