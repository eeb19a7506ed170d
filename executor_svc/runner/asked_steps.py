"""Steps whose samples ask for more than a token: from the plan to what is drawn, and back to the plan's order."""

from dataclasses import dataclass

import torch
from torch import Tensor

from common.plan import ExecutorLimits, PlanColumns, ResultColumns
from common.wire import IntArray
from executor_svc.model.draw import Drawn, Lanes
from executor_svc.runner.readback import PendingCopies
from executor_svc.staging.arena import Arena
from executor_svc.staging.asked import AskedStager, AskedStep, SampleOrder
from executor_svc.staging.constrained_lanes import ConstrainedLanes

_ARENA_BYTES = 4 * 2**20  # a mask of 151,936 tokens takes 19 kB; a step that takes more gets memory of its own


@dataclass(frozen=True)
class PendingStep:
    """A step that was launched.

    Attributes:
        order: of its samples; None for the plan's.
    """

    _columns: PlanColumns
    _order: SampleOrder | None
    _drawn: PendingCopies

    def wait(self) -> ResultColumns:
        """What the plan gave, as soon as it is done. Raises RuntimeError if a kernel of the step failed."""
        drawn = self._drawn.wait()
        if self._order is None:
            return ResultColumns.of_tokens(drawn[0])
        return self._order.result(self._columns, *drawn)


@dataclass(frozen=True)
class AskedPlan:
    """A plan that asks for more than tokens.

    Attributes:
        columns: with the samples in `order`, and without what they ask for.
        asked: what they ask for, on the device.
    """

    columns: PlanColumns
    order: SampleOrder
    asked: AskedStep


class AskedSteps:
    """Keeps what constraints need between plans: what was said of lanes, and their tokens on the device.

    Args:
        limits: of the executor.
        device: where steps run.

    Attributes:
        lanes: on the device.
    """

    def __init__(self, limits: ExecutorLimits, device: torch.device) -> None:
        last_tokens = torch.zeros(limits.max_num_seqs + 1, dtype=torch.int32, device=device)
        # The token that a sequence of the greatest length ends with is one more.
        tokens = torch.empty((limits.max_num_seqs, limits.max_model_len + 1), dtype=torch.int32, device=device)
        self.lanes = Lanes(last_tokens, tokens)
        self._stager = AskedStager(limits.vocab_size, Arena(_ARENA_BYTES, device))
        self._constrained = ConstrainedLanes(limits.vocab_size)

    def begin(self, columns: PlanColumns) -> AskedPlan | None:
        """Take in what a plan says of lanes; None if its samples ask for nothing.

        Raises:
            WireError: the plan contradicts what was said of a lane.
        """
        constrained = self._constrained.take(columns)
        if not constrained and not columns.logprob_counts.any():
            return None
        for start in columns.lane_starts:
            _upload(start.tokens, self.lanes.tokens[start.message.lane, : len(start.tokens)])
        order = SampleOrder.of(columns)
        return AskedPlan(order.apply(columns), order, self._stager.stage(columns, constrained, order))

    def end(self, asked: AskedStep, drawn: Drawn) -> None:
        """A step's tokens have been drawn: those of constrained lanes are known there from now on."""
        adjustments = asked.adjustments
        if adjustments is not None:
            places = (adjustments.lanes.long(), adjustments.lengths.long())
            tokens = drawn.tokens[asked.first_adjusted : asked.num_samples].clamp(min=0)
            self.lanes.tokens.index_put_(places, tokens)


def _upload(tokens: IntArray, out: Tensor) -> None:
    """Behind the steps that read what is there."""
    host = torch.empty(len(tokens), dtype=torch.int32, pin_memory=out.is_cuda)
    host.numpy()[:] = tokens
    out.copy_(host, non_blocking=True)
