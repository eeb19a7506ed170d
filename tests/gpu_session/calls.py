"""The steps of the three calls (tools/gpu_session.sh), as they run on a GPU and as they are rehearsed without one."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.gpu_session.session import Step

ROOT = Path(__file__).parents[2]
CALLS = ("first", "second", "third")
SECONDS = {"first": 510.0, "second": 540.0, "third": 570.0}
"""Of each call, from its start to its end; the machine ends a command after 600."""
EXPERTS = "tests/kernels/gpu/test_moe.py"  # 20 GB of host memory where a GPU is only pretended


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        bench: further arguments of bench_gpu.py.
        flash_bench: the same, for the run with flash-attn.
        tests: further arguments of by_file.
        peer: arguments of the peer.
        failover: further arguments of bench_failover.py.
    """

    bench: tuple[str, ...]
    flash_bench: tuple[str, ...]
    tests: tuple[str, ...]
    peer: tuple[str, ...]
    failover: tuple[str, ...]


MEASURED = Sizes(
    bench=("--repeats", "3", "--profile-steps", "100"),
    flash_bench=("--repeats", "3", "--profile-steps", "0"),
    tests=("--at-once", "3"),
    peer=("--repeats", "1"),
    failover=("--kills", "2", "--streams", "32", "--max-tokens", "2000"),
)
RIG_TESTS = ("--at-once", "1", "--test-seconds", "60", "--host-gib", "9", "--leave-out", EXPERTS)
_FEW = ("--num-seqs", "4", "--max-tokens", "16", "--repeats", "1")
REHEARSED = Sizes(
    bench=(*_FEW, "--profile-steps", "2"),
    flash_bench=(*_FEW, "--profile-steps", "0", "--executor-option=--kv-cache-memory=1"),  # few requests, a small pool
    tests=RIG_TESTS,
    peer=("--num-seqs", "2", "--max-tokens", "4", "--device", "cpu"),  # on a pretended GPU transformers waits for ever
    failover=("--kills", "1", "--streams", "4", "--max-tokens", "500"),
)


def steps(call: str, carried: Path, state: Path, scratch: Path, rehearsal: bool) -> list[Step]:
    """The steps of a call, in their order.

    Args:
        carried: folder of what came along.
        state: see `Session`.
        scratch: folder for checkpoints and the services' logs.
        rehearsal: see `Session`.
    """
    sizes = REHEARSED if rehearsal else MEASURED
    make = {"first": _first, "second": _second, "third": _third}[call]
    return make(sizes, carried, state, scratch)


def _first(sizes: Sizes, carried: Path, state: Path, scratch: Path) -> list[Step]:
    return [
        Step("versions", _module("tests.gpu_session.machine"), 60),
        Step("flash_attn_smoke", (sys.executable, str(carried / "flash_attn_smoke_test.py")), 100),
        Step("generation", _module("tests.gpu_session.generation", str(scratch)), 120, 20),
        _tests("gpu_tests", state, sizes.tests, 480),
    ]


def _second(sizes: Sizes, carried: Path, state: Path, scratch: Path) -> list[Step]:
    bench = (*_script("bench_gpu.py"), "--model", "0.6B", "--checkpoint", str(scratch / "0.6B"))
    triton, flash = scratch / "triton", scratch / "flash_attn"
    short = "--executor-option=--max-model-len=4096"  # it tells flash-attn how finely to split what a graph attends to
    with_triton = (*bench, "--attention", "triton", "--out", str(triton), *sizes.bench)
    with_flash = (*bench, "--attention", "flash_attn", short, "--out", str(flash), *sizes.flash_bench)
    return [
        Step("bench_triton", with_triton, 260, 60, keep=triton),
        Step("bench_flash_attn", with_flash, 160, 50),
        Step("bench_kernels", (*_script("bench_kernels.py"), "--quick"), 200, 20),
    ]


def _third(sizes: Sizes, carried: Path, state: Path, scratch: Path) -> list[Step]:
    weights, named = scratch / "0.6B", scratch / "0.6B-text"
    peer = _module("benchmarks.gpu.peer_transformers", str(weights), *sizes.peer)
    on_gpu = ("--device=cuda", "--attention=triton", "--kv-cache-memory=12")  # two executors share the GPU
    options = [f"--executor-option={option}" for option in on_gpu]
    failover = (*_script("bench_failover.py"), "--model", str(named), *options, *sizes.failover)
    make, make_named = _module("benchmarks.rig.checkpoints", "0.6B"), _module("tests.gpu_session.text_checkpoint")
    return [
        Step("keeper_proof", (sys.executable, str(ROOT / "tools" / "gpu_keeper_proof.py")), 180, 60, settled=(0, 2, 3)),
        _tests("gpu_tests_again", state, (*sizes.tests, "--rerun"), 110),
        Step("peer_transformers", _with_checkpoint(weights, make, peer), 180, 50),
        Step("swap_alone", _with_checkpoint(named, make_named, (*failover, "--setting", "alone")), 140, 50),
        Step("swap_sibling", _with_checkpoint(named, make_named, (*failover, "--setting", "sibling")), 120, 50),
        Step("bench_kernels_full", _script("bench_kernels.py"), 400, 40),
    ]


def _with_checkpoint(folder: Path, make: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
    """The command, with the checkpoint written before it where an earlier step on this machine has not."""
    made = shlex.join((*make, str(folder)))
    return ("sh", "-c", f"[ -e {folder}/config.json ] || {made} >&2; exec {shlex.join(command)}")


def _tests(name: str, state: Path, further: Sequence[str], limit_s: float) -> Step:
    """All tests marked gpu; both steps of the kind share a state, and the second goes on where the first stopped."""
    report = f"{name}.report.json"
    places = ("--state", str(state / "tests"), "--report", str(state / report), "--seconds", "{seconds}")
    return Step(name, _module("tests.gpu_session.by_file", *places, *further), limit_s, 30, report=report)


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *arguments)


def _script(name: str) -> tuple[str, ...]:
    return (sys.executable, str(ROOT / "benchmarks" / name))
