"""When each sequence got its tokens, one by one, held against what the core's metrics say of the times between them."""

from collections import Counter

from scheduler_svc.core.core import Core
from scheduler_svc.core.executor.inflight_plan import InflightPlan
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import StepOutput
from tests.sim.world import World

ROUNDING_S = 1e-6


class TokenBook:
    """Of one life of the scheduler.

    Args:
        moments: what happened, and how often.
    """

    def __init__(self, world: World, moments: Counter[str]) -> None:
        self._world = world
        self._moments = moments
        self._last: dict[Sequence, float] = {}
        self._num_tokens = self._num_firsts = 0
        self._gaps_s = 0.0
        self._has_sat_out = False

    def restored(self, sequences: list[Sequence]) -> None:
        """The core has taken up sequences of an earlier life."""
        self._last.update((sequence, self._world.now) for sequence in sequences if sequence.num_output > 0)

    def landed(self, output: StepOutput) -> None:
        """An answer gave tokens."""
        now = self._world.now
        for sequence in output.sequences:
            if (last := self._last.get(sequence)) is None:
                self._num_firsts += 1
            else:
                self._gaps_s += now - last
            self._last[sequence] = now
            self._num_tokens += 1

    def planned(self, plan: InflightPlan, before: list[Sequence] | None, decoding: list[Sequence]) -> None:
        """A plan was built. The core may count less for a sequence that decodes and sits out a plan.

        Args:
            before: who is in the unanswered plan before it; None if there is none.
            decoding: who decodes now that all plans of this turn are built. One that has its last token in a later plan
                than this one is not there any more.
        """
        everyone = plan.everyone
        if any(sequence not in everyone for sequence in decoding):
            self._has_sat_out = True
        if before is not None and any(sequence not in before for sequence in plan.sequences[: plan.num_decodes]):
            self._has_sat_out = True

    def check(self, core: Core) -> None:
        """Every token but the first of a sequence in this life has its time since the last one in the metrics."""
        times = core._counters.metrics.inter_token_seconds
        self._moments["times between tokens"] += times.count
        assert times.count == self._num_tokens - self._num_firsts, f"{times.count} times between tokens"
        assert times.sum <= self._gaps_s + ROUNDING_S, f"tokens came in {self._gaps_s} s, {times.sum} are said"
        is_less = times.sum < self._gaps_s - ROUNDING_S
        assert not is_less or self._has_sat_out, f"tokens came in {self._gaps_s} s, only {times.sum} are said"
