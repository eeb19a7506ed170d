"""Qwen3, dense: parameters and the forward pass. Which K and V a token sees is the attention backend's business."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from executor_svc.attention import AttentionBackend
from executor_svc.batch import Batch
from executor_svc.config import Qwen3Config
from executor_svc.rope import cos_sin_table
from kernels import reference as kernels

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
        backend: stores K and V, and attends.
        max_model_len: positions the rotary table is made for.
    """

    def __init__(
        self, config: Qwen3Config, weights: Qwen3Weights, backend: AttentionBackend[Metadata], max_model_len: int
    ) -> None:
        self.config = config
        self._weights = weights
        self._backend = backend
        table = cos_sin_table(config.rope, config.head_dim, max_model_len)
        self._cos_sin = table.to(weights.embedding.device)

    def hidden_states(self, batch: Batch, last_tokens: Tensor, metadata: Metadata) -> Tensor:
        """Run all layers and store the batch's K and V.

        Args:
            batch: the step.
            last_tokens: int64 [lanes], see `kernels.reference.embed_tokens`.
            metadata: of the backend, for this batch.

        Returns:
            [tokens, hidden], normalized, in the model's dtype.
        """
        weights, eps = self._weights, self.config.rms_norm_eps
        residual = kernels.embed_tokens(batch.token_ids, batch.token_lanes, last_tokens, weights.embedding)
        x = kernels.rms_norm(residual, weights.layers[0].input_norm, eps)
        following_norms = [*(layer.input_norm for layer in weights.layers[1:]), weights.norm]
        for index, (layer, following_norm) in enumerate(zip(weights.layers, following_norms, strict=True)):
            x = self._attention(index, layer, x, batch.positions, metadata)
            x, residual = kernels.add_rms_norm(x, residual, layer.post_attention_norm, eps)
            x = F.linear(kernels.silu_and_mul(F.linear(x, layer.gate_up)), layer.down)
            x, residual = kernels.add_rms_norm(x, residual, following_norm, eps)
        return x

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Scores [rows, vocab] of the tokens that may follow hidden_states [rows, hidden]."""
        return F.linear(hidden_states, self._weights.head)

    def _attention(self, index: int, layer: LayerWeights, x: Tensor, positions: Tensor, metadata: Metadata) -> Tensor:
        config = self.config
        q, k, v = kernels.qk_norm_rope(
            F.linear(x, layer.qkv, layer.qkv_bias),
            layer.q_norm,
            layer.k_norm,
            self._cos_sin,
            positions,
            config.num_heads,
            config.num_kv_heads,
            config.rms_norm_eps,
        )
        # All rows store before any attends: a row may read what another row of this very plan computes.
        self._backend.store(index, k, v, metadata)
        attended = self._backend.attend(index, q, metadata)
        return F.linear(attended.flatten(1), layer.output, layer.output_bias)
