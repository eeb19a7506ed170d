"""Steps whose samples ask for more than a token: from the plan to what is drawn, and back to the plan's order."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from common import messages as m
from common.errors import WireError
from common.plan import ExecutorLimits, PlanColumns
from common.pooled_rows import PooledRows
from common.prompt_targets import PromptTargets
from common.step_result import ResultColumns
from common.wire import IntArray
from executor_svc.model.draw import Drawn, Lanes
from executor_svc.runner.grammar_masks import GrammarMasks, PendingMasks
from executor_svc.runner.pooled_results import in_order
from executor_svc.runner.readback import CopiedTensors, PendingCopies
from executor_svc.staging.asked import AskedStager, AskedStep, SampleOrder, log_prob_entries
from executor_svc.staging.constrained_lanes import ConstrainedLane, ConstrainedLanes
from executor_svc.staging.pinned_memory import copy_to_device


class PendingStep:
    """A step that was launched. One thread waits for its result; those that fill masks wait for its tokens, and may
    keep the step for long, so the rest is let go with the result.

    Args:
        logprob_counts: of its plan.
        constrained: of its plan.
        prompt_targets: of its plan.
        pooled: of its plan; None on ranks that do not tell what they find.
        order: of its samples; None for the plan's.
        without: samples whose grammars have no mask, and why: LATE or TOO_COMPLEX.
        copies: what it finds: its tokens, or all of `Drawn` where there is an `order`; then `TargetLogProbs`, where the
            plan has targets; then pooled results, where it has any.
    """

    def __init__(
        self,
        logprob_counts: IntArray,
        constrained: IntArray,
        prompt_targets: PromptTargets | None,
        pooled: PooledRows | None,
        order: SampleOrder | None,
        without: Mapping[int, int],
        copies: PendingCopies | CopiedTensors,
    ) -> None:
        self._logprob_counts = logprob_counts
        self._constrained = constrained
        self._prompt_targets = prompt_targets
        self._pooled = pooled
        self._order = order
        self._without = without
        self._copies: PendingCopies | CopiedTensors | None = copies
        self._token_ids: IntArray | None = None

    def token_ids(self) -> IntArray:
        """Its tokens as soon as they are there, int32 [samples] in the plan's order. Raises RuntimeError if a kernel of
        the step failed."""
        copies = self._copies  # before the tokens: another thread sets these first
        if self._token_ids is None:
            assert copies is not None
            tokens: IntArray = copies.wait()[0]
            tokens = tokens if self._order is None else tokens[self._order.places()]
            # All scores of a sample are -inf, and nothing was there to ban them.
            not_banned = tokens == m.NO_TOKEN
            not_banned[self._constrained] = False
            tokens[not_banned] = m.NO_NUMBERS
            for sample, why in self._without.items():
                if tokens[sample] == m.NO_TOKEN:
                    tokens[sample] = why
            self._token_ids = tokens
        return self._token_ids

    def wait(self) -> ResultColumns:
        """What the plan gave, as soon as it is done; to be called once. Raises RuntimeError if a kernel of the step
        failed."""
        token_ids, copies = self.token_ids(), self._copies
        assert copies is not None, "the result was taken"
        found = list(copies.wait())
        result = ResultColumns.of_tokens(token_ids)
        pooled = result.pooled if self._pooled is None else in_order(self._pooled, found.pop())
        if self._order is not None:
            result = self._order.result(self._logprob_counts, token_ids, *found[1:4])
        if self._prompt_targets is not None:
            targets = self._prompt_targets
            *found_logprobs, ranks = found[-4:]
            ids, values = log_prob_entries(-ranks, targets.counts, *found_logprobs)
            result = result._replace(prompt_logprob_ids=ids, prompt_logprobs=values)
        self._copies = self._prompt_targets = self._pooled = None
        return result._replace(pooled=pooled)


@dataclass(frozen=True)
class AskedPlan:
    """A plan that asks for more than tokens.

    Attributes:
        columns: the plan's, with the samples in `order`, and without what they ask for.
        asked: the plan's columns as they came.
        constrained: the lanes of its constrained samples.
        masks: of those with a grammar, to come; None if none has one.
    """

    columns: PlanColumns
    order: SampleOrder
    asked: PlanColumns
    constrained: list[ConstrainedLane]
    masks: PendingMasks | None


class AskedSteps:
    """Keeps what constraints need between plans: what was said of lanes, and their tokens on the device.

    Args:
        limits: of the executor.
        device: where steps run.
        grammars: fills masks; None if no plan has a grammar.

    Attributes:
        lanes: on the device.
    """

    def __init__(self, limits: ExecutorLimits, device: torch.device, grammars: GrammarMasks | None) -> None:
        last_tokens = torch.zeros(limits.max_num_seqs + 1, dtype=torch.int32, device=device)
        # The token that a sequence of the greatest length ends with is one more.
        tokens = torch.empty((limits.max_num_seqs, limits.max_model_len + 1), dtype=torch.int32, device=device)
        self.lanes = Lanes(last_tokens, tokens)
        self._stager = AskedStager(limits, device)
        # Of all lanes that a plan starts. Beyond it are plans that start several long sequences whose prefixes are
        # cached: they pin memory of their own, which torch keeps.
        self._started_bytes = 4 * max(limits.max_batch_tokens, limits.max_model_len)
        self._constrained = ConstrainedLanes(limits.vocab_size)
        self._grammars = grammars
        self._epoch = 0

    def begin(self, columns: PlanColumns) -> AskedPlan | None:
        """Take in what a plan says of lanes, and begin to fill its masks; None if its samples ask for nothing.

        Raises:
            WireError: the plan contradicts what was said of a lane, or has a grammar, and there is no library for it.
        """
        constrained = self._constrained.take(columns)
        if not constrained and not columns.logprob_counts.any():
            return None
        starts = columns.lane_starts
        if starts:
            known = [self.lanes.tokens[start.message.lane, : len(start.tokens)] for start in starts]
            copy_to_device([start.tokens for start in starts], known)
        order = SampleOrder.of(columns)
        masks = None
        if self._grammars is not None:
            if columns.epoch != self._epoch:
                self._grammars.forget_lanes()
            self._epoch = columns.epoch
            started = {start.message.lane for start in starts}
            masks = self._grammars.begin(constrained, started, is_alone=columns.num_rows == len(constrained))
        elif any(lane.start.message.constraints.grammar for lane in constrained):
            raise WireError("the plan has a grammar, and this executor has no tokenizer")
        return AskedPlan(order.apply(columns), order, columns, constrained, masks)

    def stage(self, plan: AskedPlan) -> AskedStep:
        """Bring what a plan asks for to the device, as far as it is not there. If it has grammars, this waits for the
        tokens of the step before, and not for long for the masks; the device computes meanwhile."""
        masks = None if plan.masks is None else plan.masks.result()
        step = self._stager.stage(plan.asked, plan.constrained, plan.order, masks)
        if masks is None or not masks.without:
            return step
        samples = zip(plan.constrained, plan.asked.constrained.tolist(), strict=True)
        numbers = ((lane.start.message.lane, sample) for lane, sample in samples)
        return replace(step, without={sample: masks.without[n] for n, sample in numbers if n in masks.without})

    def launched(self, plan: AskedPlan, step: AskedStep, drawn: Drawn, pending: PendingStep) -> None:
        """A step's tokens are being drawn: they are those of its constrained lanes from now on."""
        if self._grammars is not None:
            self._grammars.launched(plan.constrained, plan.asked.constrained.tolist(), pending)
        adjustments = step.adjustments
        if adjustments is not None:
            places = (adjustments.lanes.long(), adjustments.lengths.long())
            tokens = drawn.tokens[step.first_adjusted : step.num_samples].clamp(min=0)
            self.lanes.tokens.index_put_(places, tokens)

    def copied_bytes(self) -> list[int]:
        """Bytes that each copy to the device takes, in a usual step at most."""
        return [*self._stager.copied_bytes(), self._started_bytes]

    def close(self) -> None:
        """End the threads that fill masks."""
        if self._grammars is not None:
            self._grammars.close()
