"""The mixture of experts against transformers' own module."""

from typing import Any

import pytest
import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from kernels import reference
from kernels.arguments import ExpertLayer


def block(num_experts: int, num_chosen: int, renormalized: bool, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' module of 32 hidden values and experts of 24, with random weights."""
    config = Qwen3MoeConfig(
        hidden_size=32,
        moe_intermediate_size=24,
        num_experts=num_experts,
        num_experts_per_tok=num_chosen,
        norm_topk_prob=renormalized,
        hidden_act="silu",
    )
    module = Qwen3MoeSparseMoeBlock(config).requires_grad_(False)
    generator = torch.Generator().manual_seed(num_experts)
    for parameter in module.parameters():
        parameter.normal_(0, 0.3, generator=generator)
    return module.to(dtype)


def noise(tokens: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(tokens, 32, generator=torch.Generator().manual_seed(tokens)).to(dtype)


def mixed(x: torch.Tensor, module: Any) -> torch.Tensor:
    out = torch.full_like(x, torch.nan)
    logits = torch.nn.functional.linear(x, module.gate.weight)
    experts, gate = module.experts, module.gate
    layer = ExpertLayer(experts.gate_up_proj, experts.down_proj, gate.top_k, gate.norm_topk_prob)
    reference.mix_experts(x, logits, layer, out)
    return out


@pytest.mark.parametrize("renormalized", [True, False])
@pytest.mark.parametrize(("num_experts", "num_chosen"), [(8, 2), (5, 5), (16, 8), (3, 1), (1, 1)])
def test_is_transformers(num_experts: int, num_chosen: int, renormalized: bool) -> None:
    module, x = block(num_experts, num_chosen, renormalized), noise(19)
    torch.testing.assert_close(mixed(x, module), module(x[None])[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    """As close to what float64 makes of the same weights as transformers is."""
    module, x = block(8, 8, True, dtype), noise(40, dtype)
    exact = module.double()(x[None].double())[0]
    module.to(dtype)
    error, theirs = ((result.double() - exact).norm() for result in (mixed(x, module), module(x[None])[0]))
    assert error <= 1.1 * theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("renormalized", [True, False])
def test_choice_is_transformers(renormalized: bool, dtype: torch.dtype) -> None:
    """Without ties, bit for bit."""
    module = block(16, 4, renormalized, dtype)
    module.gate.weight.copy_(torch.eye(16, 32))
    generator = torch.Generator().manual_seed(0)
    x = torch.stack([torch.randperm(32, generator=generator) / 8 for _ in range(30)]).to(dtype)
    logits, theirs, their_experts = module.gate(x)
    experts, weights = reference.choose_experts(logits, 4, renormalized)
    assert (experts == their_experts).all()
    assert (weights == theirs.float()).all()


def test_of_equal_experts_the_first_are_chosen() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0], [0.0] * 6])
    experts, weights = reference.choose_experts(logits, 4, renormalized=True)
    assert experts.tolist() == [[1, 3, 2, 4], [0, 1, 2, 3]]
    assert weights[1].tolist() == [0.25] * 4


def test_a_token_does_not_depend_on_the_others() -> None:
    module, x = block(8, 3, True), noise(12)
    alone = torch.cat([mixed(row[None], module) for row in x])
    torch.testing.assert_close(mixed(x, module), alone, atol=1e-6, rtol=1e-6)
