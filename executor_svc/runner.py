"""From a plan to its tokens: the one place where the model, the KV cache and the lanes come together."""

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from common.plan import ExecutorLimits, PlanColumns, SamplingColumns
from common.wire import IntArray
from executor_svc.arena import Arena
from executor_svc.attention import AttentionBackend
from executor_svc.batch import Batch, arena_size, pad_decode, stage
from executor_svc.kernel_set import KernelSet
from executor_svc.model import Qwen3
from executor_svc.readback import PendingTokens, Readback

Metadata = TypeVar("Metadata")


class Runner(Generic[Metadata]):
    """Runs plans in the order they come. Between plans it remembers the KV cache and each lane's last token only.

    Args:
        model: whose kernels and backend these are.
        kernels: draw the tokens.
        backend: owns the KV cache, which has one block more than `limits` says, for padding rows.
        limits: what plans have been checked against.
        device: where the model and the cache live.
        decode_sizes: a plan of sampled single-token rows is padded to the next of these numbers of rows, ascending and
            at most `max_num_seqs`, where there is one.
    """

    def __init__(
        self,
        model: Qwen3[Metadata],
        kernels: KernelSet,
        backend: AttentionBackend[Metadata],
        limits: ExecutorLimits,
        device: torch.device,
        decode_sizes: Sequence[int] = (),
    ) -> None:
        self.limits = limits
        self._model = model
        self._kernels = kernels
        self._backend = backend
        self._decode_sizes = np.array(decode_sizes, dtype=np.int64)
        self._arena = Arena(arena_size(limits, backend.max_planned), device)
        self._readback = Readback(device)
        self._last_tokens = torch.zeros(limits.max_num_seqs + 1, dtype=torch.int32, device=device)
        self._tokens = torch.zeros(limits.max_num_seqs, dtype=torch.int32, device=device)

    def run(self, columns: PlanColumns) -> IntArray:
        """Run a plan and return the tokens of its `sample_rows`, int32 [samples]. Raises as `launch` and `wait` do."""
        return self.launch(columns).wait()

    @torch.inference_mode()
    def launch(self, columns: PlanColumns) -> PendingTokens:
        """Begin to run a plan. On a CPU it has run when this returns; a GPU may still be busy with the plan before.

        Raises:
            RuntimeError: torch could not (out of memory, for one). What the plan's slots hold is then unknown.
        """
        num_samples = len(columns.sample_rows)
        size = self._decode_size(columns)
        if size is None:
            batch = stage(columns, self._arena, self._backend)
        else:
            limits = self.limits
            padded = pad_decode(columns, size, limits.max_num_seqs, limits.num_blocks, limits.block_size)
            batch = stage(padded, self._arena, self._backend, fixed=True)
        tokens = self._forward(batch)
        return self._readback.start(tokens[:num_samples])

    def usable(self) -> bool:
        """Whether the device still works. After some errors (an access out of bounds) a GPU does nothing any more."""
        try:
            if self._last_tokens.is_cuda:
                torch.cuda.synchronize(self._last_tokens.device)
        except RuntimeError:
            return False
        return True

    def warm_up(self) -> None:
        """Run small plans, so that the first real one does not pay for lazy initialisation."""
        length = min(2, self.limits.max_model_len, self.limits.max_batch_tokens, self.limits.block_size)
        for query_len in (length, 1):
            self.run(_warm_up_plan(query_len, length))
        self._last_tokens.zero_()

    def _decode_size(self, columns: PlanColumns) -> int | None:
        """How many rows to pad a plan to; None if it is not one of sampled single-token rows, or too large."""
        rows = columns.num_rows
        if len(columns.token_ids) > rows or len(columns.sample_rows) < rows:
            return None
        index = int(np.searchsorted(self._decode_sizes, rows))
        return None if index == len(self._decode_sizes) else int(self._decode_sizes[index])

    def _forward(self, batch: Batch[Metadata]) -> Tensor:
        """All layers, and a token for each sampled row, int32 [samples]; valid until the next call."""
        hidden_states = self._model.hidden_states(batch, self._last_tokens)
        tokens = self._tokens[: len(batch.sample_lanes)]
        if not len(tokens):
            return tokens
        logits = self._model.logits(hidden_states.index_select(0, batch.sample_tokens))
        sampling = batch.sampling
        self._kernels.sample(
            logits,
            sampling.temperatures,
            sampling.top_ks,
            sampling.top_ps,
            sampling.min_ps,
            sampling.uniforms,
            batch.sample_lanes,
            self._last_tokens,
            tokens,
        )
        return tokens


def _warm_up_plan(query_len: int, context_len: int) -> PlanColumns:
    """One row in block 0, sampled with every filter; context_len is at most a block."""

    def ints(*values: int) -> IntArray:
        return np.array(values, dtype=np.int32)

    positions = np.arange(context_len - query_len, context_len, dtype=np.int32)
    return PlanColumns(
        lanes=ints(0),
        query_lens=ints(query_len),
        context_lens=ints(context_len),
        token_ids=np.zeros(query_len, dtype=np.int32),
        positions=positions,
        slot_mapping=positions,
        block_counts=ints(1),
        block_ids=ints(0),
        sample_rows=ints(0),
        sampling=SamplingColumns(
            temperatures=np.ones(1, dtype=np.float32),
            top_ks=ints(2),
            top_ps=np.full(1, 0.9, dtype=np.float32),
            min_ps=np.full(1, 0.1, dtype=np.float32),
            seeds=np.zeros(1, dtype=np.uint64),
        ),
    )
