"""Head norms, rotary embedding and KV store against their twin; nothing else in memory changes."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.arguments import KVCache, RopeStoreLayer
from kernels.gpu.layers.rope_store import choose_rope_store_tiles, qk_norm_rope_store
from tests.kernels.gpu import memory

EPS = 1e-6
MAX_POSITIONS = 40
LARGEST = 4.0
"""About the largest value of a normalized head; rotating adds two of them, which may cancel."""


@dataclass(frozen=True)
class Case:
    """Shapes and values.

    Attributes:
        gap: values after each token's row of the projection and of the result, and after each block.
        unstored: tokens with slot -1.
        is_normed: whether heads have norms.
        scale: of the projection's values.
    """

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.float32
    block_size: int = 16
    key_is_transposed: bool = False
    value_is_transposed: bool = False
    gap: int = 0
    unstored: tuple[int, ...] = ()
    scale: float = 3.0
    is_normed: bool = True
    seed: int = 0


@st.composite
def cases(draw: st.DrawFn) -> Case:
    tokens = draw(st.integers(1, 9))
    return Case(
        tokens,
        heads=draw(st.integers(1, 9)),
        kv_heads=draw(st.integers(1, 5)),
        head_dim=draw(st.sampled_from([16, 32, 64, 128])),
        dtype=draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])),
        block_size=draw(st.integers(1, 20)),
        key_is_transposed=draw(st.booleans()),
        value_is_transposed=draw(st.booleans()),
        gap=draw(st.sampled_from([0, 1, 8])),
        unstored=tuple(draw(st.sets(st.integers(0, tokens - 1)))),
        scale=draw(st.sampled_from([3.0, 1e-3])),  # the square of the second is as small as EPS
        is_normed=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


def rotary_cache(head_dim: int, device: torch.device, max_positions: int = MAX_POSITIONS) -> Tensor:
    frequencies = 10_000.0 ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.arange(max_positions)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float().to(device)


def cache(num_blocks: int, case: Case, transposed: bool, device: torch.device) -> Tensor:
    """A poisoned cache, in flash-attn's layout where `transposed`."""
    if transposed:
        shape = (num_blocks, case.block_size, case.kv_heads, case.head_dim)
        return memory.poison(*shape, dtype=case.dtype, device=device, beside=case.gap).transpose(1, 2)
    shape = (num_blocks, case.kv_heads, case.block_size, case.head_dim)
    return memory.poison(*shape, dtype=case.dtype, device=device, beside=case.gap)


def arguments(case: Case, device: torch.device) -> dict[str, Tensor]:
    width = (case.heads + 2 * case.kv_heads) * case.head_dim
    random = torch.Generator().manual_seed(case.seed)
    num_blocks = case.tokens // case.block_size + 2
    slots = torch.randperm(num_blocks * case.block_size, generator=random)[: case.tokens].int()
    slots[list(case.unstored)] = -1
    q_weight, k_weight = 1 + memory.noise(case.seed, 2, case.head_dim, dtype=case.dtype, device=device) / 4
    norms = {"q_weight": q_weight, "k_weight": k_weight} if case.is_normed else {}
    return {
        "qkv": memory.framed(
            memory.noise(case.seed, case.tokens, width, dtype=case.dtype, device=device) * case.scale, beside=case.gap
        ),
        **norms,
        "cos_sin": rotary_cache(case.head_dim, device),
        "positions": torch.randint(0, MAX_POSITIONS, (case.tokens,), generator=random).int().to(device),
        "slot_mapping": slots.to(device),
        "key_cache": cache(num_blocks, case, case.key_is_transposed, device),
        "value_cache": cache(num_blocks, case, case.value_is_transposed, device),
        "out": memory.poison(case.tokens, case.heads, case.head_dim, dtype=case.dtype, device=device, beside=case.gap),
    }


def rope_store(kernel: Callable[..., None], tensors: dict[str, Tensor]) -> None:
    """Run the kernel or its twin on `arguments`."""
    qkv, *norms, cos_sin, positions, slots, keys, values, out = tensors.values()
    layer = RopeStoreLayer((norms[0], norms[1]) if norms else None, EPS, cos_sin, KVCache(keys, values))
    kernel(qkv, layer, positions, slots, out)


@settings(max_examples=memory.NUM_EXAMPLES)
@given(case=cases())
@example(case=Case(3, 16, 8, 128, torch.bfloat16))
@example(case=Case(2, 32, 8, 128, torch.float16, key_is_transposed=True, value_is_transposed=True, unstored=(0,)))
@example(case=Case(1, 40, 8, 128))
@example(case=Case(2, 64, 8, 128, gap=8))
@example(case=Case(9, 8, 1, 128, torch.float16, key_is_transposed=True))
@example(case=Case(17, 5, 1, 64, unstored=(3, 16)))
@example(case=Case(3, 4, 12, 128))
@example(case=Case(2, 2, 1, 256))
@example(case=Case(9, 9, 3, 64, torch.bfloat16, is_normed=False))
@example(case=Case(3, 64, 8, 128, torch.float16, is_normed=False, unstored=(1,)))
def test_qk_norm_rope_store(case: Case, device: torch.device) -> None:
    tensors = arguments(case, device)
    kept = {name: memory.twin_of(tensor) for name, tensor in tensors.items()}
    expected = {name: memory.twin_of(tensor) for name, tensor in tensors.items()}
    rope_store(reference.qk_norm_rope_store, expected)
    rope_store(qk_norm_rope_store, tensors)
    memory.assert_same_memory(tensors["out"], expected["out"], scale=LARGEST)
    memory.assert_same_memory(tensors["key_cache"], expected["key_cache"], scale=LARGEST)
    memory.assert_untouched(tensors["value_cache"], expected["value_cache"])  # copied: not a bit differs
    for name in tensors.keys() - {"out", "key_cache", "value_cache"}:
        memory.assert_untouched(tensors[name], kept[name])


def test_steps_are_rounded_as_in_the_twin(device: torch.device) -> None:
    tensors = arguments(Case(16, 8, 4, 128, torch.float16, gap=8), device)
    expected = {name: memory.twin_of(tensor) for name, tensor in tensors.items()}
    rope_store(reference.qk_norm_rope_store, expected)
    rope_store(qk_norm_rope_store, tensors)
    assert memory.share_of_equal(tensors["out"], expected["out"]) > 0.99


def test_no_slots(device: torch.device) -> None:
    case = Case(5, 4, 2, 64, unstored=tuple(range(5)))
    tensors = arguments(case, device)
    kept = {name: memory.twin_of(tensor) for name, tensor in tensors.items()}
    expected = {name: memory.twin_of(tensor) for name, tensor in tensors.items()}
    rope_store(reference.qk_norm_rope_store, expected)
    rope_store(qk_norm_rope_store, tensors)
    memory.assert_same_memory(tensors["out"], expected["out"], scale=LARGEST)
    memory.assert_untouched(tensors["key_cache"], kept["key_cache"])
    memory.assert_untouched(tensors["value_cache"], kept["value_cache"])


def test_no_tokens(device: torch.device) -> None:
    tensors = arguments(Case(1, 4, 2, 64), device)
    kept = memory.twin_of(tensors["key_cache"])
    for name in ("qkv", "positions", "slot_mapping", "out"):
        tensors[name] = tensors[name][:0]
    rope_store(qk_norm_rope_store, tensors)
    memory.assert_untouched(tensors["key_cache"], kept)


def test_plan_at_an_odd_place_of_the_staged_inputs(device: torch.device) -> None:
    tensors = arguments(Case(3, 4, 2, 64), device)
    expected = {name: memory.twin_of(tensor) for name, tensor in tensors.items()}
    rope_store(reference.qk_norm_rope_store, expected)
    for name in ("positions", "slot_mapping"):
        tensors[name] = torch.cat((torch.full_like(tensors[name][:1], 10**9), tensors[name]))[1:]
    rope_store(qk_norm_rope_store, tensors)
    for name in ("out", "key_cache", "value_cache"):
        memory.assert_same_memory(tensors[name], expected[name], scale=LARGEST)


def test_offsets_beyond_32_bits(host: torch.device) -> None:
    case = Case(3, 8, 4, 128, torch.float16, block_size=4)  # one token to a program
    tensors = arguments(case, host)
    tensors["slot_mapping"] = torch.tensor([6, 1, 11], dtype=torch.int32)
    expected = dict(tensors)
    for name in ("qkv", "out", "key_cache", "value_cache"):
        shape = (3, *tensors[name].shape[1:])
        expected[name] = torch.zeros(shape, dtype=case.dtype)
        tensors[name] = memory.far_apart(3, expected[name][0].numel(), case.dtype).unflatten(1, shape[1:])
    expected["qkv"].copy_(memory.noise(0, *expected["qkv"].shape, dtype=case.dtype, device=host))
    tensors["qkv"].copy_(expected["qkv"])
    rope_store(reference.qk_norm_rope_store, expected)
    rope_store(qk_norm_rope_store, tensors)
    for name in ("out", "key_cache", "value_cache"):
        torch.testing.assert_close(tensors[name], expected[name], rtol=2**-9, atol=2**-9)


@pytest.mark.parametrize(("heads", "kv_heads"), [(16, 8), (32, 8), (40, 8), (64, 8), (64, 4), (8, 1), (4, 1), (2, 1)])
def test_no_lane_idles_in_the_shapes_of_qwen3(heads: int, kv_heads: int) -> None:
    config = choose_rope_store_tiles(heads, kv_heads, head_dim=128)
    assert heads % (config.query_groups * config.query_heads) == 0
    assert kv_heads % config.kv_heads == 0


RIGHT = Case(4, 3, 2, 16)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("out", torch.zeros(4, 48), "out has shape (4, 48), expected 3 dimensions"),
        ("out", torch.zeros(4, 3, 16).double(), "out is torch.float64, expected torch.bfloat16 or"),
        ("out", torch.zeros(4, 3, 24), "head_dim is 24, expected a power of two from 16 to 256"),
        ("out", torch.zeros(4, 3, 512), "head_dim is 512, expected a power of two from 16 to 256"),
        ("out", torch.zeros(4, 16, 3).mT, "out has strides (48, 1, 3), expected 1 for the last"),
        ("qkv", torch.zeros(4, 96), "qkv has shape (4, 96), expected (4, 112)"),
        ("qkv", torch.zeros(4, 112).half(), "qkv is torch.float16, expected torch.float32"),
        ("qkv", torch.zeros(4, 112, device="meta"), "qkv is on meta, expected cpu"),
        ("qkv", torch.zeros(112, 4).T, "qkv has strides (1, 4), expected 1 for the last"),
        ("q_weight", torch.zeros(15), "q_weight has shape (15,), expected (16,)"),
        ("q_weight", torch.zeros(16).half(), "q_weight is torch.float16, expected torch.float32"),
        ("q_weight", torch.zeros(32)[::2], "q_weight has strides (2,), expected 1 for the last"),
        ("k_weight", torch.zeros(15), "k_weight has shape (15,), expected (16,)"),
        ("k_weight", torch.zeros(16).half(), "k_weight is torch.float16, expected torch.float32"),
        ("k_weight", torch.zeros(32)[::2], "k_weight has strides (2,), expected 1 for the last"),
        ("cos_sin", torch.zeros(40), "cos_sin has shape (40,), expected 2 dimensions"),
        ("cos_sin", torch.zeros(40, 8), "cos_sin has shape (40, 8), expected (40, 16)"),
        ("cos_sin", torch.zeros(40, 16).half(), "cos_sin is torch.float16, expected torch.float32"),
        ("cos_sin", torch.zeros(40, 32)[:, :16], "cos_sin has shape (40, 16) and strides (32, 1), expected it dense"),
        ("positions", torch.zeros(3).int(), "positions has shape (3,), expected (4,)"),
        ("positions", torch.zeros(4).long(), "positions is torch.int64, expected torch.int32"),
        ("positions", torch.zeros(8).int()[::2], "positions has strides (2,), expected 1 for the last"),
        ("slot_mapping", torch.zeros(3).int(), "slot_mapping has shape (3,), expected (4,)"),
        ("slot_mapping", torch.zeros(4).long(), "slot_mapping is torch.int64, expected torch.int32"),
        ("slot_mapping", torch.zeros(8).int()[::2], "slot_mapping has strides (2,), expected 1 for the last"),
        ("key_cache", torch.zeros(2, 2, 16), "key_cache has shape (2, 2, 16), expected 4 dimensions"),
        ("key_cache", torch.zeros(2, 2, 16, 8), "key_cache has shape (2, 2, 16, 8), expected (2, 2, 16, 16)"),
        ("key_cache", torch.zeros(2, 2, 16, 16).half(), "key_cache is torch.float16, expected torch.float32"),
        ("key_cache", torch.zeros(2, 2, 16, 16).mT, "key_cache has strides (512, 256, 1, 16), expected 1 for the last"),
        ("value_cache", torch.zeros(3, 2, 16, 16), "value_cache has shape (3, 2, 16, 16), expected (2, 2, 16, 16)"),
        ("value_cache", torch.zeros(2, 2, 16, 16).half(), "value_cache is torch.float16, expected torch.float32"),
        ("value_cache", torch.zeros(2, 2, 16, 16, device="meta"), "value_cache is on meta, expected cpu"),
        ("value_cache", torch.zeros(2, 2, 16, 16).mT, "value_cache has strides (512, 256, 1, 16), expected 1 for"),
    ],
)
def test_wrong_arguments(name: str, tensor: Tensor, message: str) -> None:
    right = arguments(RIGHT, torch.device("cpu"))
    with pytest.raises(ValueError, match=re.escape(message)):
        rope_store(qk_norm_rope_store, right | {name: tensor})


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [
        (16, 8, 128),
        (32, 8, 128),
        (40, 8, 128),
        (64, 8, 128),
        (8, 1, 128),
        (5, 1, 128),
        (16, 8, 64),
        (64, 4, 64),
        (4, 2, 16),
    ],
)
@pytest.mark.parametrize("tokens", [1, 257, 70_001])
@pytest.mark.parametrize("transposed", [False, True])
def test_real_sizes(
    heads: int, kv_heads: int, head_dim: int, tokens: int, transposed: bool, device: torch.device
) -> None:
    case = Case(tokens, heads, kv_heads, head_dim, torch.bfloat16, 256, transposed, transposed)
    _check_real(case, tokens // 256 + 9, device)


@pytest.mark.gpu
def test_pools_of_more_values_than_32_bits_count(device: torch.device) -> None:
    _check_real(Case(3000, 32, 8, 128, torch.bfloat16, 16, True, True), 2**31 // (16 * 8 * 128) + 100, device)


def _check_real(case: Case, num_blocks: int, device: torch.device) -> None:
    """Two thirds of the tokens get slots towards the end of a poisoned pool, in any order."""
    tokens, width = case.tokens, (case.heads + 2 * case.kv_heads) * case.head_dim
    torch.manual_seed(0)
    qkv = torch.randn(tokens, width + 64, device=device).to(case.dtype)[:, :width]
    q_weight, k_weight = (1 + torch.randn(2, case.head_dim, device=device) / 4).to(case.dtype)
    cos_sin = rotary_cache(case.head_dim, device, max_positions=40_960)
    positions = torch.randint(0, 40_960, (tokens,), dtype=torch.int32, device=device)
    num_slots = num_blocks * case.block_size
    slots = num_slots - 1 - torch.randperm(min(num_slots, 2 * tokens), device=device)[:tokens].int()
    slots[1::3] = -1
    shape = (num_blocks, case.block_size, case.kv_heads, case.head_dim)
    if not case.key_is_transposed:
        shape = (shape[0], shape[2], shape[1], shape[3])
    caches = torch.full((2, *shape), torch.nan, dtype=case.dtype, device=device)
    if case.key_is_transposed:
        caches = caches.transpose(2, 3)
    out = torch.full((tokens, case.heads, case.head_dim), torch.nan, dtype=case.dtype, device=device)
    layer = RopeStoreLayer((q_weight, k_weight), EPS, cos_sin, KVCache(caches[0], caches[1]))
    qk_norm_rope_store(qkv, layer, positions, slots, out)

    stored = slots >= 0
    places = slots[stored].long()
    keys, values = (each[places // case.block_size, :, places % case.block_size] for each in caches)
    for part in torch.arange(tokens, device=device).split(8192):
        q, k, v = (
            qkv[part]
            .unflatten(1, (-1, case.head_dim))
            .split_with_sizes([case.heads, case.kv_heads, case.kv_heads], dim=1)
        )
        rotation = cos_sin[positions[part].long()].double()
        assert memory.relative_error(out[part], _exact(q, q_weight, rotation)) < 5e-3
        here = part[stored[part]]
        if len(here):
            done = (stored.cumsum(0) - 1)[here]
            kept = stored[part]
            assert memory.relative_error(keys[done], _exact(k, k_weight, rotation)[kept]) < 5e-3
            assert torch.equal(values[done], v[kept])
    caches.transpose(0, 1)[places // case.block_size, :, :, places % case.block_size] = torch.nan
    assert caches.isnan().all()


def _exact(heads: Tensor, weight: Tensor, rotation: Tensor) -> Tensor:
    """Normalized and rotated heads in float64, without a rounding."""
    wide = heads.double()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.double()
    (first, second), (cos, sin) = normed.chunk(2, -1), rotation[:, None].chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
