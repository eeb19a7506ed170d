"""Qwen3, dense: parameters and the forward pass. Which K and V a token sees is the attention backend's business."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from executor_svc.activations import Activations
from executor_svc.attention import AttentionBackend
from executor_svc.batch import Batch
from executor_svc.config import Qwen3Config
from executor_svc.kernel_set import KernelSet
from executor_svc.rope import cos_sin_table

Metadata = TypeVar("Metadata")


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. Matrices are [out, in]; `qkv` is q over k over v, `gate_up` is gate over up."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor
    k_norm: Tensor
    output: Tensor
    output_bias: Tensor | None
    post_attention_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Qwen3Weights:
    """All parameters, in one dtype on one device. `head` is `embedding` itself in a tied model."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor

    @classmethod
    def empty(cls, config: Qwen3Config, dtype: torch.dtype, device: torch.device) -> "Qwen3Weights":
        """Uninitialised parameters in the shapes of `config`."""

        def new(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        hidden, head_dim = config.hidden_size, config.head_dim
        qkv_size = (config.num_heads + 2 * config.num_kv_heads) * head_dim
        layers = tuple(
            LayerWeights(
                input_norm=new(hidden),
                qkv=new(qkv_size, hidden),
                qkv_bias=new(qkv_size) if config.attention_bias else None,
                q_norm=new(head_dim),
                k_norm=new(head_dim),
                output=new(hidden, config.num_heads * head_dim),
                output_bias=new(hidden) if config.attention_bias else None,
                post_attention_norm=new(hidden),
                gate_up=new(2 * config.intermediate_size, hidden),
                down=new(hidden, config.intermediate_size),
            )
            for _ in range(config.num_layers)
        )
        embedding = new(config.vocab_size, hidden)
        head = embedding if config.tied else new(config.vocab_size, hidden)
        return cls(embedding=embedding, layers=layers, norm=new(hidden), head=head)

    def tensors(self) -> Iterator[Tensor]:
        """Every parameter once."""
        yield self.embedding
        for layer in self.layers:
            yield from (tensor for tensor in vars(layer).values() if tensor is not None)
        yield self.norm
        if self.head is not self.embedding:
            yield self.head

    @property
    def num_parameters(self) -> int:
        """Elements in all parameters; tied ones count once."""
        return sum(tensor.numel() for tensor in self.tensors())


class Qwen3(Generic[Metadata]):
    """Qwen3 over a paged KV cache (Yang et al. 2025, arXiv:2505.09388).

    Args:
        config, weights: of the model.
        kernels: for the weights' device and dtype.
        backend: owns the KV cache, and attends.
        max_model_len: positions the rotary table is made for.
        max_batch_tokens, max_num_seqs: tokens and sampled rows of a step at most.
    """

    def __init__(
        self,
        config: Qwen3Config,
        weights: Qwen3Weights,
        kernels: KernelSet,
        backend: AttentionBackend[Metadata],
        *,
        max_model_len: int,
        max_batch_tokens: int,
        max_num_seqs: int,
    ) -> None:
        self.config = config
        self._weights = weights
        self._kernels = kernels
        self._backend = backend
        dtype, device = weights.embedding.dtype, weights.embedding.device
        self._cos_sin = cos_sin_table(config.rope, config.head_dim, max_model_len).to(device)
        self._activations = Activations.empty(config, max_batch_tokens, dtype, device)
        self._logits = torch.empty((max_num_seqs, config.vocab_size), dtype=dtype, device=device)

    def hidden_states(self, batch: Batch[Metadata], last_tokens: Tensor) -> Tensor:
        """Run all layers and store the batch's K and V.

        Args:
            batch: the step.
            last_tokens: int32 [lanes], see `kernels.reference.embed_tokens`.

        Returns:
            [tokens, hidden], normalized, in the model's dtype; valid until the next call.
        """
        kernels, weights, eps = self._kernels, self._weights, self.config.rms_norm_eps
        space = self._activations.first(len(batch.token_ids))
        kernels.embed_tokens(batch.token_ids, batch.token_lanes, last_tokens, weights.embedding, space.residual)
        kernels.rms_norm(space.residual, weights.layers[0].input_norm, eps, space.normed)
        following_norms = [*(layer.input_norm for layer in weights.layers[1:]), weights.norm]
        for index, (layer, following_norm) in enumerate(zip(weights.layers, following_norms, strict=True)):
            self._attention(index, layer, batch, space)
            kernels.add_rms_norm(space.projected, space.residual, layer.post_attention_norm, eps, space.normed)
            kernels.linear(space.normed, layer.gate_up, None, space.gate_up)
            kernels.silu_and_mul(space.gate_up, space.gated)
            kernels.linear(space.gated, layer.down, None, space.projected)
            kernels.add_rms_norm(space.projected, space.residual, following_norm, eps, space.normed)
        return space.normed

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Scores [rows, vocab] of the tokens that may follow hidden_states [rows, hidden]; valid until the next call.

        At most `max_num_seqs` rows.
        """
        logits = self._logits[: len(hidden_states)]
        self._kernels.linear(hidden_states, self._weights.head, None, logits)
        return logits

    def _attention(self, index: int, layer: LayerWeights, batch: Batch[Metadata], space: Activations) -> None:
        self._kernels.linear(space.normed, layer.qkv, layer.qkv_bias, space.qkv)
        # All rows store before any attends: a row may read what another row of this very plan computes.
        self._kernels.qk_norm_rope_store(
            space.qkv,
            layer.q_norm,
            layer.k_norm,
            self._cos_sin,
            batch.positions,
            batch.slot_mapping,
            *self._backend.caches(index),
            self.config.rms_norm_eps,
            space.query,
        )
        self._backend.attend(index, space.query, batch.attention, space.attended)
        self._kernels.linear(space.attended.flatten(1), layer.output, layer.output_bias, space.projected)
