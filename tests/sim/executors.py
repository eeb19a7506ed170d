"""An executor's process: the real `Registration` and a KV oracle, driven as `executor_svc.service.process` does it."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from typing import Any

from common import messages as m
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
from tests.sim.keeper_link import SimLink
from tests.sim.keepers import KeeperHost
from tests.sim.models import Build, ModelOracle
from tests.sim.sockets import Dealer, Port
from tests.sim.world import World

EXIT_KILLED = 137
POLL_S = 0.1  # until a connection is looked at again that takes nothing


class Fate(Enum):
    """What becomes of the next step."""

    FINE = "fine"
    FAILS = "fails"  # out of memory
    LATE = "late"
    HANGS = "hangs"  # until the process is killed
    REPEATED = "repeated"  # answered twice
    GARBLED = "garbled"  # too many tokens
    ANOTHER = "another"  # the answer is to a step that was not sent


@dataclass(frozen=True)
class Pace:
    """How long steps take, in seconds."""

    step_s: float
    token_s: float
    late_s: float = 1.0


class ExecutorProcess:
    """The process.

    Args:
        name: what it is called in the fleet.
        on_exit: is called with the exit code.
        keeper: keeps its pool; None if there is no keeper on its machine.
        number: which no other process has.
        is_standby: it waits until another one's pool is free.

    Attributes:
        fates: of its next steps; FINE when there are none.
        is_broken: every step fails.
        step: that it computes, or computed last.
        poison_kills: whether a poisoned request kills the process; else its step fails.
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
        keeper: KeeperHost | None = None,
        number: int = 0,
        *,
        is_standby: bool = False,
    ) -> None:
        self.name = name
        self.build = build
        self.fates: deque[Fate] = deque()
        self.is_broken = False
        self.poison_kills = True
        self.step = 0
        self._world = world
        self._pace = pace
        self._rng = rng
        self._on_exit = on_exit
        self._oracle = ModelOracle(build)
        self._dealer = Dealer(port, m.SchedulerToExecutor, self._receive, self._connection_changed)
        self._link: SimLink | None = None
        self._registration = Registration(self.hello, world.now)
        self._steps: deque[m.Plan] = deque()
        self._computing: m.Plan | None = None
        self._fate: Fate | None = None  # of the step that is computed now
        self._failed_epoch: int | None = None
        self._is_alive = True
        self._frozen_until = 0.0
        self._tick_at = 0.0
        self._is_serving = False
        if keeper is None:
            self._serve()
        else:
            self._link = SimLink(
                world,
                keeper,
                self,
                name,
                number,
                build,
                is_standby=is_standby,
                when_awake=self._when_awake,
                start=self._serve,
                holder_state=lambda: self._registration.holder_state,
                on_standbys=self._standbys,
            )

    def _serve(self) -> None:
        """It has its pool, or none: from now on it talks to the scheduler."""
        if self._link is not None and self._link.memory is not None:
            self._oracle.slots = self._link.memory.slots
            self._registration = Registration(self.hello, self._world.now)
        self._is_serving = True
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
        facts |= {"device": "cpu", "pid": 1, "tokenizer": "", "start_s": 0.3, "pool": pool}
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
        return self._fate is Fate.HANGS

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

    def say(self, message: m.ExecutorToScheduler) -> None:
        """Something its code would never say here."""
        if self._is_alive:
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
                    self._steps.append(plan)
                    self._compute_next()
                case TagPool(epoch):
                    assert self._link is not None
                    assert self._link.tag is not None
                    self._link.tag.epoch = epoch
                case Reconnect():
                    self._dealer.renew()
                case DropMessage(reason):
                    self._world.say(self.name, "drops:", reason)
                case LogEvent(event, facts):
                    self._world.say(self.name, event, facts)
                case StopProcess(exit_code):
                    self._exit(exit_code)

    def _exit(self, code: int) -> None:
        if self._is_alive:
            self._world.say(self.name, "exits with", code)
            self._is_alive = False
            self._dealer.close()
            if self._link is not None:
                if self._link.memory is not None:
                    self._tear()
                self._link.close()
            self._on_exit(self, code)

    def _tear(self) -> None:
        """The step that it computes may have run, or in part, or not at all; then the next one may have begun."""
        if (plan := self._computing) is None:
            return
        match self._rng.randrange(4):
            case 0:
                self._oracle.run(plan)
                later = [step for step in self._steps if step.epoch == plan.epoch != self._failed_epoch]
                for step in later[:1]:
                    self._oracle.tear(step, self._rng.choice([0, 1, 3, None]))
            case 1:
                self._oracle.tear(plan)
            case 2:
                self._oracle.tear(plan, self._rng.randint(1, 4))

    def _when_awake(self, do: Callable[[], object]) -> None:
        """Do something now, or when the process is awake; not at all if it is dead then."""
        if self._world.now < self._frozen_until:
            self._world.at(self._frozen_until, self._when_awake, do)
        elif self._is_alive:
            do()

    # --- the main thread ---

    def _compute_next(self) -> None:
        while self._steps and self._fate is None:
            plan = self._steps.popleft()
            if plan.epoch != self._registration.epoch or plan.epoch == self._failed_epoch:
                self._do(self._registration.plan_answered(None, self._world.now))
                continue
            fate = self._fate = self.fates.popleft() if self.fates else Fate.FINE
            self.step, self._computing = plan.step, plan
            self._world.say(self.name, "computes", plan.epoch, plan.step, fate.value)
            if fate is Fate.HANGS:
                return
            pace = self._pace
            took_s = (pace.step_s + pace.token_s * (len(plan.token_ids) // 4)) * self._rng.uniform(0.7, 1.5)
            took_s += (fate is Fate.LATE) * pace.late_s
            self._world.after(took_s, self._when_awake, partial(self._computed, plan))

    def _computed(self, plan: m.Plan) -> None:
        """The step has ended."""
        fate, self._fate, self._computing = self._fate, None, None
        result = self._oracle.run(plan)
        answer: m.StepResult | m.StepFailed = result
        if self._oracle.is_poisoned(plan):
            if self.poison_kills:
                self._exit(EXIT_KILLED)
                return
            fate = Fate.FAILS
        if fate is Fate.FAILS or self.is_broken:
            self._failed_epoch = plan.epoch
            answer = m.StepFailed(epoch=plan.epoch, step=plan.step, error="out of memory")
        self._do(self._registration.plan_answered(answer, self._world.now))
        if isinstance(answer, m.StepResult):
            self._misbehave(fate, answer)
        self._compute_next()
        if self._is_alive:
            self._plan_tick()

    def _misbehave(self, fate: Fate | None, answer: m.StepResult) -> None:
        """Say something after an answer that no sound executor says."""
        epoch, step = answer.epoch, answer.step
        if fate is Fate.REPEATED:
            self.say(answer)
        elif fate is Fate.GARBLED:
            tokens = b"\1\0\0\0" * (self.build.limits.max_num_seqs + 1)
            self.say(m.StepResult(epoch=epoch, step=step + 1, token_ids=tokens, compute_us=1))
        elif fate is Fate.ANOTHER:
            self.say(m.StepResult(epoch=epoch, step=step + 1000, token_ids=answer.token_ids, compute_us=1))
