"""From a checked plan's numpy columns to the tensors of one step."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.plan import PlanColumns
from executor_svc.uniforms import uniforms


@dataclass(frozen=True)
class SamplingTensors:
    """How each sampled row draws; all [samples]. See `kernels.reference.sample`."""

    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    min_ps: Tensor
    uniforms: Tensor


@dataclass(frozen=True)
class Batch:
    """One step, staged on the device. Integer tensors are int64; rows are ragged in everything [tokens].

    Attributes:
        token_ids: [tokens]; -1 reads the lane's last token.
        token_lanes: [tokens], lane of each token's row.
        positions: [tokens].
        slot_mapping: [tokens]; -1 stores nothing.
        query_starts: rows + 1 numbers, first token of each row and the number of tokens.
        context_lens: one number a row.
        block_tables: [rows, max blocks], padded with 0.
        sample_tokens: [samples], index of the last token of each sampled row.
        sample_lanes: [samples], lane of each sampled row.
        sampling: how each sample is drawn.
    """

    token_ids: Tensor
    token_lanes: Tensor
    positions: Tensor
    slot_mapping: Tensor
    query_starts: list[int]
    context_lens: list[int]
    block_tables: Tensor
    sample_tokens: Tensor
    sample_lanes: Tensor
    sampling: SamplingTensors


def stage(columns: PlanColumns, device: torch.device) -> Batch:
    """Turn a plan's columns into tensors on `device`."""
    query_starts = np.concatenate(([0], np.cumsum(columns.query_lens)))
    return Batch(
        token_ids=_int64(columns.token_ids, device),
        token_lanes=_int64(np.repeat(columns.lanes, columns.query_lens), device),
        positions=_int64(columns.positions, device),
        slot_mapping=_int64(columns.slot_mapping, device),
        query_starts=query_starts.tolist(),
        context_lens=columns.context_lens.tolist(),
        block_tables=_int64(_padded_tables(columns), device),
        sample_tokens=_int64(query_starts[1:][columns.sample_rows] - 1, device),
        sample_lanes=_int64(columns.lanes[columns.sample_rows], device),
        sampling=_stage_sampling(columns, device),
    )


def _padded_tables(columns: PlanColumns) -> npt.NDArray[np.int64]:
    """The ragged block tables as a rectangle, [rows, max blocks]."""
    counts = columns.block_counts
    tables = np.zeros((columns.num_rows, int(counts.max())), dtype=np.int64)
    tables[np.arange(tables.shape[1]) < counts[:, None]] = columns.block_ids
    return tables


def _stage_sampling(columns: PlanColumns, device: torch.device) -> SamplingTensors:
    sampling = columns.sampling
    if sampling is None:  # every sample is greedy, and nothing else of it is looked at
        zeros = torch.zeros(len(columns.sample_rows), device=device)
        return SamplingTensors(temperatures=zeros, top_ks=zeros.int(), top_ps=zeros, min_ps=zeros, uniforms=zeros)
    # A row's context ends before the token it samples, so the context's length is that token's position.
    draws = uniforms(sampling.seeds, columns.context_lens[columns.sample_rows])
    return SamplingTensors(
        temperatures=torch.tensor(sampling.temperatures, device=device),
        top_ks=_int64(sampling.top_ks, device),
        top_ps=torch.tensor(sampling.top_ps, device=device),
        min_ps=torch.tensor(sampling.min_ps, device=device),
        uniforms=torch.from_numpy(draws).to(device),
    )


def _int64(values: npt.NDArray[np.integer], device: torch.device) -> Tensor:
    """A copy: the columns are read-only views of a message."""
    return torch.from_numpy(values.astype(np.int64)).to(device)
