"""Mixtures of experts against their twin, over shapes, numbers of tokens and every tile; and the sorting by itself."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.arguments import ExpertLayer
from kernels.gpu.layers.gated_linear import ProductTiles
from kernels.gpu.moe import experts as moe
from kernels.gpu.moe import products as moe_products
from kernels.gpu.moe import routing as moe_routing
from kernels.gpu.moe.experts import Experts
from tests.kernels.gpu import memory
from tests.support.effort import examples

NUM_EXAMPLES = 15  # each runs hundreds of programs through the interpreter, or compiles three kernels
dtypes = st.sampled_from([torch.float32, torch.float16])
SMALL = ProductTiles(rows=16, columns=32, depth=16, num_warps=4, num_stages=2)


def inputs(
    seed: int, tokens: int, num_experts: int, hidden: int, intermediate: int, dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    def scaled(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * memory.noise(seed + len(shape), *shape, dtype=torch.float32, device=device)).to(dtype)

    return {
        "x": memory.framed(scaled(tokens, hidden)),
        "router_logits": memory.framed(2 * scaled(tokens, num_experts)),
        "gate_up": scaled(num_experts, 2 * intermediate, hidden, scale=hidden**-0.5),
        "down": scaled(num_experts, hidden, intermediate, scale=intermediate**-0.5),
    }


def workspace(max_tokens: int, num_chosen: int, tensors: dict[str, Tensor]) -> Experts:
    """Full of NaN. Numbers are 0, and not wild: that none is missing is tested by itself, and here it would crash."""
    num_experts, hidden, intermediate = tensors["down"].shape
    x = tensors["x"]
    experts = Experts(max_tokens, num_experts, num_chosen, hidden, intermediate, x.dtype, x.device)
    for tensor in (experts._gated, experts._given, experts._weights):
        tensor.fill_(torch.nan)
    for tensor in (experts._experts, experts._order, experts._blocks):
        tensor.zero_()
    return experts


def mix(kernels: Any, tensors: dict[str, Tensor], num_chosen: int, renormalized: bool, out: Tensor) -> None:
    """Run the kernel of an `Experts`, or its twin, on `inputs`."""
    layer = ExpertLayer(tensors["gate_up"], tensors["down"], num_chosen, renormalized)
    kernels.mix_experts(tensors["x"], tensors["router_logits"], layer, out)


def check(tensors: dict[str, Tensor], num_chosen: int, renormalized: bool, experts: Experts | None = None) -> None:
    out = memory.poison(*tensors["x"].shape, dtype=tensors["x"].dtype, device=tensors["x"].device)
    kept, expected = {name: memory.twin_of(tensor) for name, tensor in tensors.items()}, memory.twin_of(out)
    mix(reference, tensors, num_chosen, renormalized, expected)
    experts = experts or workspace(len(tensors["x"]), num_chosen, tensors)
    mix(experts, tensors, num_chosen, renormalized, out)
    memory.assert_same_memory(out, expected, scale=4.0)
    for name, tensor in tensors.items():
        memory.assert_untouched(tensor, kept[name])


@settings(max_examples=examples(NUM_EXAMPLES))
@given(
    tokens=st.integers(1, 40),
    num_experts=st.integers(1, 6),
    chosen=st.integers(1, 4),
    hidden=st.sampled_from([16, 40, 64]),
    intermediate=st.sampled_from([12, 16, 33]),
    renormalized=st.booleans(),
    dtype=dtypes,
    seed=st.integers(0, 99),
)
@example(tokens=1, num_experts=6, chosen=4, hidden=64, intermediate=16, renormalized=True, dtype=torch.float32, seed=0)
@example(tokens=40, num_experts=2, chosen=1, hidden=64, intermediate=33, renormalized=True, dtype=torch.float16, seed=0)
def test_is_the_twin(
    tokens: int,
    num_experts: int,
    chosen: int,
    hidden: int,
    intermediate: int,
    renormalized: bool,
    dtype: torch.dtype,
    seed: int,
    device: torch.device,
) -> None:
    tensors = inputs(seed, tokens, num_experts, hidden, intermediate, dtype, device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moe, "choose_product_tiles", lambda *_: SMALL)
        check(tensors, min(chosen, num_experts), renormalized)


@pytest.mark.parametrize(("tokens", "rows"), [(4, 16), (24, 32), (90, 64), (200, 128)])
def test_every_tile(tokens: int, rows: int, device: torch.device) -> None:
    """With as many tokens as it is picked for; the hidden size is no multiple of its depth."""
    config = moe_products.choose_product_tiles(2 * tokens, 4, torch.float16)
    assert config.rows == rows
    check(inputs(1, tokens, 4, 136, 72, torch.float16, device), 2, True)


def test_one_workspace_for_steps_of_all_sizes(device: torch.device) -> None:
    """An earlier step's leftovers change no result."""
    experts = None
    for tokens in (20, 3, 1, 20):
        tensors = inputs(tokens, tokens, 4, 32, 16, torch.float32, device)
        experts = experts or workspace(20, 2, tensors)
        check(tensors, 2, True, experts)


def test_all_tokens_choose_the_same_experts(device: torch.device) -> None:
    tensors = inputs(0, 40, 6, 32, 16, torch.float32, device)
    tensors["router_logits"].copy_(torch.tensor([0.0, 0, 5, 0, 4, 0]))
    check(tensors, 2, False)


def test_of_equal_experts_the_first_are_chosen(device: torch.device) -> None:
    tensors = inputs(0, 7, 6, 32, 16, torch.float32, device)
    tensors["router_logits"].zero_()
    check(tensors, 3, True)


def test_offsets_beyond_32_bits(host: torch.device) -> None:
    tensors = inputs(0, 3, 4, 32, 16, torch.float16, host)
    out = memory.far_apart(3, 32, torch.float16)
    for name, size in (("x", 32), ("router_logits", 4)):
        tensors[name] = memory.far_apart(3, size, torch.float16).copy_(tensors[name])
    expected = torch.empty(3, 32, dtype=torch.float16)
    mix(reference, tensors, 2, True, expected)
    mix(workspace(3, 2, tensors), tensors, 2, True, out)
    torch.testing.assert_close(out, expected)


def test_no_tokens(device: torch.device) -> None:
    tensors = inputs(0, 1, 4, 32, 16, torch.float32, device)
    empty = {**tensors, "x": tensors["x"][:0], "router_logits": tensors["router_logits"][:0]}
    mix(workspace(4, 2, tensors), empty, 2, True, tensors["x"][:0])


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # numpy's, in the interpreter
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_no_numbers_harm_their_token_only(value: float, device: torch.device) -> None:
    tensors = inputs(0, 5, 4, 32, 16, torch.float32, device)
    out, expected = torch.zeros(5, 32, device=device), torch.zeros(5, 32, device=device)
    mix(reference, tensors, 2, True, expected)
    tensors["router_logits"][2] = value
    mix(workspace(5, 2, tensors), tensors, 2, True, out)
    assert out[2].isnan().all()
    others = [0, 1, 3, 4]
    torch.testing.assert_close(out[others], expected[others])


@pytest.mark.slow
@settings(max_examples=examples(NUM_EXAMPLES))
@given(
    tokens=st.integers(1, 70),
    num_experts=st.integers(1, 9),
    chosen=st.integers(1, 3),
    block_rows=st.sampled_from([16, 32]),
    chunk=st.sampled_from([32, 64]),
    favourite=st.booleans(),
    dtype=dtypes,
    seed=st.integers(0, 99),
)
@example(tokens=70, num_experts=9, chosen=3, block_rows=16, chunk=64, favourite=True, dtype=torch.float32, seed=0)
@example(tokens=40, num_experts=48, chosen=1, block_rows=16, chunk=64, favourite=True, dtype=torch.float16, seed=0)
@example(tokens=640, num_experts=2, chosen=1, block_rows=16, chunk=512, favourite=True, dtype=torch.float16, seed=0)
def test_blocks_cover_every_choice_once(
    tokens: int,
    num_experts: int,
    chosen: int,
    block_rows: int,
    chunk: int,
    favourite: bool,
    dtype: torch.dtype,
    seed: int,
    device: torch.device,
) -> None:
    """Also where an expert has more than the 32 slots that are written down at a time."""
    chosen = min(chosen, num_experts)
    logits = memory.noise(seed, tokens, num_experts, dtype=dtype, device=device)
    logits[:, -1] += 10 * favourite
    num_choices = tokens * chosen
    experts, order = (torch.full((num_choices,), 2**30, dtype=torch.int32, device=device) for _ in range(2))
    weights = torch.full((num_choices,), torch.nan, device=device)
    slots = moe_routing.count_slots(num_choices, num_experts, block_rows)
    blocks = torch.full((slots, 4), 2**30, dtype=torch.int32, device=device)
    with pytest.MonkeyPatch.context() as patch:
        picked = replace(moe_routing.choose_routing_tiles(tokens, chosen), chunk=chunk)
        patch.setattr(moe_routing, "choose_routing_tiles", lambda *_: picked)
        moe_routing.launch_routing(logits, experts, weights, order, blocks, chosen, True, block_rows)

    expected, expected_weights = reference.choose_experts(logits, chosen, True)
    assert (experts.view(tokens, chosen) == expected).all()
    torch.testing.assert_close(weights.view(tokens, chosen), expected_weights, rtol=memory.TOLERANCES[dtype], atol=0)
    assert (weights == weights.to(dtype)).all()
    assert order.tolist() == experts.long().argsort(stable=True).tolist()
    covered: list[int] = []
    for expert, first, end, _ in blocks.tolist():
        if expert >= 0:
            places = range(first, min(first + block_rows, end))
            assert len(places) >= 1
            assert {int(experts[order[place]]) for place in places} == {expert}
            covered += places
    assert sorted(covered) == list(range(num_choices))


def wrong(name: str, tensor: Tensor) -> dict[str, Any]:
    right = {
        "x": torch.zeros(3, 32),
        "router_logits": torch.zeros(3, 4),
        "gate_up": torch.zeros(4, 32, 32),
        "down": torch.zeros(4, 32, 16),
        "out": torch.zeros(3, 32),
    }
    return right | {name: tensor}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (wrong("x", torch.zeros(3)), "x has shape (3,), expected 2 dimensions"),
        (wrong("x", torch.zeros(9, 32)), "the number of rows of x is 9, expected 0 to 8"),
        (wrong("x", torch.zeros(3, 16)), "x has shape (3, 16), expected (3, 32)"),
        (wrong("x", torch.zeros(3, 32).half()), "x is torch.float16, expected torch.float32"),
        (wrong("x", torch.zeros(32, 3).T), "x has strides (1, 3), expected 1 for the last"),
        (wrong("router_logits", torch.zeros(3, 5)), "router_logits has shape (3, 5), expected (3, 4)"),
        (wrong("gate_up", torch.zeros(4, 16, 32)), "gate_up has shape (4, 16, 32), expected (4, 32, 32)"),
        (wrong("gate_up", torch.zeros(4, 32, 32).mT), "expected it dense"),
        (wrong("down", torch.zeros(4, 16, 32).mT), "down has shape (4, 32, 16) and strides (512, 1, 32), expected it"),
        (wrong("out", torch.zeros(3, 32, device="meta")), "out is on meta, expected cpu"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        mix(Experts(8, 4, 2, 32, 16, torch.float32, "cpu"), arguments, 2, True, arguments["out"])


def test_wrong_sizes() -> None:
    with pytest.raises(ValueError, match="num_experts is 1025, expected 1 to 1024"):
        Experts(8, 1025, 2, 32, 16, torch.float32, "cpu")
    with pytest.raises(ValueError, match="num_chosen is 5, expected 1 to 4"):
        Experts(8, 4, 5, 32, 16, torch.float32, "cpu")
    tensors = inputs(0, 1, 4, 32, 16, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="num_chosen is 3, expected 2 to 2"):
        mix(workspace(1, 2, tensors), tensors, 3, True, tensors["x"])


@pytest.mark.gpu
@pytest.mark.parametrize("intermediate", [768, 96])
@pytest.mark.parametrize("tokens", [1, 8, 64, 256, 1000, 4096, 16_384])
def test_real_sizes(tokens: int, intermediate: int, device: torch.device) -> None:
    """Qwen3-30B-A3B's, whole and an eighth of it, against float64 for the choices that were made."""
    tensors = inputs(0, tokens, 128, 2048, intermediate, torch.bfloat16, device)
    out = torch.full((tokens, 2048), torch.nan, dtype=torch.bfloat16, device=device)
    mix(workspace(tokens, 8, tensors), tensors, 8, True, out)
    assert not out.isnan().any()
    for token in range(0, tokens, max(1, tokens // 64)):
        experts, weights = reference.choose_experts(tensors["router_logits"][token : token + 1], 8, True)
        exact = torch.zeros(2048, dtype=torch.float64, device=device)
        for expert, weight in zip(experts[0].tolist(), weights[0].double(), strict=True):
            gate, up = (tensors["gate_up"][expert].double() @ tensors["x"][token].double()).chunk(2)
            exact += weight * (tensors["down"][expert].double() @ (gate * gate.sigmoid() * up))
        assert memory.relative_error(out[token], exact) < 1e-2


@pytest.mark.gpu
def test_in_a_cuda_graph(device: torch.device) -> None:
    """Replayed with other tokens that choose other experts."""
    tensors = inputs(0, 96, 128, 512, 256, torch.bfloat16, device)
    out = torch.zeros(96, 512, dtype=torch.bfloat16, device=device)
    experts = workspace(96, 8, tensors)
    mix(experts, tensors, 8, True, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mix(experts, tensors, 8, True, out)
    for seed in (1, 2):
        fresh = inputs(seed, 96, 128, 512, 256, torch.bfloat16, device)
        for name, tensor in tensors.items():
            tensor.copy_(fresh[name])
        expected = torch.zeros_like(out)
        mix(experts, tensors, 8, True, expected)
        out.fill_(torch.nan)
        graph.replay()
        assert (out == expected).all()
