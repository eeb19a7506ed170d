"""The interface of a device's kernels, as the model calls them."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from executor_svc.model.packing import Matrix
from kernels.arguments import Adjustments, ExpertLayer, RopeStoreLayer
from kernels.reference import SamplingInputs

Projection = Callable[[Tensor, Tensor], None]
"""A linear layer that has its weight: from x [rows, in] to `out` [rows, out]."""

PickedProjection = Callable[[Tensor, Tensor, Tensor], None]
"""Some results of a linear layer that has its weight: from x [rows, in] and channels, int32 [rows], to one result of
each row in `out`, float32 [rows]."""

GatedProjection = Callable[[Tensor, Tensor, Tensor], None]
"""SwiGLU's first half: from x [rows, in] to silu(gate) * up in `out` [rows, size]. The argument between them has room
for gate and up, [rows, 2 * size], and may or may not be written."""


class Sampler(Protocol):
    """Draws tokens from the model's logits, or from adjusted ones, which are float32."""

    def sample(self, logits: Tensor, inputs: SamplingInputs, last_tokens: Tensor, out: Tensor) -> None:
        """See `kernels.reference.sample`."""
        ...

    def adjust_logits(self, logits: Tensor, adjustments: Adjustments, lane_tokens: Tensor, out: Tensor) -> None:
        """See `kernels.reference.adjust_logits`."""
        ...

    def log_probs(
        self, logits: Tensor, token_ids: Tensor, num_top: int, out_chosen: Tensor, out_top: Tensor, out_top_ids: Tensor
    ) -> None:
        """See `kernels.reference.log_probs`."""
        ...


class KernelSet(Sampler, Protocol):
    """Kernels with the signatures of their twins in `kernels.reference`, where each is documented."""

    @property
    def rows_are_exact(self) -> bool:
        """Whether a token's results, but those of `mix_experts`, have the same bits whatever stands beside it."""
        ...

    def projection(self, weight: Matrix, bias: Tensor | None) -> Projection:
        """`kernels.reference.linear` with a weight, in the layout of these kernels."""
        ...

    def picked_projection(self, weight: Matrix) -> PickedProjection:
        """`kernels.reference.linear_picked` with a weight, in the layout of these kernels."""
        ...

    def gated_projection(self, gate_up: Matrix) -> GatedProjection:
        """`silu_and_mul` of a `linear` without a bias, with gate_up [2 * size, in], gate over up."""
        ...

    def warm_up_lengths(self, most: int) -> list[int]:
        """Numbers of tokens, `most` at most, whose steps together launch every kernel in every configuration."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `kernels.reference.rms_norm`."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `kernels.reference.add_rms_norm`."""
        ...

    def qk_norm_rope_store(
        self, qkv: Tensor, layer: RopeStoreLayer, positions: Tensor, slot_mapping: Tensor, out: Tensor
    ) -> None:
        """See `kernels.reference.qk_norm_rope_store`."""
        ...

    def embed_tokens(
        self, token_ids: Tensor, token_lanes: Tensor, last_tokens: Tensor, table: Tensor, out: Tensor
    ) -> None:
        """See `kernels.reference.embed_tokens`."""
        ...

    def mix_experts(self, x: Tensor, router_logits: Tensor, layer: ExpertLayer, out: Tensor) -> None:
        """See `kernels.reference.mix_experts`."""
        ...
