"""An executor's main thread: it computes plans, one after the other, in the memory of its pool."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random

import msgspec
import numpy as np

from common import messages as m
from common.wire import int32_array
from tests.sim.models import Build, ModelOracle
from tests.sim.world import World
from tests.support.oracle import Written

Answer = m.StepResult | m.StepFailed


class Fate(Enum):
    """What becomes of the next step."""

    FINE = "fine"
    FAILS = "fails"  # out of memory
    FATAL = "fatal"  # the same, and the process ends when it has said so
    LATE = "late"
    HANGS = "hangs"  # until the process is killed
    REPEATED = "repeated"  # answered twice
    GARBLED = "garbled"  # too many tokens
    ANOTHER = "another"  # the answer is to a step that was not sent
    NUMBERLESS = "numberless"  # its scores are no numbers
    UNMASKED = "unmasked"  # masks of grammars, or of other constraints, are not there in time


@dataclass(frozen=True)
class Pace:
    """How long steps take, in seconds."""

    step_s: float
    token_s: float
    late_s: float = 1.0


class StepThread:
    """The thread.

    Args:
        name: of the executor.
        when_awake: does something now, or when the process is awake; not at all if it is dead then.
        live_epoch: plans of another epoch are not computed.
        answer: takes the answer to each plan, None if it was not computed, and the step's fate.
        crash: ends the process.

    Attributes:
        fates: of the next steps; FINE when there are none.
        is_broken: every step fails.
        step: that it computes, or computed last.
        poison_kills: whether a poisoned request kills the process; else its step fails.
    """

    def __init__(
        self,
        world: World,
        name: str,
        build: Build,
        pace: Pace,
        rng: Random,
        when_awake: Callable[[Callable[[], object]], None],
        live_epoch: Callable[[], int | None],
        answer: Callable[[Answer | None, Fate], None],
        crash: Callable[[], None],
    ) -> None:
        self.fates: deque[Fate] = deque()
        self.is_broken = False
        self.is_numberless = False
        self.poison_kills = True
        self.step = 0
        self._world = world
        self._name = name
        self._pace = pace
        self._rng = rng
        self._damage: Random = world.stream("damage")
        self._oracle = ModelOracle(build)
        self._when_awake = when_awake
        self._live_epoch = live_epoch
        self._answer = answer
        self._crash = crash
        self._waiting: deque[m.Plan] = deque()
        self._computing: m.Plan | None = None
        self._fate: Fate | None = None  # of the step that is computed now
        self._failed_epoch: int | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether it computes a step that never ends."""
        return self._fate is Fate.HANGS

    @property
    def is_busy(self) -> bool:
        """Whether it computes a step."""
        return self._computing is not None

    def use(self, slots: dict[int, Written]) -> None:
        """Compute in this memory from now on."""
        self._oracle.slots = slots

    def put(self, plan: m.Plan) -> None:
        """A plan has come."""
        self._waiting.append(plan)
        self._next()

    def tear(self) -> None:
        """The process ends. The step that it computes may have run, or in part, or not at all; if it has run, the next
        one may have begun."""
        if (plan := self._computing) is None:
            return
        rng = self._damage
        match rng.randrange(4):
            case 0:
                self._oracle.run(plan)
                later = [each for each in self._waiting if each.epoch == plan.epoch]
                for each in later[:1]:
                    self._oracle.tear(each, rng.choice([0, 1, 3, None]))
            case 1:
                self._oracle.tear(plan)
            case 2:
                self._oracle.tear(plan, rng.randint(1, 4))

    def overwrite(self) -> None:
        """Half of what is in its memory becomes something else."""
        self._oracle.damage(self._damage, 0.5)

    def _next(self) -> None:
        while self._waiting and self._fate is None:
            plan = self._waiting.popleft()
            if plan.epoch != self._live_epoch() or plan.epoch == self._failed_epoch:
                self._answer(None, Fate.FINE)
                continue
            fate = self._fate = self.fates.popleft() if self.fates else Fate.FINE
            self.step, self._computing = plan.step, plan
            self._world.say(self._name, "computes", plan.epoch, plan.step, fate.value)
            if fate is Fate.HANGS:
                return
            pace = self._pace
            took_s = (pace.step_s + pace.token_s * (len(plan.token_ids) // 4)) * self._rng.uniform(0.7, 1.5)
            took_s += (fate is Fate.LATE) * pace.late_s
            self._world.after(took_s, self._when_awake, partial(self._computed, plan, fate))

    def _computed(self, plan: m.Plan, fate: Fate) -> None:
        """The step has ended."""
        self._fate = self._computing = None
        late = int32_array("lanes", plan.lanes).tolist() if fate is Fate.UNMASKED else ()
        answer: Answer = self._oracle.run(plan, late)
        if self._oracle.is_poisoned(plan):
            if self.poison_kills:
                self._crash()
                return
            fate = Fate.FAILS
        if fate in (Fate.FAILS, Fate.FATAL) or self.is_broken:
            self._failed_epoch = plan.epoch
            self._oracle.damage(self._damage, 0.2)  # nobody knows what a failed step has written where
            answer = m.StepFailed(epoch=plan.epoch, step=plan.step, error="out of memory")
        elif fate is Fate.NUMBERLESS or self.is_numberless:
            answer = _without_numbers(answer)
        self._answer(answer, fate)
        self._next()


def _without_numbers(answer: m.StepResult) -> m.StepResult:
    """The answer of a step whose scores, and results, are no numbers."""
    tokens = np.full(len(answer.token_ids) // 4, m.NO_NUMBERS, np.int32)
    pooled = np.full(len(answer.pooled) // 4, np.nan, np.float32)
    return msgspec.structs.replace(answer, token_ids=tokens.tobytes(), pooled=pooled.tobytes())
