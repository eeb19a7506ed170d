"""What the model asks of a device's kernels. `kernels.reference` is one such set, for any device."""

from typing import Protocol

from torch import Tensor


class KernelSet(Protocol):
    """Kernels with the signatures of their twins in `kernels.reference`, where each is documented."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """A matrix product with a weight, see `kernels.reference.linear`."""
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

    def silu_and_mul(self, gate_up: Tensor, out: Tensor) -> None:
        """See `kernels.reference.silu_and_mul`."""
        ...

    def embed_tokens(
        self, token_ids: Tensor, token_lanes: Tensor, last_tokens: Tensor, table: Tensor, out: Tensor
    ) -> None:
        """See `kernels.reference.embed_tokens`."""
        ...

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
