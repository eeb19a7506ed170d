"""From a checked plan's numpy columns to the tensors of one step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
from torch import Tensor

from common.plan import ExecutorLimits, PlanColumns
from common.sampling_columns import SamplingColumns
from common.wire import IntArray
from executor_svc.staging.arena import Arena, Column, packed_size
from executor_svc.staging.uniforms import uniforms
from kernels.reference import INPUT_DTYPES, SamplingInputs

Metadata = TypeVar("Metadata")
Metadata_co = TypeVar("Metadata_co", covariant=True)

Planned = tuple[list[IntArray], Callable[[Sequence[Tensor]], Metadata]]
"""Arrays that go to the device, and a function that makes the layers' metadata of them once they are there."""


class AttentionStager(Protocol[Metadata_co]):
    """The attention backend's part in staging. `executor_svc.model.attention.AttentionBackend` is one."""

    def plan(self, columns: PlanColumns, *, fixed: bool) -> Planned[Metadata_co]:
        """Work out what `attend` needs."""
        ...


@dataclass(frozen=True)
class StepBatch(Generic[Metadata]):
    """One step, staged on the device. Integer tensors are int32; rows are ragged in everything [tokens].

    Attributes:
        num_tokens: of the plan; [tokens] may have more, at the end, which belong to no row and store nothing.
        token_ids: [tokens]; -1 reads the lane's last token.
        token_lanes: [tokens], lane of each token's row.
        positions: [tokens].
        slot_mapping: [tokens]; -1 stores nothing.
        row_ends: [rows], index of each row's last token.
        sample_tokens: [samples], index of the last token of each sampled row, in the order in which they are drawn.
        sampling: how each sample is drawn, and its lane.
        attention: the attention backend's metadata.
    """

    num_tokens: int
    token_ids: Tensor
    token_lanes: Tensor
    positions: Tensor
    slot_mapping: Tensor
    row_ends: Tensor
    sample_tokens: Tensor
    sampling: SamplingInputs
    attention: Metadata


def stage(
    columns: PlanColumns,
    arena: Arena,
    stager: AttentionStager[Metadata],
    *,
    fixed: bool = False,
    padded_tokens: int | None = None,
) -> StepBatch[Metadata]:
    """Bring a plan's columns to the arena's device. The batch is valid until the next one is staged.

    Args:
        columns: the plan's.
        arena: has room for it.
        stager: the attention backend.
        fixed: its tensors must stand at the same addresses as those of any plan with as many rows, see
            `AttentionBackend.plan`.
        padded_tokens: length of [tokens], at least the plan's; the plan's, if None. Tensors of so many tokens stand at
            the same addresses in every step whose tensors `arena.holds`.

    Raises:
        ValueError: a `fixed` plan is larger than the arena.
    """
    ends = np.cumsum(columns.query_lens, dtype=np.int32)
    num_tokens = len(columns.token_ids)
    of_tokens = [
        columns.token_ids,
        np.repeat(columns.lanes, columns.query_lens),
        columns.positions,
        columns.slot_mapping,
    ]
    if padded_tokens is not None:
        of_tokens = [
            _pad(column, padded_tokens - num_tokens, value)
            for column, value in zip(of_tokens, (0, 0, 0, -1), strict=True)
        ]
    arrays: list[Column] = [
        *of_tokens,
        ends - 1,
        ends[columns.sample_rows] - 1,
        *_sampling_inputs(columns),
    ]
    planned, bind = stager.plan(columns, fixed=fixed)
    tensors = arena.upload([*arrays, *planned], fixed=fixed)
    token_ids, token_lanes, positions, slot_mapping, row_ends, sample_tokens = tensors[:6]
    return StepBatch(
        num_tokens=num_tokens,
        token_ids=token_ids,
        token_lanes=token_lanes,
        positions=positions,
        slot_mapping=slot_mapping,
        row_ends=row_ends,
        sample_tokens=sample_tokens,
        sampling=SamplingInputs(*tensors[6 : len(arrays)]),
        attention=bind(tensors[len(arrays) :]),
    )


def arena_size(limits: ExecutorLimits, max_planned: Sequence[int]) -> int:
    """Bytes of an arena for the largest plan; the attention backend's arrays have up to `max_planned` elements each."""
    of_tokens = [limits.max_batch_tokens] * 4
    of_samples = [limits.max_num_seqs] * (1 + len(INPUT_DTYPES))  # the samples' tokens, and how each is drawn
    return packed_size([*of_tokens, limits.max_num_seqs, *of_samples, *max_planned])


def pad_decode(columns: PlanColumns, num_rows: int, lane: int, block: int, block_size: int) -> PlanColumns:
    """Add rows to a plan of sampled single-token rows, so that it fits a graph that was captured for `num_rows`.

    The added rows are ordinary ones that compute token 0 at position 0, all in `block` and `lane`, which no sequence
    uses. Their tokens stand at the end of the step's tokens.
    """

    added = num_rows - columns.num_rows
    if not added:
        return columns

    def padded(column: IntArray, value: int) -> IntArray:
        return _pad(column, added, value)

    return replace(
        columns,
        lanes=padded(columns.lanes, lane),
        query_lens=padded(columns.query_lens, 1),
        context_lens=padded(columns.context_lens, 1),
        token_ids=padded(columns.token_ids, 0),
        positions=padded(columns.positions, 0),
        slot_mapping=padded(columns.slot_mapping, block * block_size),
        block_counts=padded(columns.block_counts, 1),
        block_ids=padded(columns.block_ids, block),
        sample_rows=np.concatenate([columns.sample_rows, np.arange(columns.num_rows, num_rows, dtype=np.int32)]),
        sampling=None if columns.sampling is None else _pad_sampling(columns.sampling, added),
    )


def padded_tables(columns: PlanColumns, width: int | None = None) -> IntArray:
    """The ragged block tables as a rectangle padded with 0, int32 [rows, width]; by default as wide as the longest."""
    counts = columns.block_counts
    tables = np.zeros((columns.num_rows, width or int(counts.max())), dtype=np.int32)
    tables[np.arange(tables.shape[1]) < counts[:, None]] = columns.block_ids
    return tables


def _pad(column: IntArray, added: int, value: int) -> IntArray:
    padded = np.full(len(column) + added, value, dtype=np.int32)
    padded[: len(column)] = column
    return padded


def _pad_sampling(sampling: SamplingColumns, added: int) -> SamplingColumns:
    """Greedy draws for padding rows."""
    padding = vars(SamplingColumns.greedy(added))
    return SamplingColumns(**{name: np.concatenate((column, padding[name])) for name, column in vars(sampling).items()})


def _sampling_inputs(columns: PlanColumns) -> list[Column]:
    """The arrays of `SamplingInputs`, in their order."""
    rows, sampling = columns.sample_rows, columns.sampling
    if sampling is None:
        sampling = SamplingColumns.greedy(len(rows))
        draws = np.zeros(len(rows), np.float32)  # a greedy sample ignores them
    else:
        # A row's context ends before the token it samples, so the context's length is that token's position.
        draws = uniforms(sampling.seeds, columns.context_lens[rows])
    arrays = {**vars(sampling), "uniforms": draws, "lanes": columns.lanes[rows]}
    return [arrays[name] for name in INPUT_DTYPES]
