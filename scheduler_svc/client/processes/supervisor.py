"""Restarts children of a `LocalFleet` that die, with growing delays for one that keeps dying.

A process manager for one machine and one developer; in production compose, systemd or Kubernetes does this.
"""

from collections.abc import Callable

from scheduler_svc.client.clock import Clock
from scheduler_svc.client.processes.child import ChildEnd
from scheduler_svc.client.processes.local_fleet import KEEPER, LocalFleet

_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 30.0
_STABLE_AFTER_S = 60.0  # a child that lived this long is not in a crash loop
_MAX_DEATHS_BEFORE_READY = 3
_LOOK_AT_KEEPER_S = 1.0
_KEEPER_AWAY_S = 3.0  # its own supervisor would have started it again by then


class RestartPolicy:
    """How long to wait before a child is started again; pure, so that tests need no clock.

    A child that left in order (exit code 0: it was drained) is replaced at once. One that crashed waits 0.5 s,
    and twice as long each time it crashes again before it has lived for a minute, up to 30 s.
    """

    def __init__(self) -> None:
        self._crashes: dict[str, int] = {}

    def delay_s(self, end: ChildEnd) -> float:
        """Seconds to wait after `end`, which is counted."""
        if end.returncode == 0:
            return 0.0
        if end.uptime_s >= _STABLE_AFTER_S:
            self._crashes[end.name] = 0
        self._crashes[end.name] = self.crashes(end.name) + 1
        return min(_FIRST_DELAY_S * 2.0 ** (self.crashes(end.name) - 1), _MAX_DELAY_S)

    def crashes(self, name: str) -> int:
        """Crashes of a child since its last stable life."""
        return self._crashes.get(name, 0)


class Supervisor:
    """Keeps a fleet complete; call `poll` a few times a second.

    Args:
        fleet: already started.
        say: takes one line for the operator.
        clock: tells when a child is due.
    """

    def __init__(self, fleet: LocalFleet, say: Callable[[str], None], clock: Clock = Clock()) -> None:  # noqa: B008
        self._clock = clock
        self._fleet = fleet
        self._say = say
        self._policy = RestartPolicy()
        self._restart_at_s: dict[str, float] = {}
        self._was_ready = False
        self._look_at_keeper_s = 0.0
        self._keeper_seen_s = clock.now_s()

    def poll(self) -> bool:
        """Start the children that are due. Returns whether the service has been ready at least once.

        Raises:
            FleetError: a child says that it is misconfigured; or, before the service was ever ready, that it cannot
                start now, or it keeps dying.
        """
        for end in self._fleet.poll():
            self._schedule(end)
        now_s = self._clock.now_s()
        for name in [name for name, at_s in self._restart_at_s.items() if at_s <= now_s]:
            del self._restart_at_s[name]
            if name == KEEPER and self._fleet.keeper_listens():  # another one has come first
                continue
            pid = self._fleet.start_child(name)
            self._say(f"{name} started again (pid {pid})")
        self._take_keeper_over(now_s)
        self._was_ready = self._was_ready or self._fleet.is_ready()
        return self._was_ready

    def _take_keeper_over(self, now_s: float) -> None:
        """Start a keeper where another process's has ended, such as that of another `baton up`. Executors that run
        bring it what they hold."""
        has_own = KEEPER in self._fleet.pids or KEEPER in self._restart_at_s
        if self._fleet.spec.keeper is None or has_own or now_s < self._look_at_keeper_s:
            return
        self._look_at_keeper_s = now_s + _LOOK_AT_KEEPER_S
        if self._fleet.keeper_listens():
            self._keeper_seen_s = now_s
        elif now_s - self._keeper_seen_s >= _KEEPER_AWAY_S:
            pid = self._fleet.start_child(KEEPER)
            path = self._fleet.spec.keeper
            self._say(f"the keeper at {path}, which was not this fleet's, has ended; {KEEPER} has pid {pid}")

    def _schedule(self, end: ChildEnd) -> None:
        if end.name == KEEPER and end.wants_another_start and self._fleet.keeper_listens():
            self._say(f"another keeper has come first at {self._fleet.spec.keeper}, and is used")
            return
        delay_s = self._policy.delay_s(end)
        deaths = self._policy.crashes(end.name)
        # The user who waits knows sooner than a third start what holds the port or the journal.
        hopeless = not self._was_ready and (end.wants_another_start or deaths >= _MAX_DEATHS_BEFORE_READY)
        if end.misconfigured or hopeless:
            raise self._fleet.failure(end)
        self._say(f"{end}; starting it again {'now' if delay_s == 0 else f'in {delay_s:g} s'}")
        self._restart_at_s[end.name] = self._clock.now_s() + delay_s
