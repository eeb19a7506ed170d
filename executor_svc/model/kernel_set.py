"""The interface of a device's kernels, as the model calls them."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

Projection = Callable[[Tensor, Tensor], None]
"""A linear layer that has its weight: from x [rows, in] to `out` [rows, out]."""

GatedProjection = Callable[[Tensor, Tensor, Tensor], None]
"""SwiGLU's first half: from x [rows, in] to silu(gate) * up in `out` [rows, size]. In between is room for both of them,
[rows, 2 * size], which may or may not be written."""


class Sampler(Protocol):
    """Draws tokens."""

    def sample(
        self,
        logits: Tensor,
        temperatures: Tensor,
        top_ks: Tensor,
        top_ps: Tensor,
        min_ps: Tensor,
        uniforms: Tensor,
        lanes: Tensor,
        last_tokens: Tensor,
        out: Tensor,
    ) -> None:
        """See `kernels.reference.sample`."""
        ...


class KernelSet(Sampler, Protocol):
    """Kernels with the signatures of their twins in `kernels.reference`, where each is documented."""

    def projection(self, weight: Tensor, bias: Tensor | None, *, shared: bool = False) -> Projection:
        """`kernels.reference.linear` with a weight, laid out as these kernels like it.

        Unless the weight is `shared`, it is theirs from now on: its memory may be given back at once.
        """
        ...

    def gated_projection(self, gate_up: Tensor) -> GatedProjection:
        """`silu_and_mul` of a `linear` without a bias; gate_up [2 * size, in], gate over up, is theirs from now on."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `kernels.reference.rms_norm`."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `kernels.reference.add_rms_norm`."""
        ...

    def qk_norm_rope_store(
        self,
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        cos_sin: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        eps: float,
        out: Tensor,
    ) -> None:
        """See `kernels.reference.qk_norm_rope_store`."""
        ...

    def embed_tokens(
        self, token_ids: Tensor, token_lanes: Tensor, last_tokens: Tensor, table: Tensor, out: Tensor
    ) -> None:
        """See `kernels.reference.embed_tokens`."""
        ...

    def mix_experts(
        self,
        x: Tensor,
        router_logits: Tensor,
        gate_up: Tensor,
        down: Tensor,
        num_chosen: int,
        renormalized: bool,
        out: Tensor,
    ) -> None:
        """See `kernels.reference.mix_experts`."""
        ...
