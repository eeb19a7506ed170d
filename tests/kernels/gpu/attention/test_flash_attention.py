"""flash-attn behind our interface. Where it is not installed, a stand-in with its signatures computes with the twin.

The stand-in demands what the C extension of flash-attn 2.8.3 does (csrc/flash_attn/flash_api.cpp), cuts contexts as it
does, and keeps what it was called with.
"""

import importlib
import importlib.util
import inspect
import re
import sys
from dataclasses import dataclass, field, replace
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.arguments import AttentionRows, KVCache
from kernels.gpu.attention.flash_attention import FlashAttention
from kernels.gpu.attention.flash_plan import MAX_GRAPH_SPLITS, choose_graph_splits, choose_num_splits
from kernels.gpu.attention.paged_attention import PagedAttention
from kernels.gpu.attention.plan import AttentionShape, GraphBounds
from tests.kernels.gpu.attention_cases import Batch, Case, attend_arguments, attend_with
from tests.support.effort import examples

SHAPE = AttentionShape(4, 2, 64, 256, torch.float16)
H200_SMS = 132


def fwd_kvcache(
    q,
    kcache,
    vcache,
    k,
    v,
    seqlens_k,
    rotary_cos,
    rotary_sin,
    cache_batch_idx,
    leftpad_k,
    block_table,
    alibi_slopes,
    out,
    softmax_scale,
    is_causal,
    window_size_left,
    window_size_right,
    softcap,
    is_rotary_interleaved,
    num_splits,
):
    rows, num_queries, heads, head_dim = q.shape
    assert num_queries == 1
    kv_heads = kcache.shape[2]
    assert seqlens_k.dtype == torch.int32
    assert seqlens_k.shape == (rows,)
    assert seqlens_k.is_contiguous()
    check_caches(q, kcache, vcache, block_table, rows)
    assert 1 <= num_splits <= 128
    assert int(seqlens_k.max()) <= block_table.shape[1] * kcache.shape[1]
    assert (window_size_left, window_size_right) == (-1, -1)
    group = heads // kv_heads
    # With grouped heads it makes queries of a group's heads before it looks at `out`.
    assert out.shape == ((rows, group, kv_heads, head_dim) if group > 1 else (rows, 1, heads, head_dim))
    assert out.dtype == q.dtype
    assert out.stride(-1) == 1
    starts = torch.arange(rows + 1, dtype=torch.int32)
    result = twin(q[:, 0], kcache, vcache, block_table, seqlens_k, starts, softmax_scale, is_causal)
    out.copy_(result.view(rows, kv_heads, group, head_dim).transpose(1, 2) if group > 1 else result[:, None])
    return [out, torch.empty(0)]


def varlen_fwd(
    q,
    k,
    v,
    out,
    cu_seqlens_q,
    cu_seqlens_k,
    seqused_k,
    leftpad_k,
    block_table,
    alibi_slopes,
    max_seqlen_q,
    max_seqlen_k,
    p_dropout,
    softmax_scale,
    zero_tensors,
    is_causal,
    window_size_left,
    window_size_right,
    softcap,
    return_softmax,
    generator,
):
    rows = len(cu_seqlens_q) - 1
    for starts, longest in ((cu_seqlens_q, max_seqlen_q), (cu_seqlens_k, max_seqlen_k)):
        assert starts.dtype == torch.int32
        assert starts.shape == (rows + 1,)
        assert starts.is_contiguous()
        assert starts[0] == 0
        assert int(starts.diff().max()) == longest
    assert cu_seqlens_q[-1] == len(q)
    check_caches(q, k, v, block_table, rows)
    assert max_seqlen_k <= block_table.shape[1] * k.shape[1]
    assert (window_size_left, window_size_right) == (-1, -1)
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    assert out.stride(-1) == 1
    out.copy_(twin(q, k, v, block_table, cu_seqlens_k.diff(), cu_seqlens_q, softmax_scale, is_causal))
    return [out, torch.empty(0), torch.empty(0), torch.empty(0)]


def check_caches(q: Tensor, k: Tensor, v: Tensor, block_table: Tensor, rows: int) -> None:
    assert q.dtype == k.dtype == v.dtype
    assert q.dtype in (torch.float16, torch.bfloat16)
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert k.shape == v.shape
    assert k.shape[1] % 256 == 0
    assert q.shape[-2] % k.shape[2] == 0
    assert block_table.dtype == torch.int32
    assert block_table.stride(-1) == 1
    assert len(block_table) == rows


def twin(q, k, v, tables, context_lens, starts, scale, causal) -> Tensor:
    assert causal
    out = torch.full_like(q, torch.nan)
    cache = KVCache(k.transpose(1, 2), v.transpose(1, 2))
    reference.paged_attention(q, cache, AttentionRows(starts, context_lens, tables), scale, out)
    return out


@dataclass
class Flash:
    """The stand-in, and the calls that it got: name, and arguments by name."""

    calls: list[tuple[str, dict]] = field(default_factory=list)

    def module(self) -> ModuleType:
        made = ModuleType("flash_attn_2_cuda")
        for function in (fwd_kvcache, varlen_fwd):
            setattr(made, function.__name__, self._recorded(function))
        return made

    def _recorded(self, function):
        def call(*args):
            bound = inspect.signature(function).bind(*args)
            self.calls.append((function.__name__, dict(bound.arguments)))
            return function(*args)

        call.__doc__ = signature_of_pybind(function.__name__, len(inspect.signature(function).parameters))
        return call


def signature_of_pybind(name: str, num_arguments: int) -> str:
    return f"{name}({', '.join(f'arg{i}: torch.Tensor' for i in range(num_arguments))}) -> list[torch.Tensor]"


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Flash:
    stand_in = Flash()
    monkeypatch.setitem(sys.modules, "flash_attn_2_cuda", stand_in.module())
    return stand_in


CPU = torch.device("cpu")


def attend(batch: Batch, spare_columns: int = 0, graph: GraphBounds | None = None) -> Tensor:
    backend = FlashAttention(batch.case.shape, H200_SMS)
    plan = backend.plan(batch.query_lens, batch.context_lens, graph)
    work = torch.from_numpy(plan.work).to(batch.query.device)
    out = torch.full_like(batch.query, torch.nan)
    tables = torch.nn.functional.pad(batch.block_tables, (0, spare_columns), value=2**30)
    step, cache = backend.stage(plan, work, tables), backend.view_cache(batch.cache)
    assert backend.attend(batch.query, cache, step, batch.scale, out) is out
    return out


def check(batch: Batch, out: Tensor) -> None:
    torch.testing.assert_close(out.double(), batch.expected, atol=2e-3, rtol=1e-3)


@st.composite
def row_lens(draw: st.DrawFn) -> tuple[int, int]:
    context = draw(st.one_of(st.integers(1, 40), st.integers(250, 260), st.integers(1, 700)))
    return draw(st.one_of(st.just(1), st.integers(1, min(context, 30)))), context


@settings(max_examples=examples(40))
@given(lens=st.lists(row_lens(), min_size=1, max_size=5), seed=st.integers(0, 99), group=st.sampled_from([1, 2, 4]))
def test_any_batch(lens: list[tuple[int, int]], seed: int, group: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "flash_attn_2_cuda", Flash().module())
        batch = Batch(Case(lens, replace(SHAPE, num_heads=2 * group), seed, flash_layout=True), CPU)
        check(batch, attend(batch))


def test_a_mixed_step_is_two_calls(flash: Flash) -> None:
    lens = [(1, 600), (1, 3), (20, 40), (1, 900), (7, 7)]
    batch = Batch(Case(lens, SHAPE, flash_layout=True), CPU)
    check(batch, attend(batch, spare_columns=50))
    (first, decode), (second, prompts) = flash.calls
    assert (first, second) == ("fwd_kvcache", "varlen_fwd")
    assert decode["q"].shape == (2, 1, 4, 64)
    assert decode["seqlens_k"].tolist() == [600, 3]
    assert decode["block_table"].tolist() == batch.block_tables[:2, :3].tolist()
    assert prompts["cu_seqlens_q"].tolist() == [0, 20, 21, 28]
    assert prompts["cu_seqlens_k"].tolist() == [0, 40, 940, 947]
    assert (prompts["max_seqlen_q"], prompts["max_seqlen_k"]) == (20, 900)
    assert prompts["block_table"].tolist() == batch.block_tables[2:, :4].tolist()
    for call in (decode, prompts):
        key, value = (call[name] for name in (("kcache", "vcache") if call is decode else ("k", "v")))
        assert key.data_ptr() == batch.cache.keys.data_ptr()
        assert value.data_ptr() == batch.cache.values.data_ptr()
        assert key.is_contiguous()
        assert key.shape[1:] == (256, 2, 64)
        assert call["block_table"].data_ptr() != batch.block_tables.data_ptr()  # narrowed, not copied: see below
        assert call["block_table"].stride(0) == batch.block_tables.shape[1] + 50


@pytest.mark.parametrize("lens", [[(1, 600), (1, 3)], [(20, 40), (1, 900)]])
def test_a_step_of_one_kind_is_one_call(flash: Flash, lens: list[tuple[int, int]]) -> None:
    batch = Batch(Case(lens, SHAPE, flash_layout=True), CPU)
    check(batch, attend(batch))
    assert len(flash.calls) == 1


def test_an_empty_step(flash: Flash) -> None:
    backend = FlashAttention(SHAPE, H200_SMS)
    plan = backend.plan(np.zeros(0, int), np.zeros(0, int))
    batch = Batch(Case([(1, 1)], SHAPE, flash_layout=True), CPU)
    step = backend.stage(plan, torch.from_numpy(plan.work), batch.block_tables[:0])
    out = backend.attend(batch.query[:0], backend.view_cache(batch.cache), step, 1.0, batch.query[:0])
    assert out.shape == (0, 4, 64)
    assert flash.calls == []


def test_plans_for_a_graph_differ_in_their_work_alone(flash: Flash) -> None:
    backend = FlashAttention(SHAPE, H200_SMS)
    bounds = GraphBounds(3, 5000)
    first, second = (
        backend.plan(np.ones(3, int), np.array(contexts), bounds) for contexts in ([1, 1, 1], [5000, 30, 2000])
    )
    assert replace(first, work=second.work) == second
    assert second.decode_columns == 20
    assert second.work.tolist()[:3] == [5000, 30, 2000]
    batch = Batch(Case([(1, 300), (1, 3), (1, 9)], SHAPE, flash_layout=True, spare_columns=18), CPU)
    check(batch, attend(batch, graph=bounds))
    for queries, message in (([1, 1], "has 2 rows of one query, the graph has 3"), ([1, 1, 2], "most queries .* is 2")):
        with pytest.raises(ValueError, match=message):
            backend.plan(np.array(queries), np.full(len(queries), 9), bounds)


@pytest.mark.parametrize(
    ("contexts", "table_len", "kv_heads", "fewest", "most"),
    [
        ([1024] * 256, 1024, 8, 1, 1),  # enough rows to fill the GPU
        ([8192] * 32, 8192, 8, 1, 2),
        ([8192] * 8, 8192, 8, 4, 8),
        ([32768], 32768, 8, 33, 66),
        ([300] * 4, 512, 8, 1, 2),
        ([131072], 131072, 1, 100, 128),  # flash-attn's limit
        ([200] * 100 + [100_000], 100_096, 8, 30, 70),  # one long among short
        ([1000] * 4, 40_960, 8, 80, 128),  # the table is wider than the rows are long, and it is the table that is cut
        ([1], 256, 8, 1, 1),
    ],
)
def test_number_of_splits(contexts: list[int], table_len: int, kv_heads: int, fewest: int, most: int) -> None:
    assert fewest <= choose_num_splits(np.array(contexts, np.int32), table_len, kv_heads, H200_SMS) <= most


@pytest.mark.parametrize(
    ("rows", "max_context_len", "kv_heads", "fewest", "most"),
    [
        (1, 40_960, 8, 16, MAX_GRAPH_SPLITS),  # few rows are cut finely
        (16, 40_960, 8, 16, MAX_GRAPH_SPLITS),
        (256, 40_960, 8, 1, 1),  # a full batch does not pay for the one long row that it might have
        (256, 131_072, 1, 1, 1),
        (64, 40_960, 8, 1, 1),
        (24, 40_960, 8, 16, MAX_GRAPH_SPLITS),
        (256, 2048, 8, 1, 1),
        (256, 4096, 8, 1, 1),
        (8, 4096, 8, 8, 16),
        (1, 256, 8, 1, 1),
        (1, 131_072, 1, MAX_GRAPH_SPLITS, MAX_GRAPH_SPLITS),
    ],
)
def test_number_of_splits_of_a_graph(rows: int, max_context_len: int, kv_heads: int, fewest: int, most: int) -> None:
    table_len = -(-max_context_len // 256) * 256
    assert fewest <= choose_graph_splits(GraphBounds(rows, max_context_len), table_len, kv_heads, H200_SMS) <= most


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 128}, "block_size is 128, flash-attn takes 256 and more"),
        ({"dtype": torch.float32}, "dtype is torch.float32, flash-attn takes bfloat16 and float16"),
    ],
)
def test_shapes_that_flash_attn_does_not_take(flash: Flash, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FlashAttention(replace(SHAPE, **change), H200_SMS)


def test_an_extension_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extension of another version may take other arguments, in another order: it is never called."""
    monkeypatch.setitem(sys.modules, "flash_attn_2_cuda", None)
    with pytest.raises(ImportError, match=r"flash_attn cannot be imported \(.*\); install flash-attn"):
        FlashAttention(SHAPE, H200_SMS)
    monkeypatch.setitem(sys.modules, "flash_attn_2_cuda", ModuleType("flash_attn_2_cuda"))
    with pytest.raises(ImportError, match=r"flash-attn .* has no fwd_kvcache; install flash-attn"):
        FlashAttention(SHAPE, H200_SMS)
    other = Flash().module()
    other.varlen_fwd.__doc__ = signature_of_pybind("varlen_fwd", 22)
    monkeypatch.setitem(sys.modules, "flash_attn_2_cuda", other)
    with pytest.raises(ImportError, match=r"varlen_fwd of flash-attn .* takes 22 arguments, not 21; install"):
        FlashAttention(SHAPE, H200_SMS)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("query", lambda x: x.bfloat16(), "query is torch.bfloat16"),
        ("query", lambda x: x.mT.contiguous().mT, "query has strides"),
        ("key_cache", lambda x: x.contiguous(), r"key_cache.transpose\(1, 2\) has"),
        ("value_cache", lambda x: x.contiguous(), r"value_cache.transpose\(1, 2\) has"),
        ("value_cache", lambda x: x[:1], "value_cache has shape"),
        ("block_tables", lambda x: x[:1], "block_tables has shape"),
        ("block_tables", lambda x: x.long(), "block_tables is torch.int64"),
        ("block_tables", lambda x: x[:, :2], "block_tables has 2 columns, the longest context takes 3"),
        ("work", lambda x: x.long(), "work is torch.int64"),
        ("work", lambda x: x[1:], "work has shape"),
        ("out", lambda x: x[1:], "out has shape"),
    ],
)
def test_what_does_not_fit(flash: Flash, name: str, make, message: str) -> None:
    batch = Batch(Case([(1, 600), (20, 40)], SHAPE, flash_layout=True), CPU)
    backend = FlashAttention(SHAPE, H200_SMS)
    plan = backend.plan(batch.query_lens, batch.context_lens)
    arguments = attend_arguments(batch, plan)
    attend_with(backend, arguments)
    with pytest.raises(ValueError, match=message):
        attend_with(backend, arguments | {name: make(arguments[name])})


@pytest.mark.skipif(
    importlib.util.find_spec("flash_attn_2_cuda") is None, reason="needs flash-attn: pip install '.[flash-attn]'"
)
def test_the_stand_in_takes_what_the_real_one_does() -> None:
    """The extension names no arguments; their kinds tell a flag from a tensor and a number."""
    extension = importlib.import_module("flash_attn_2_cuda")
    flags_of = {
        fwd_kvcache: ["is_causal", "is_rotary_interleaved"],
        varlen_fwd: ["zero_tensors", "is_causal", "return_softmax"],
    }
    for function, flags in flags_of.items():
        kinds = re.findall(r"arg\d+: (.*?)(?=, arg|\) ->)", getattr(extension, function.__name__).__doc__)
        names = list(inspect.signature(function).parameters)
        assert len(kinds) == len(names)
        assert [name for name, kind in zip(names, kinds, strict=True) if kind == "bool"] == flags
        assert "Tensor" in kinds[names.index("out")]
        assert "Tensor" in kinds[names.index("block_table")]


STEPS = {
    "256 x 1k": [(1, 1024)] * 256,
    "32 x 8k": [(1, 8192)] * 32,
    "1 x 128k": [(1, 131072)],
    "one long among short": [(1, 150)] * 100 + [(1, 100_000)],
    "prefill 1 x 8k": [(8192, 8192)],
    "end of 100k": [(200, 100_000)],
    "mixed": [(1, 900)] * 60 + [(5, 1000), (1, 70), (40, 40), (700, 1900), (1500, 1500)],
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(16, 8), (32, 8)])
@pytest.mark.parametrize("step", STEPS)
def test_the_real_one(device: torch.device, step: str, heads: tuple[int, int], dtype: torch.dtype) -> None:
    """Against float64, and against our own kernel on the same cache."""
    pytest.importorskip("flash_attn_2_cuda", reason="needs flash-attn: pip install '.[flash-attn]'")
    batch = Batch(Case(STEPS[step], AttentionShape(*heads, 128, 256, dtype), flash_layout=True), device)
    result = attend(batch)
    own = PagedAttention(batch.case.shape, H200_SMS, device)
    plan = own.plan(batch.query_lens, batch.context_lens)
    work, out = torch.from_numpy(plan.work).to(device), torch.full_like(batch.query, torch.nan)
    step, cache = own.stage(plan, work, batch.block_tables), own.view_cache(batch.cache)
    own.attend(batch.query, cache, step, batch.scale, out)
    for one, other in ((result, batch.expected), (out, batch.expected), (result, out)):
        error = (one.double() - other.double()).norm() / batch.expected.norm()
        assert error < (4e-3 if dtype == torch.bfloat16 else 6e-4)
