"""What the samples of a step ask for beside a token: adjusted scores, log-probabilities. From columns to tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common import messages as m
from common.plan import ExecutorLimits, PlanColumns
from common.sampling_columns import SamplingColumns
from common.step_result import ResultColumns
from common.wire import IntArray
from executor_svc.staging.arena import Arena, Column, packed_size
from executor_svc.staging.constrained_lanes import ConstrainedLane, LaneMasks
from executor_svc.staging.pinned_memory import copy_to_device
from kernels.arguments import Adjustments
from kernels.reference import mask_words

_MOST_ROWS = 512
_USUAL_WORDS, _USUAL_TOKENS = 64, 4  # bad words of a row, and tokens of each


@dataclass(frozen=True)
class AskedStep:
    """What is asked of a step whose samples stand in a `SampleOrder`.

    Attributes:
        num_samples: of the step; its batch may have more, for padding.
        first_adjusted: samples from here on have constraints.
        adjustments: theirs; None if there are none.
        first_logprob, end_logprob: the samples that come with log-probabilities.
        num_top: of how many of the likeliest tokens; the most that any of them wants.
        without: of the plan's samples, by their numbers there, those whose grammars have no mask, and why.
    """

    num_samples: int
    first_adjusted: int
    adjustments: Adjustments | None
    first_logprob: int
    end_logprob: int
    num_top: int
    without: Mapping[int, int] = field(default_factory=dict)

    @property
    def num_logprobs(self) -> int:
        """Samples that come with log-probabilities."""
        return self.end_logprob - self.first_logprob

    def rows(self, first: int, end: int) -> "AskedStep":
        """What is asked of samples `first` to `end - 1`."""

        def clipped(index: int) -> int:
            return min(max(index, first), end) - first

        adjustments = None
        if self.adjustments is not None and end > self.first_adjusted:
            offset = self.first_adjusted
            adjustments = self.adjustments.rows(max(first - offset, 0), end - offset)
        return replace(
            self,
            num_samples=end - first,
            first_adjusted=clipped(self.first_adjusted),
            adjustments=adjustments,
            first_logprob=clipped(self.first_logprob),
            end_logprob=clipped(self.end_logprob),
        )


@dataclass(frozen=True)
class SampleOrder:
    """The order in which a plan's samples are drawn: those of one kind stand together, and each kind is a slice.

    Attributes:
        samples: [samples], numbers of the plan's samples.
    """

    samples: npt.NDArray[np.int64]

    @classmethod
    def of(cls, columns: PlanColumns) -> "SampleOrder":
        """Nothing asked; log-probabilities; both; constraints."""
        kinds = np.zeros(len(columns.sample_rows), np.int32)
        wants = columns.logprob_counts > 0 if len(columns.logprob_counts) else np.zeros(len(kinds), np.bool_)
        kinds[wants] = 1
        kinds[columns.constrained] = np.where(wants[columns.constrained], 2, 3)
        return cls(np.argsort(kinds, kind="stable"))

    def apply(self, columns: PlanColumns) -> PlanColumns:
        """The plan with its samples in this order; what it asks for is left out."""
        sampling = columns.sampling
        if sampling is not None:
            sampling = SamplingColumns(**{name: column[self.samples] for name, column in vars(sampling).items()})
        nothing = np.zeros(0, np.int32)
        return replace(
            columns,
            sample_rows=columns.sample_rows[self.samples],
            sampling=sampling,
            constrained=nothing,
            logprob_counts=nothing,
            lane_starts=(),
        )

    def places(self) -> npt.NDArray[np.int64]:
        """Where each of the plan's samples stands."""
        places = np.empty(len(self.samples), np.int64)
        places[self.samples] = np.arange(len(self.samples))
        return places

    def result(
        self, counts: IntArray, token_ids: IntArray, chosen: npt.NDArray[np.float32], top: Column, top_ids: IntArray
    ) -> ResultColumns:
        """What a plan gave, in its own order.

        Args:
            counts: the plan's `logprob_counts`.
            token_ids: [samples], in the plan's order.
            chosen: [samples that want log-probabilities], of these tokens.
            top, top_ids: [samples that want any, num_top], of the likeliest ones.
        """
        if not len(chosen):
            return ResultColumns.of_tokens(token_ids)
        asking, places = np.flatnonzero(counts), self.places()
        drawn_at = places[asking] - places[asking].min()  # they stand together
        entries = log_prob_entries(
            np.maximum(token_ids[asking], 0), counts[asking], chosen[drawn_at], top[drawn_at], top_ids[drawn_at]
        )
        return ResultColumns(token_ids, *entries)


def log_prob_entries(
    tokens: IntArray, counts: IntArray, chosen: npt.NDArray[np.float32], top: Column, top_ids: IntArray
) -> tuple[IntArray, npt.NDArray[np.float32]]:
    """Entries of tokens, one after another, as `ResultColumns` has them: ids, and log-probabilities. NaN becomes -inf.

    Args:
        tokens: [entries], what each entry begins with: a token, or minus its rank.
        counts: [entries], log-probabilities of each.
        chosen: [entries], of these.
        top, top_ids: [entries, num_top], of the likeliest ones.
    """
    ids, values = np.column_stack([tokens, top_ids]), np.column_stack([chosen, top])
    values[np.isnan(values)] = -np.inf
    wanted = np.arange(ids.shape[1]) < counts[:, None]
    return ids[wanted].astype(np.int32), values[wanted].astype(np.float32)


def asked_arena_size(limits: ExecutorLimits) -> int:
    """Bytes of an arena in which what is usually asked of a step has room, lengths and masks aside.

    Each row has as many biases as there may be, and `_USUAL_WORDS`. Beyond it are steps whose rows nearly all have
    longer lists of bad words, or stop tokens besides all their biases, or that have more than `_MOST_ROWS` such rows
    (which would take 4 kB each): their arrays get memory of their own, at the price of a cudaMalloc at most.
    """
    rows = min(limits.max_num_seqs, _MOST_ROWS)
    of_rows = [rows] * 5
    lists = [rows * m.MAX_BIASES] * 2 + [rows + 1] * 2 + [rows * _USUAL_WORDS + 1, rows * _USUAL_WORDS * _USUAL_TOKENS]
    return packed_size([*of_rows, *lists])


@dataclass(frozen=True)
class _StagedLanes:
    """Lanes whose lists are on the device, in the order of a step's rows.

    Attributes:
        lanes: theirs the lists are.
        numbers: int32 [lanes].
        min_lengths: int64 [lanes], see `ConstrainedLane.min_length`.
        early: bool [lanes], whose sequences have not their `min_tokens`.
        mask_rows: int32 [lanes], see `Adjustments`; -1 where there is no list of allowed tokens, or a grammar.
        lists: the other fields of `Adjustments`, which stay the same until the lanes do not.
    """

    lanes: Sequence[ConstrainedLane]
    numbers: IntArray
    min_lengths: npt.NDArray[np.int64]
    early: npt.NDArray[np.bool_]
    mask_rows: IntArray
    lists: dict[str, Tensor]

    def are(self, lanes: Sequence[ConstrainedLane], lengths: IntArray) -> bool:
        """Whether the lists are those of a step of these lanes, whose sequences have so many tokens."""
        return self.lanes == lanes and bool(((lengths < self.min_lengths) == self.early).all())


class AskedStager:
    """Brings what plans ask for to the device, where it stays as long as it is asked.

    The mask of a lane's allowed tokens has a row there, and is brought once for each start. The other lists are small.
    They are all brought when other lanes ask than in the step before, or when a sequence gets its `min_tokens`. A step
    of the same lanes brings no more than lengths, and masks of grammars.

    Args:
        limits: of the executor.
        device: where steps run.
    """

    def __init__(self, limits: ExecutorLimits, device: torch.device) -> None:
        rows = self._num_lanes = limits.max_num_seqs
        self._lists = Arena(asked_arena_size(limits), device)
        self._columns = Arena(packed_size([rows, rows]), device)
        # A row for each lane's own list, and one for each grammar of a step.
        self._masks = torch.empty((2 * rows, mask_words(limits.vocab_size)), dtype=torch.int32, device=device)
        self._brought: dict[int, IntArray] = {}  # by lane, the mask that stands in its row
        self._staged: _StagedLanes | None = None

    def stage(
        self,
        columns: PlanColumns,
        lanes: Sequence[ConstrainedLane],
        order: SampleOrder,
        grammar_masks: LaneMasks | None,
    ) -> AskedStep:
        """What a plan's samples ask for; its tensors are valid until the next call.

        Args:
            columns: the plan's.
            lanes: of its constrained samples, as `ConstrainedLanes.take` gave them.
            order: of its samples.
            grammar_masks: of the lanes that have a grammar; None if none has.
        """
        num_samples, counts = len(columns.sample_rows), columns.logprob_counts
        asking = np.flatnonzero(counts[order.samples]) if len(counts) else counts
        first_adjusted = num_samples - len(lanes)
        samples = order.samples[first_adjusted:]
        adjusted = [lanes[place] for place in np.searchsorted(columns.constrained, samples).tolist()]
        lengths = columns.context_lens[columns.sample_rows[samples]]
        return AskedStep(
            num_samples=num_samples,
            first_adjusted=first_adjusted,
            adjustments=self._adjustments(adjusted, lengths, grammar_masks) if adjusted else None,
            first_logprob=int(asking[0]) if len(asking) else 0,
            end_logprob=int(asking[-1]) + 1 if len(asking) else 0,
            num_top=int(counts.max()) - 1 if len(asking) else 0,
        )

    def copied_bytes(self) -> list[int]:
        """Bytes that each copy to the device takes, in a usual step at most: one brings `_MOST_ROWS` masks or fewer."""
        masks = self._masks[: min(self._num_lanes, _MOST_ROWS)]
        return [self._lists.num_bytes, self._columns.num_bytes, masks.nbytes]

    def _adjustments(
        self, lanes: Sequence[ConstrainedLane], lengths: IntArray, grammar_masks: LaneMasks | None
    ) -> Adjustments:
        staged, new = self._staged, dict[int, IntArray]()
        if staged is None or not staged.are(lanes, lengths):
            self._staged = None  # until all is there
            staged = self._stage_lanes(lanes, lengths)
            own = {lane.start.message.lane: mask for lane in lanes if (mask := _own_mask(lane)) is not None}
            new = {lane: mask for lane, mask in own.items() if self._brought.get(lane) is not mask}
        self._bring_masks(new, grammar_masks)
        mask_rows = staged.mask_rows
        if grammar_masks is not None:
            rows = {lane: self._num_lanes + row for lane, row in grammar_masks.rows.items()}
            own_rows = zip(staged.numbers.tolist(), mask_rows.tolist(), strict=True)
            mask_rows = _ints([rows.get(lane, row) for lane, row in own_rows])
        device_lengths, device_rows = self._columns.upload([lengths, mask_rows])
        self._staged = staged
        return Adjustments(lengths=device_lengths, mask_rows=device_rows, masks=self._masks, **staged.lists)

    def _bring_masks(self, of_lanes: dict[int, IntArray], of_grammars: LaneMasks | None) -> None:
        """Bring masks to their rows: by lane, those of lists, and those of a step's grammars."""
        masks, places = [*of_lanes.values()], [self._masks[lane] for lane in of_lanes]
        if of_grammars is not None:
            masks.append(of_grammars.masks)
            places.append(self._masks[self._num_lanes :][: len(of_grammars.masks)])
        if masks:
            for lane in of_lanes:
                self._brought.pop(lane, None)
            copy_to_device(masks, places)
            self._brought |= of_lanes

    def _stage_lanes(self, lanes: Sequence[ConstrainedLane], lengths: IntArray) -> _StagedLanes:
        """Bring the lists of lanes."""
        starts = [lane.start for lane in lanes]
        asked = [start.message.constraints for start in starts]
        numbers = _ints([start.message.lane for start in starts])
        min_lengths = np.array([lane.min_length for lane in lanes], np.int64)
        early = lengths < min_lengths
        biases = [
            lane.early_biases if is_early else lane.biases for lane, is_early in zip(lanes, early.tolist(), strict=True)
        ]
        words = [word for start in starts for word in start.arrays.bad_words]
        mask_rows = [-1 if _own_mask(lane) is None else lane.start.message.lane for lane in lanes]
        arrays: dict[str, Column] = {
            "lanes": numbers,
            "num_prompts": _ints([start.message.num_prompt for start in starts]),
            "presences": _floats([one.presence_penalty for one in asked]),
            "frequencies": _floats([one.frequency_penalty for one in asked]),
            "repetitions": _floats([one.repetition_penalty for one in asked]),
            "bias_starts": _starts([len(one.ids) for one in biases]),
            "bias_ids": np.concatenate([one.ids for one in biases]),
            "biases": np.concatenate([one.values for one in biases]),
            "word_starts": _starts([len(start.arrays.bad_words) for start in starts]),
            "word_offsets": _starts([len(word) for word in words]),
            "word_tokens": np.concatenate([*words, _ints([])]),
        }
        lists = dict(zip(arrays, self._lists.upload(list(arrays.values())), strict=True))
        return _StagedLanes(lanes, numbers, min_lengths, early, _ints(mask_rows), lists)


def _own_mask(lane: ConstrainedLane) -> IntArray | None:
    """The mask of a lane's list; None if it has none, or has a grammar, whose masks have the list in them."""
    return None if lane.start.message.constraints.grammar else lane.mask


def _starts(lengths: Sequence[int]) -> IntArray:
    """Where each of several lists starts in all of them together, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])


def _ints(values: Sequence[int]) -> IntArray:
    return np.array(values, np.int32)


def _floats(values: Sequence[float]) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)
