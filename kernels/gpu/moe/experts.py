"""Mixtures of experts: route, sort the tokens' choices by expert, two grouped products, weighted sum.

The order of things is that of MegaBlocks (Gale et al. 2022, arXiv:2211.15841): no expert has a capacity, so no token is
dropped, and what is computed beyond the choices is at most a part of a block for each expert.
"""

from collections.abc import Hashable

import torch
from torch import Tensor

from kernels.arguments import ExpertLayer
from kernels.gpu.checks import check_contiguous, check_dtype, check_last_stride, check_range, check_rank, check_tensor
from kernels.gpu.moe.products import choose_product_tiles, launch_combine, launch_products
from kernels.gpu.moe.routing import (
    MAX_EXPERTS,
    choose_routing_tiles,
    count_slots,
    has_slot_a_choice,
    launch_routing,
)

_LEAST_BLOCK_ROWS = 16


class Experts:
    """Computes mixtures of one shape for steps of up to `max_tokens` tokens, on one stream at a time: it owns the
    workspace, which is `max_tokens * num_chosen * (hidden + intermediate)` values and a little.

    Args:
        max_tokens: most tokens of a step.
        num_experts: in a mixture, `MAX_EXPERTS` at most.
        num_chosen: experts a token.
        hidden: size of a token's state.
        intermediate: size of an expert, or of this rank's part of it.
        dtype: of activations and weights: bfloat16, float16 or float32.
        device: where they are.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        max_tokens: int,
        num_experts: int,
        num_chosen: int,
        hidden: int,
        intermediate: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        check_range("max_tokens", max_tokens, 1, 2**31 // max(num_chosen, 1) - 1)
        check_range("num_experts", num_experts, 1, MAX_EXPERTS)
        check_range("num_chosen", num_chosen, 1, num_experts)
        self._max_tokens = max_tokens
        self._shape = (num_experts, hidden, intermediate)
        self._num_chosen = num_chosen
        max_choices = max_tokens * num_chosen
        max_slots = count_slots(max_choices, num_experts, _LEAST_BLOCK_ROWS)
        self._experts = torch.empty(max_choices, dtype=torch.int32, device=device)
        self._weights = torch.empty(max_choices, dtype=torch.float32, device=device)
        self._order = torch.empty(max_choices, dtype=torch.int32, device=device)
        self._blocks = torch.empty((max_slots, 4), dtype=torch.int32, device=device)
        self._gated = torch.empty((max_choices, intermediate), dtype=dtype, device=device)
        self._given = torch.empty((max_choices, hidden), dtype=dtype, device=device)

    def configuration(self, num_tokens: int) -> tuple[Hashable, ...]:
        """What decides which kernels are compiled for a step: equal for two numbers of tokens if these share all."""
        num_choices = num_tokens * self._num_chosen
        config = choose_product_tiles(num_choices, self._shape[0], self._given.dtype)
        routing = choose_routing_tiles(num_tokens, self._num_chosen)
        return config, routing, has_slot_a_choice(num_choices, self._shape[0], config.rows)

    def mix_experts(self, x: Tensor, router_logits: Tensor, layer: ExpertLayer, out: Tensor) -> None:
        """Route every token to its experts, each a SwiGLU, and add up what they give, weighted.

        Five launches, whose grids depend on the number of tokens alone. A token whose logits contain NaN gets NaN.

        Args:
            x: [tokens, hidden]; the rows may lie apart, each must be dense.
            router_logits: [tokens, experts], dtype of `x`, likewise.
            layer: dense weights in the dtype of `x`, and the workspace's `num_chosen`.
            out: [tokens, hidden], dtype of `x`; the rows may lie apart, each must be dense.

        Raises:
            ValueError: a shape, dtype, device or stride does not fit, or there are more tokens than `max_tokens`.
        """
        check_rank("x", x, 2)
        num_tokens, dtype, device = len(x), self._given.dtype, self._given.device
        num_experts, hidden, intermediate = self._shape
        check_range("the number of rows of x", num_tokens, 0, self._max_tokens)
        check_range("num_chosen", layer.num_chosen, self._num_chosen, self._num_chosen)
        check_dtype("x", x)
        check_tensor("x", x, (num_tokens, hidden), dtype, device)
        check_tensor("router_logits", router_logits, (num_tokens, num_experts), dtype, device)
        check_tensor("gate_up", layer.gate_up, (num_experts, 2 * intermediate, hidden), dtype, device)
        check_tensor("down", layer.down, (num_experts, hidden, intermediate), dtype, device)
        check_tensor("out", out, (num_tokens, hidden), dtype, device)
        for name, tensor in (("x", x), ("router_logits", router_logits), ("out", out)):
            check_last_stride(name, tensor)
        check_contiguous("gate_up", layer.gate_up)
        check_contiguous("down", layer.down)
        if num_tokens == 0:
            return
        num_chosen = layer.num_chosen
        num_choices = num_tokens * num_chosen
        config = choose_product_tiles(num_choices, num_experts, dtype)
        order, weights = self._order[:num_choices], self._weights[:num_choices]
        blocks = self._blocks[: count_slots(num_choices, num_experts, config.rows)]
        chosen = self._experts[:num_choices]
        launch_routing(router_logits, chosen, weights, order, blocks, num_chosen, layer.renormalized, config.rows)
        gated, given = self._gated[:num_choices], self._given[:num_choices]
        launch_products(x, layer.gate_up, layer.down, order, blocks, gated, given, num_chosen, config)
        launch_combine(given, weights, out, num_chosen)
