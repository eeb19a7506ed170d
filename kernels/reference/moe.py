"""A mixture of experts: which experts compute a token, and the weighted sum of their results."""

import torch
from torch import Tensor

from kernels.arguments import ExpertLayer
from kernels.reference.layers import linear, silu_and_mul


def mix_experts(x: Tensor, router_logits: Tensor, layer: ExpertLayer, out: Tensor) -> None:
    """Route every token to its experts, each a SwiGLU, and add up what they give, weighted.

    Roundings follow transformers' Qwen3-MoE up to the sum, which is float32.

    Args:
        x: [tokens, hidden], any float dtype.
        router_logits: [tokens, experts], dtype of `x`.
        layer: weights in the dtype of `x`.
        out: [tokens, hidden], dtype of `x`.
    """
    gate_up, down, num_chosen = layer.gate_up, layer.down, layer.num_chosen
    experts, weights = choose_experts(router_logits, num_chosen, layer.renormalized)
    counts = experts.flatten().bincount(minlength=len(down)).tolist()
    choices_of = experts.flatten().argsort(stable=True).split_with_sizes(counts)
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert, choices in enumerate(choices_of):
        if not len(choices):
            continue
        tokens = choices // num_chosen
        both = x.new_empty(len(tokens), gate_up.shape[1])
        linear(x.index_select(0, tokens), gate_up[expert], None, both)
        gated = x.new_empty(len(tokens), down.shape[2])
        silu_and_mul(both, gated)
        given = x.new_empty(len(tokens), x.shape[1])
        linear(gated, down[expert], None, given)
        total.index_add_(0, tokens, given.float() * weights.flatten()[choices, None])
    out.copy_(total)


def choose_experts(router_logits: Tensor, num_chosen: int, renormalized: bool) -> tuple[Tensor, Tensor]:
    """The experts with the highest logits, of equals those with the lowest numbers.

    Returns:
        Their numbers, int64 [tokens, num_chosen], likeliest first, and their weights, float32 of the same shape: the
        softmax over all experts, or with `renormalized` over the chosen ones, rounded to the logits' dtype.
    """
    wide = router_logits.float()
    experts = wide.sort(dim=-1, descending=True, stable=True).indices[:, :num_chosen]
    weights = wide.softmax(-1).gather(1, experts)
    if renormalized:
        weights /= weights.sum(-1, keepdim=True)
    return experts, weights.to(router_logits.dtype).float()
