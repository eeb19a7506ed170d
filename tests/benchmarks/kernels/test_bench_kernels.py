"""bench_kernels.py: the bytes that a case says its kernel moves are those that the kernel's twin touches."""

import json
import os
import subprocess
import sys

import pytest
import torch

from benchmarks.kernels import bench_kernels, sampling_cases, targets
from benchmarks.kernels.attention_cases import attention_case
from benchmarks.kernels.cases import ModelShape, grouped
from benchmarks.kernels.layer_cases import (
    add_rms_norm_case,
    embed_tokens_case,
    linear_silu_and_mul_case,
    rms_norm_case,
    rope_store_case,
    silu_and_mul_case,
)
from benchmarks.rig.ceilings import Ceilings
from kernels import reference
from tests import ROOT
from tests.benchmarks import running

ROWS = [(1, 5), (1, 16), (3, 21)]
CPU = torch.device("cpu")
LAYER_KERNELS = (
    "rms_norm",
    "add_rms_norm",
    "silu_and_mul",
    "linear_silu_and_mul",
    "embed_tokens",
    "qk_norm_rope_store",
)


@pytest.fixture(scope="module")
def small():
    """A case of each kernel that is small enough to count by hand."""
    model = ModelShape("small", 8, 12, heads=4, kv_heads=2, head_dim=4, vocab_size=40)
    return {
        "rms_norm": rms_norm_case(model, 3),
        "add_rms_norm": add_rms_norm_case(model, 3),
        "silu_and_mul": silu_and_mul_case(model, 3),
        "linear_silu_and_mul": linear_silu_and_mul_case(model, 3),
        "embed_tokens": embed_tokens_case(model, 5),
        "qk_norm_rope_store": rope_store_case(model, 3, block_size=4),
        "paged_attention": attention_case(model, "mixed", ROWS, 16),
    }


def run(case, tensors):
    """All tensors, after the twin has worked on a copy of them."""
    after = {name: tensor.clone() for name, tensor in tensors.items()}
    getattr(reference, case.kernel)(**grouped({**after, **case.scalars}))
    return after


def is_read(case, tensors, name, piece):
    """Whether any other result changes when this piece of a tensor changes."""
    spoiled = tensors | {name: tensors[name].clone()}
    target = spoiled[name].view(-1)[piece]
    target.copy_(torch.nan if target.is_floating_point() else torch.where(target > 0, target - 1, 1))
    outcomes = []
    for given in (tensors, spoiled):
        try:
            outcomes.append(run(case, given))
        except (RuntimeError, IndexError):
            return True
        outcomes[-1][name].view(-1)[piece] = 0
    return not all(torch.equal(outcomes[0][each], outcomes[1][each]) for each in tensors)


def count_bytes(case):
    """Bytes that the twin reads and writes, found by changing vectors of floats and single integers."""
    torch.manual_seed(0)
    total = 0
    made = case.tensors(CPU)
    tensors = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in made.items()}
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()} | {"out": torch.randn(made["out"].shape)}
    if "cos_sin" in tensors:  # fewer positions, so that the count is quick
        tensors |= {"cos_sin": tensors["cos_sin"][:50], "positions": torch.arange(len(made["positions"])).int()}
    after = run(case, tensors)
    for name, tensor in tensors.items():
        total += made[name].itemsize * int((after[name] != tensor).sum())
        size = tensor.shape[-1] if tensor.is_floating_point() else 1
        pieces = [slice(start, start + size) for start in range(0, tensor.numel(), size)]
        total += made[name].itemsize * size * sum(is_read(case, tensors, name, piece) for piece in pieces)
    return total


@pytest.mark.parametrize("kernel", LAYER_KERNELS)
def test_bytes_of_a_layer(small, kernel):
    assert small[kernel].bytes_moved == count_bytes(small[kernel])


def test_bytes_of_attention(small):
    assert small["paged_attention"].bytes_moved == count_bytes(small["paged_attention"])


def test_operations_of_attention(small):
    pairs = sum(context - queries + 1 + i for queries, context in ROWS for i in range(queries))
    assert small["paged_attention"].operations == pairs * 4 * 2 * (2 * 4), "heads, products, operations"


def test_bytes_of_sampling():
    penalties = sampling_cases.adjust_logits_case(5, reference.adjust_logits, 40, 300)
    for case in (sampling_cases.sample_case(5, "all kinds", 300), sampling_cases.log_probs_case(5, 4, 300), penalties):
        assert case.bytes_moved == case.bytes_taken(), "each tensor is read or written once"


@pytest.mark.parametrize("kernel", LAYER_KERNELS)
def test_torch_does_the_work_of_our_kernel(small, kernel):
    same_work(small[kernel])


@pytest.mark.parametrize(
    "kind", ["greedy", "no filter", "top_k 20, top_p 0.95", "top_p 0.95", "min_p 0.05", "all kinds"]
)
def test_torch_samples_as_our_kernel(kind):
    same_work(sampling_cases.sample_case(11, kind, 3000))


def test_torch_looks_up_as_our_kernel():
    same_work(sampling_cases.log_probs_case(11, 5, 3000))


def test_torch_penalizes_as_our_kernel():
    same_work(sampling_cases.adjust_logits_case(7, reference.adjust_logits, 200, 300))


def same_work(case):
    torch.manual_seed(1)
    tensors = {name: t.float() if t.is_floating_point() else t for name, t in case.tensors(CPU).items()}
    if case.kernel == "log_probs":  # without ties
        tensors["logits"] = torch.randn(tensors["logits"].shape)
    expected = run(case, tensors)
    returned = case.eager(**tensors)
    for name, tensor in tensors.items():
        torch.testing.assert_close(returned if name == "out" else tensor, expected[name])


@pytest.mark.slow
def test_the_cpu_kernels_are_measured():
    command = [sys.executable, ROOT / "benchmarks" / "bench_cpu_kernels.py", "--rows", "2", "--budget-s", "0"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["kernel"] for line in lines} == {"sample", "adjust_logits", "log_probs"}
    assert {line["logits"] for line in lines} == {"bfloat16", "float32"}
    assert len(lines) == len(
        {tuple(sorted(line.items() - {("us_a_row_ours", line["us_a_row_ours"])})) for line in lines}
    )
    assert all(line["us_a_row_ours"] > 0 for line in lines)


LAUNCH_ALL = """
import torch
from benchmarks.kernels import bench_kernels
from tests import ROOT
from tests.benchmarks import running
from tests.kernels.gpu.compiling import Launch, list_variants
meta = torch.device("meta")
for quick in (True, False):
    cases = list(bench_kernels.all_cases(None, quick))
    assert len({(case.kernel, case.model, *case.step.items()) for case in cases}) == len(cases)
    assert all(case.bytes_moved > 0 for case in cases)
    variants = list_variants([Launch(case.kernel, case.ours(case.tensors(meta))) for case in cases], 90)
    print(*sorted({variant.kernel for variant in variants}))
"""


@pytest.mark.slow
def test_every_case_can_be_launched():
    """On tensors without memory, by a driver without a device: the launchers check their arguments."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", LAUNCH_ALL]
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    quick, full = (set(line.split()) for line in done.stdout.splitlines())
    assert quick == full >= {"attention_kernel", "_gated_linear_kernel", "_rms_norm_kernel", "choose_kernel"}


def test_shares_of_the_ceilings(small):
    ceilings = Ceilings(copy=4e12, matmul=8e14)
    case = small["paged_attention"]
    figures = bench_kernels.shares(case, 1e-9, ceilings)
    assert figures["of_copy"] == pytest.approx(case.bytes_moved / 1e-9 / 4e12, abs=1e-3)
    assert figures["of_matmul"] == pytest.approx(case.operations / 1e-9 / 8e14, abs=1e-3)
    assert "of_matmul" not in bench_kernels.shares(small["rms_norm"], 1e-9, ceilings)


def test_targets():
    attention = {"kernel": "paged_attention", "model": "m"}
    decode = attention | {"phase": "decode", "rows": 256, "context": 1024, "of_copy": 0.9}
    prefill = attention | {"phase": "prefill", "rows": 1, "context": 8192, "of_copy": 0.1}
    norm = {"kernel": "rms_norm", "model": "m", "tokens": 256, "us_ours": 3.0, "of_copy": 0.79}
    gated = {"kernel": "linear_silu_and_mul", "model": "m", "tokens": 64, "us_cublas": 10.0}
    sample = {"kernel": "sample", "model": "m", "rows": 256, "kind": "greedy", "us_ours": 60.5}
    for figures, said in (
        (decode | {"us_ours": 90.0, "us_flash_attn": 100.0}, "2 of 2"),
        (decode | {"us_ours": 110.0, "us_flash_attn": 100.0}, "1 of 2"),
        (decode | {"us_ours": 90.0, "rows": 1}, "0 of 0"),
        (prefill | {"us_ours": 129.0, "us_flash_attn": 100.0}, "1 of 1"),
        (prefill | {"us_ours": 131.0, "us_flash_attn": 100.0}, "0 of 1"),
        (norm, "0 of 1"),
        (norm | {"of_copy": 0.81}, "1 of 1"),
        (norm | {"tokens": 32}, "0 of 0"),
        (gated | {"us_ours": 9.9}, "1 of 1"),
        (gated | {"us_ours": 10.1}, "0 of 1"),
        (gated | {"us_ours": 9.9, "tokens": 65}, "0 of 0"),
        (sample, "0 of 1"),
        (sample | {"us_ours": 59.5}, "1 of 1"),
        ({"kernel": "sample", "model": "m", "rows": 256, "kind": "greedy", "error_ours": "oh"}, "0 of 0"),
    ):
        assert targets.summarize([figures]).endswith(f"{said} targets met")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine where torch finds no CUDA device")
def test_without_a_gpu_it_says_so():
    done = running.run("bench_kernels.py", "--quick")
    assert done.returncode == 2
    assert "CUDA" in done.stderr
    assert not done.stdout
