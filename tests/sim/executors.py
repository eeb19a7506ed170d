"""An executor's process: the real `Registration` and a KV oracle, driven as `executor_svc.service.process` does it."""

import math
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Any

from common import messages as m
from common.exit_codes import EXIT_CRASHED
from executor_svc.service.registration import (
    DropMessage,
    LogEvent,
    Reconnect,
    Registration,
    RegistrationAction,
    RunPlan,
    SendToScheduler,
    StopProcess,
    TagPool,
)
from tests.sim.keeper_link import Keeping, SimLink
from tests.sim.keepers import Memory
from tests.sim.models import Build
from tests.sim.sockets import Dealer, Port
from tests.sim.steps import Answer, Fate, Pace, StepThread
from tests.sim.world import World

EXIT_KILLED = 137
TEARDOWN_S = (0.0, 4.0)  # from the release of a process's lease to its end
POLL_S = 0.1  # until a connection is looked at again that takes nothing
ELSEWHERE = 5  # an epoch of another scheduler


class Ending(Enum):
    """How a process ends that has just got a pool."""

    LEASED = "leased"  # before it has said Hello
    WELCOMED = "welcomed"  # in an epoch, before it has written that into the pool's tag
    TAGGED = "tagged"  # just after that
    ELSEWHERE = "elsewhere"  # after another scheduler had it compute something


class ExecutorProcess:
    """The process.

    Args:
        name: what it is called in the fleet.
        on_exit: is called with the exit code.
        keeping: how its pool is kept; None if there is no keeper on its machine.
        next_ending: how it ends when it has just got a pool, None if it does not; is asked then.

    Attributes:
        thread: computes its steps.
    """

    def __init__(
        self,
        world: World,
        port: Port,
        name: str,
        build: Build,
        pace: Pace,
        rng: Random,
        on_exit: Callable[["ExecutorProcess", int], None],
        keeping: Keeping | None = None,
        next_ending: Callable[[], Ending | None] = lambda: None,
    ) -> None:
        self.name = name
        self.build = build
        self._world = world
        self._on_exit = on_exit
        self._rng = world.stream(f"teardown {0 if keeping is None else keeping.number}")
        self._next_ending = next_ending
        self._ending: Ending | None = None
        self._dealer = Dealer(port, m.SchedulerToExecutor, self._receive, self._connection_changed)
        self._link: SimLink | None = None
        self._registration = Registration(self.hello, world.now)
        socket = (self._when_awake, lambda: self.epoch, self._answered, self.kill)
        self.thread = StepThread(world, name, build, pace, rng, *socket)
        self._is_alive = True
        self._frozen_until = 0.0
        self._tick_at = 0.0
        self._is_serving = False
        if keeping is None:
            self._serve()
        else:
            state = lambda: self._registration.holder_state  # noqa: E731
            self._link = SimLink(world, keeping, self, self._when_awake, self._serve, state, self._standbys)

    def _serve(self) -> None:
        """It has its pool, or none: from now on it talks to the scheduler."""
        self._is_serving = True
        if self._link is not None and self._link.memory is not None:
            self.thread.use(self._link.memory.slots)
            self._registration = Registration(self.hello, self._world.now)
            self._ending = self._next_ending()
            self._world.say(self.name, "has", self._link.shown, "" if self._ending is None else self._ending.value)
        if self._ending is Ending.LEASED:
            self.kill()
        elif self._ending is Ending.ELSEWHERE:
            self._do(self._registration.message_received(m.Welcome(epoch=ELSEWHERE), self._world.now))
            self.thread.overwrite()
            self.kill()
        else:
            self._plan_tick()

    def _standbys(self, count: int) -> None:
        self._registration.has_standby = count > 0

    @property
    def epoch(self) -> int | None:
        """The epoch of its life in the fleet."""
        return self._registration.epoch

    @property
    def hello(self) -> m.Hello:
        """What it says about itself."""
        build = self.build
        facts: dict[str, Any] = {
            "executor": self.name,
            "build": "sim",
            "fingerprint": build.fingerprint,
            "dtype": build.dtype,
        }
        pool = None if self._link is None else self._link.pool
        facts |= {"device": "cpu", "pid": 1, "tokenizer": "", "start_s": 0.3, "pool": pool, "node": ""}
        return m.Hello(**facts, grammars=build.library, **vars(build.limits))

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._is_alive

    @property
    def is_waiting(self) -> bool:
        """Whether it is a standby that waits for a pool."""
        return self._link is not None and self._link.is_waiting

    @property
    def is_stuck(self) -> bool:
        """Whether it computes a step that never ends."""
        return self.thread.is_stuck

    # --- what happens to it ---

    def kill(self) -> None:
        """kill -9."""
        self._exit(EXIT_KILLED)

    def terminate(self) -> None:
        """SIGTERM, twice if it is leaving already: a frozen process hears of it when it goes on."""
        if self._is_alive and not self._registration.leaving:
            self._when_awake(self._leave)

    def freeze(self, until: float) -> None:
        """SIGSTOP, and SIGCONT at a time."""
        if self._is_alive:
            self._frozen_until = max(self._frozen_until, until)
            self._dealer.cut(self._frozen_until, up=False)

    def cut(self, until: float, *, up: bool = True, down: bool = True) -> None:
        """The network lets nothing through."""
        self._dealer.cut(until, up=up, down=down)

    def half_open(self, until: float) -> None:
        """The connection is dead, and neither end notices until then."""
        self._dealer.half_open(until)

    def reset(self) -> None:
        """The connection breaks."""
        self._dealer.reset()

    def reset_link(self) -> None:
        """The connection to the keeper breaks."""
        if self._link is not None and self._is_alive:
            self._link.reset()

    @property
    def memory(self) -> Memory | None:
        """Of its pool, if that is kept."""
        return None if self._link is None else self._link.memory

    def say(self, message: m.ExecutorToScheduler) -> None:
        """Something its code would never say here. One that does not serve yet says nothing."""
        if self._is_alive and self._is_serving:
            self._dealer.send(message)

    # --- the socket thread ---

    def _leave(self) -> None:
        if not self._registration.leaving:
            self._do(self._registration.leave_requested(self._world.now))

    def _connection_changed(self, is_connected: bool) -> None:
        if is_connected:
            self._when_awake(self._tick)

    def _receive(self, message: m.SchedulerToExecutor) -> None:
        if self._is_alive:
            self._do(self._registration.message_received(message, self._world.now))
            self._plan_tick()

    def _tick(self) -> None:
        if not self._is_serving:
            return
        self._do(self._registration.tick(self._world.now, writable=self._dealer.is_writable))
        self._plan_tick()

    def _plan_tick(self) -> None:
        """Wait for the next thing that is due."""
        due = self._registration.next_tick()
        if not self._dealer.is_writable:
            due = max(due, self._world.now + POLL_S)
        if due not in (self._tick_at, math.inf):
            self._tick_at = due
            self._world.at(due, self._on_time, due)

    def _on_time(self, due: float) -> None:
        if due == self._tick_at:
            self._tick_at = -1.0
            self._when_awake(self._tick)

    def _do(self, actions: list[RegistrationAction]) -> None:
        for action in actions:
            match action:
                case SendToScheduler(message):
                    if not self._dealer.send(message):
                        self._do(self._registration.connection_lost(self._world.now))
                case RunPlan(plan):
                    self.thread.put(plan)
                case TagPool(epoch):
                    self._tag(epoch)
                case Reconnect():
                    self._dealer.renew()
                case DropMessage(reason):
                    self._world.say(self.name, "drops:", reason)
                case LogEvent(event, facts):
                    self._world.say(self.name, event, facts)
                case StopProcess(exit_code):
                    self._stop(exit_code)

    def _stop(self, code: int) -> None:
        """End in order: the lease goes first, if no step is being computed, and then the process takes its time."""
        if code == EXIT_CRASHED or self._link is None or self.thread.is_busy or not self._link.release():
            self._exit(code)
            return
        self._world.say(self.name, "has released its lease")
        self._is_serving = False
        self._dealer.close()
        self._world.after(self._rng.uniform(*TEARDOWN_S), self._exit, code)

    def _exit(self, code: int) -> None:
        if self._is_alive:
            self._world.say(self.name, "exits with", code)
            self._is_alive = False
            self._dealer.close()
            if self._link is not None:
                self.thread.tear()
                self._link.close()
            self._on_exit(self, code)

    def _tag(self, epoch: int) -> None:
        assert self._link is not None
        assert self._link.tag is not None
        if self._ending is not Ending.WELCOMED:
            self._link.tag.epoch = epoch
        if self._ending in (Ending.WELCOMED, Ending.TAGGED):
            self.kill()

    def _when_awake(self, do: Callable[[], object]) -> None:
        """Do something now, or when the process is awake; not at all if it is dead then."""
        if self._world.now < self._frozen_until:
            self._world.at(self._frozen_until, self._when_awake, do)
        elif self._is_alive:
            do()

    # --- the main thread ---

    def _answered(self, answer: Answer | None, fate: Fate) -> None:
        """A step has ended, or was left out."""
        self._do(self._registration.plan_answered(answer, self._world.now))
        if isinstance(answer, m.StepResult):
            self._misbehave(fate, answer)
        if fate is Fate.FATAL:
            self.kill()
        if self._is_alive:
            self._plan_tick()

    def _misbehave(self, fate: Fate, answer: m.StepResult) -> None:
        """Say something after an answer that no sound executor says."""
        epoch, step = answer.epoch, answer.step
        if fate is Fate.REPEATED:
            self.say(answer)
        elif fate is Fate.GARBLED:
            tokens = b"\1\0\0\0" * (self.build.limits.max_num_seqs + 1)
            self.say(m.StepResult(epoch=epoch, step=step + 1, token_ids=tokens, compute_us=1))
        elif fate is Fate.ANOTHER:
            self.say(m.StepResult(epoch=epoch, step=step + 1000, token_ids=answer.token_ids, compute_us=1))
