"""A decoder: the forward pass of a rank. The attention backend decides which K and V a token sees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

from executor_svc.model.activations import Activations
from executor_svc.model.attention import AttentionBackend
from executor_svc.model.kernel_set import KernelSet, PickedProjection, Projection
from executor_svc.model.mlp import RunMlp, run_mlp
from executor_svc.model.prepared import Weights
from executor_svc.model.rank_group import SINGLE_RANK, RankGroup
from executor_svc.model.rope import cos_sin_table
from executor_svc.model.vocab_parallel import embed_tokens
from executor_svc.staging.batch import StepBatch
from kernels import reference
from kernels.arguments import KVCache, RopeStoreLayer

Metadata = TypeVar("Metadata")


@dataclass(frozen=True)
class _Layer:
    """A decoder layer, ready to run.

    `qkv` is q over k over v. The results of `output` are summed over the ranks.
    """

    input_norm: Tensor
    qkv: Projection
    rope_store: RopeStoreLayer
    output: Projection
    post_attention_norm: Tensor
    mlp: RunMlp

    @classmethod
    def of(cls, weights: Weights, index: int, kernels: KernelSet, cos_sin: Tensor, cache: KVCache) -> "_Layer":
        config, prefix = weights.layout.config, f"layers.{index}."
        norms = (weights.tensor(f"{prefix}q_norm"), weights.tensor(f"{prefix}k_norm")) if config.qk_norm else None
        return cls(
            input_norm=weights.tensor(f"{prefix}input_norm"),
            qkv=kernels.projection(weights.matrix(f"{prefix}qkv"), weights.optional(f"{prefix}qkv_bias")),
            rope_store=RopeStoreLayer(norms, config.rms_norm_eps, cos_sin, cache),
            output=kernels.projection(weights.matrix(f"{prefix}output"), weights.optional(f"{prefix}output_bias")),
            post_attention_norm=weights.tensor(f"{prefix}post_attention_norm"),
            mlp=run_mlp(weights, index, kernels),
        )


class Decoder(Generic[Metadata]):
    """A decoder over a paged KV cache, as its `DecoderConfig` describes it, or a rank's part of it.

    Args:
        weights: the rank's shard, in the layout of the kernels.
        kernels: for the weights' device and dtype.
        backend: owns the KV cache of the shard's heads, and attends.
        max_model_len: positions the rotary table is made for.
        max_batch_tokens, max_num_seqs: tokens and sampled rows of a step at most.
        group: the ranks that hold the other parts, and run the same steps.
    """

    def __init__(
        self,
        weights: Weights,
        kernels: KernelSet,
        backend: AttentionBackend[Metadata],
        *,
        max_model_len: int,
        max_batch_tokens: int,
        max_num_seqs: int,
        group: RankGroup = SINGLE_RANK,
    ) -> None:
        layout, device = weights.layout, weights.device
        config, dtype = layout.config, layout.dtype
        self.config = config
        self._group = group
        self._shard = layout.shard
        self._embedding, self._norm = weights.tensor("embedding"), weights.tensor("norm")
        cos_sin = cos_sin_table(config.rope, config.head_dim, max_model_len).to(device)
        self._layers = [
            _Layer.of(weights, index, kernels, cos_sin, backend.cache(index)) for index in range(config.num_layers)
        ]
        self._head = kernels.projection(weights.matrix("head"), None) if layout.has_head else None
        if config.tied:  # the table is there as it is
            self._picked: PickedProjection | None = partial(_picked, self._embedding)
        else:
            self._picked = kernels.picked_projection(weights.matrix("head")) if layout.has_head else None
        self._kernels = kernels
        self._rows_are_exact = kernels.rows_are_exact and config.moe is None
        self._backend = backend
        self._activations = Activations.empty(config, self._shard, max_batch_tokens, dtype, device)
        self._chosen = torch.empty((max_num_seqs, config.hidden_size), dtype=dtype, device=device)
        self._logits = torch.empty((max_num_seqs, self._shard.vocab_size), dtype=dtype, device=device)

    def hidden_states(
        self,
        batch: StepBatch[Metadata],
        last_tokens: Tensor,
        parts: Sequence[Callable[[], object]] | None = None,
        *,
        ends_alone: bool = False,
    ) -> Tensor:
        """Run all layers and store the batch's K and V.

        Args:
            batch: the step.
            last_tokens: int32 [lanes], see `kernels.reference.embed_tokens`.
            parts: what to call in place of `self.parts(batch, last_tokens)`, of which they are recordings.
            ends_alone: only the rows' last tokens are read of what is returned, so that the last layer may leave out
                the others after its attention.

        Returns:
            [tokens, hidden], normalized, in the model's dtype; valid until the next call.
        """
        attending = self._activations.first(batch.num_tokens)
        if parts is None:
            parts = self.parts(batch, last_tokens)
            if ends_alone and self._rows_are_exact:
                parts = [*parts[:-1], partial(self._last_of_rows, batch.row_ends)]
        for index, part in enumerate(parts):
            if index:
                self._backend.attend(index - 1, attending.query, batch.attention, attending.attended)
            part()
        return self._activations.normed[: len(batch.token_ids)]

    def parts(self, batch: StepBatch[Metadata], last_tokens: Tensor) -> list[Callable[[], None]]:
        """What stands before, between and after the layers' attention, in this order; see `hidden_states`.

        Attention depends on the rows of a step, the parts on its number of tokens alone: they can be recorded.
        """
        space = self._activations.first(len(batch.token_ids))
        between = [partial(self._between, index, batch, space) for index in range(1, len(self._layers))]
        return [partial(self._first, batch, last_tokens, space), *between, partial(self._last, space)]

    def compute_logits(self, hidden_states: Tensor, tokens: Tensor) -> None:
        """Scores of the tokens that may follow some of a step's tokens, for `logits`.

        Args:
            hidden_states: [tokens, hidden].
            tokens: int32 [rows], which of them; at most `max_num_seqs`.
        """
        if self._head is None:  # only trial plans ask, as `parse_plan` refuses others; what they draw is of no concern
            return
        chosen = self._chosen[: len(tokens)]
        torch.index_select(hidden_states, 0, tokens, out=chosen)
        self._head(chosen, self._logits[: len(tokens)])

    def logits(self, num_rows: int) -> Tensor:
        """What `compute_logits` found last for its first rows: [rows, shard's vocab], at the same address always."""
        return self._logits[:num_rows]

    @property
    def is_first_rank(self) -> bool:
        """Whether this is the rank that tells what was found."""
        return self._group.rank == 0

    def copy_hidden_states(self, hidden_states: Tensor, tokens: Tensor, out: Tensor) -> None:
        """Hidden states of some of a step's tokens.

        Args:
            hidden_states: [tokens, hidden].
            tokens: int32 [rows], which of them; at most `max_num_seqs`.
            out: float32 [rows, hidden].
        """
        out.copy_(torch.index_select(hidden_states, 0, tokens, out=self._chosen[: len(tokens)]))

    def compute_picked_logits(self, hidden_states: Tensor, tokens: Tensor, token_ids: Tensor, out: Tensor) -> None:
        """Scores of given tokens after some of a step's, one a row; those of no other token are computed.

        Args:
            hidden_states: [tokens, hidden].
            tokens: int32 [rows], which of them; at most `max_num_seqs`.
            token_ids: int32 [rows], of the whole vocabulary.
            out: float32 [rows], the same on all ranks.
        """
        assert self._picked is not None, "scores of a model that takes embeddings alone"
        chosen = torch.index_select(hidden_states, 0, tokens, out=self._chosen[: len(tokens)])
        if self._group.size == 1:
            self._picked(chosen, token_ids, out)
            return
        rows = token_ids - self._shard.vocab.start
        elsewhere = (rows < 0) | (rows >= len(self._shard.vocab))
        self._picked(chosen, rows.masked_fill_(elsewhere, 0), out)
        out.masked_fill_(elsewhere, 0)
        self._group.all_reduce(out)

    def _first(self, batch: StepBatch[Metadata], last_tokens: Tensor, space: Activations) -> None:
        tokens = (batch.token_ids, batch.token_lanes, last_tokens, self._embedding)
        if self._group.size == 1:
            self._kernels.embed_tokens(*tokens, space.residual)
        else:
            embed_tokens(*tokens, space.residual, self._kernels, self._group, self._shard)
        self._kernels.rms_norm(space.residual, self._layers[0].input_norm, self.config.rms_norm_eps, space.normed)
        self._before_attention(self._layers[0], batch, space)

    def _between(self, index: int, batch: StepBatch[Metadata], space: Activations) -> None:
        layer = self._layers[index]
        self._after_attention(self._layers[index - 1], layer.input_norm, space)
        self._before_attention(layer, batch, space)

    def _last(self, space: Activations) -> None:
        self._after_attention(self._layers[-1], self._norm, space)

    def _last_of_rows(self, row_ends: Tensor) -> None:
        """`_last`, for the tokens at these indices: they are computed in the first places, and brought back."""
        whole, space = self._activations, self._activations.first(len(row_ends))
        for tensor, first in ((whole.residual, space.residual), (whole.attended, space.attended)):
            first.copy_(tensor.index_select(0, row_ends))
        self._last(space)
        whole.normed.index_copy_(0, row_ends.long(), space.normed.clone())

    def _before_attention(self, layer: _Layer, batch: StepBatch[Metadata], space: Activations) -> None:
        layer.qkv(space.normed, space.qkv)
        # All rows store before any attends: a row may read what another row of the same plan computes.
        self._kernels.qk_norm_rope_store(space.qkv, layer.rope_store, batch.positions, batch.slot_mapping, space.query)

    def _after_attention(self, layer: _Layer, following_norm: Tensor, space: Activations) -> None:
        kernels, eps = self._kernels, self.config.rms_norm_eps
        layer.output(space.attended.flatten(1), space.projected)
        self._group.all_reduce(space.projected)
        kernels.add_rms_norm(space.projected, space.residual, layer.post_attention_norm, eps, space.normed)
        layer.mlp(space)
        self._group.all_reduce(space.projected)
        kernels.add_rms_norm(space.projected, space.residual, following_norm, eps, space.normed)


def _picked(table: Tensor, x: Tensor, channels: Tensor, out: Tensor) -> None:
    reference.linear_picked(x, table, channels, out)
