"""From a plan to its tokens: the one place where the model, the KV cache and the lanes come together."""

from typing import Generic, TypeVar

import numpy as np
import torch

from common.plan import ExecutorLimits, PlanColumns, SamplingColumns
from common.wire import IntArray
from executor_svc.attention import AttentionBackend
from executor_svc.batch import stage
from executor_svc.kernel_set import KernelSet
from executor_svc.model import Qwen3

Metadata = TypeVar("Metadata")


class Runner(Generic[Metadata]):
    """Runs one plan at a time. Between plans it remembers the KV cache and each lane's last token, nothing else.

    Args:
        model: whose kernels and backend these are.
        kernels: draw the tokens.
        backend: owns the KV cache.
        limits: what plans have been checked against.
        device: where the model and the cache live.
    """

    def __init__(
        self,
        model: Qwen3[Metadata],
        kernels: KernelSet,
        backend: AttentionBackend[Metadata],
        limits: ExecutorLimits,
        device: torch.device,
    ) -> None:
        self.limits = limits
        self._model = model
        self._kernels = kernels
        self._backend = backend
        self._device = device
        self._last_tokens = torch.zeros(limits.max_num_seqs, dtype=torch.int64, device=device)

    @torch.inference_mode()
    def run(self, columns: PlanColumns) -> IntArray:
        """Run a plan and return the tokens of its `sample_rows`, int32 [samples].

        Raises:
            RuntimeError: torch could not (out of memory, for one). What the plan's slots hold is then unknown.
        """
        batch = stage(columns, self._device)
        hidden_states = self._model.hidden_states(batch, self._last_tokens, self._backend.prepare(batch))
        if not len(batch.sample_tokens):
            return np.empty(0, dtype=np.int32)
        logits = self._model.logits(hidden_states.index_select(0, batch.sample_tokens))
        tokens = torch.empty_like(batch.sample_lanes)
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
        return tokens.to(torch.int32).cpu().numpy()

    def warm_up(self) -> None:
        """Run small plans, so that the first real one does not pay for lazy initialisation."""
        length = min(2, self.limits.max_model_len, self.limits.max_batch_tokens, self.limits.block_size)
        for query_len in (length, 1):
            self.run(_warm_up_plan(query_len, length))
        self._last_tokens.zero_()


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
