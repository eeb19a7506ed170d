"""The packs that a borrowed GPU machine runs, one a call: their steps, and what each step's result depends on.

A machine is there for 15 minutes, its start included, so a pack takes at most `SECONDS` from its first line to its last
and asks nothing of what an earlier one has left on the machine. What has passed stays in the ledger (`ledger.py`): a
step is due again when code that it depends on, its command or a version has changed.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT
from tests.gpu_session.code_hash import OURS, code_hash

SECONDS = 270.0
"""From a pack's first line to its last."""
CALL_LIMIT_S = 300
"""What to give a call as its limit: a pack ends by itself before it."""

OUR_MODULE = re.compile(rf"\b(?:{'|'.join(OURS)})(?:[./]\w+)+")
"""The name or the path of a module of ours in a command."""
SERVICES = ("common", "scheduler_svc", "keeper_svc", "kernels.cpu", "executor_svc.devices.cpu", "executor_svc.service")
"""Code whose faults need no GPU to be found: a change there makes no step due that only computes."""
OTHERS = ("common", "scheduler_svc", "kernels.cpu")
"""Code that does not count for what the keeper rests on."""
SWAPPED = ("executor_svc.__main__", "keeper_svc.server")
"""Processes that take part in a swap; their code counts, with the messages between them."""
KEPT = (
    "tools.gpu_keeper_proof",
    "executor_svc.devices.cuda_memory",
    "executor_svc.devices.cuda_mapping",
    "executor_svc.devices.cuda_weights",
    "executor_svc.devices.kept_cache",
    "keeper_svc.server",
)


@dataclass(frozen=True)
class Item:
    """What the ledger has a line of: a step, or one of the test files that a step runs.

    Attributes:
        name: unique among all packs. It has no path in it, so that what has passed still counts after a move.
        code: modules that the result depends on, see `code_hash`.
        left_out: modules that do not count among what those import.
        file: the test file.
    """

    name: str
    code: tuple[str, ...] = ()
    left_out: tuple[str, ...] = SERVICES
    file: str = ""


@dataclass(frozen=True)
class Step:
    """A command of a pack.

    Attributes:
        name: unique among all packs.
        command: with `{python}`, `{scratch}` (a folder), `{carried}` (the folder that came along), `{seconds}` (until
            it has to end) and, as a part of its own, `{files}`: the test files that are due.
        predicted_s: seconds on an H100, predicted before anything had run.
        limit_s: the most seconds that it may take.
        least_s: with less than that left it is not started.
        items: test files that it runs, each with a line in the ledger; by default the step itself is the one item.
        code: of the step's own item.
        left_out: likewise.
        is_always_due: it says where the other steps run, and takes little.
        keep: a folder that comes back as NAME.tar.gz, with placeholders as in `command`.
        settled: exit codes that give the step's answer, so that it is not run again.
        may_fail: exit codes of a rehearsal that are as they must be: values are wrong where kernels compute nothing.
    """

    name: str
    command: tuple[str, ...]
    predicted_s: float
    limit_s: float
    least_s: float = 10.0
    items: tuple[Item, ...] = ()
    code: tuple[str, ...] = ()
    left_out: tuple[str, ...] = SERVICES
    is_always_due: bool = False
    keep: str = ""
    settled: tuple[int, ...] = (0,)
    may_fail: tuple[int, ...] = ()

    @property
    def parts(self) -> tuple[Item, ...]:
        """What the ledger has lines of."""
        return self.items or (Item(self.name, self.code, self.left_out),)

    def key(self, item: Item, versions: Mapping[str, str]) -> str:
        """Hash what a result of an item depends on: code, the command and versions. 16 hex digits.

        Modules that the command names may move: those whose code counts are among the item's.
        """
        command = (OUR_MODULE.sub("ours", part) for part in self.command)
        told = [item.name, code_hash(item.code, item.left_out), *command]
        told += [f"{name}=={version}" for name, version in sorted(versions.items())]
        return hashlib.sha256("\0".join(told).encode()).hexdigest()[:16]


def packs(rehearsal: bool = False) -> dict[str, tuple[Step, ...]]:
    """All packs by their names, most valuable first; of a rehearsal, with sizes that a pretended GPU can carry."""
    makers = {
        "values": _values,
        "bench": _bench,
        "kernels": _kernels,
        "keeper": _keeper,
        "failover": _failover,
        "shapes": _shapes,
    }
    return {name: tuple(make(REHEARSED if rehearsal else MEASURED)) for name, make in makers.items()}


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        bench: further arguments of bench_gpu.py.
        profile_steps: steps that the profiler records.
        tests: further arguments of by_file.
        steps: further arguments of shape_steps.
        few_rows: further arguments of shape_steps for a model after which little memory is left.
        facts: further arguments of the kill facts.
        pool_gib: KV memory of an executor that is killed and replaced.
        failover: further arguments of bench_failover.py.
    """

    bench: tuple[str, ...]
    profile_steps: int
    tests: tuple[str, ...]
    steps: tuple[str, ...]
    few_rows: tuple[str, ...]
    facts: tuple[str, ...]
    pool_gib: int
    failover: tuple[str, ...]


_FEW_ROWS = ("--max-rows", "128", "--rows", "1,16,64,128")  # 61 GB of weights and KV of 256 rows are over an H100
_FEW_STEPS = ("--steps", "3", "--prefill", "512", "--undrawn")
MEASURED = Sizes(
    bench=("--repeats", "2"),
    profile_steps=100,
    tests=("--at-once", "4", "--most-at-once", "10", "--test-seconds", "60"),
    steps=(),
    few_rows=_FEW_ROWS,
    facts=("--gb", "1,20,60"),
    pool_gib=40,
    failover=("--kills", "2", "--streams", "16", "--max-tokens", "2000"),
)
REHEARSED = Sizes(
    bench=("--num-seqs", "4", "--max-tokens", "16", "--repeats", "1", "--executor-option=--kv-cache-memory=1"),
    profile_steps=2,
    tests=("--at-once", "2", "--test-seconds", "10", "--host-gib", "9", "--marked", "gpu and not slow"),
    steps=_FEW_STEPS,
    few_rows=(*_FEW_ROWS, *_FEW_STEPS),
    facts=("--gb", "0.01,0.02", "--pinned-gb", "0.01"),
    pool_gib=1,
    failover=("--kills", "1", "--streams", "4", "--max-tokens", "500"),
)
WRONG_VALUES = (1, 3)
"""Exit codes of tests and comparisons where kernels compute nothing: failed, or not all run."""

KERNELS = "tests/kernels/gpu"
SHAPES = f"{KERNELS}/attention/test_attention_shapes.py"
OF_VALUES = {
    "tests of recorded steps": "tests/executor_svc/devices/test_recorded_steps.py",
    "tests of an executor": "tests/executor_svc/devices/test_gpu.py",
    "tests of rope_store": f"{KERNELS}/layers/test_rope_store.py",
    "tests of norm": f"{KERNELS}/layers/test_norm.py",
    "tests of activation": f"{KERNELS}/layers/test_activation.py",
    "tests of gated_linear": f"{KERNELS}/layers/test_gated_linear.py",
    "tests of embedding": f"{KERNELS}/layers/test_embedding.py",
    "tests of block_tables": f"{KERNELS}/attention/test_block_tables.py",
    "tests of sampler": f"{KERNELS}/sampling/test_sampler.py",
    "tests of paged_attention": f"{KERNELS}/attention/test_paged_attention.py",
    "tests of attention_shapes": SHAPES,
    "tests of flash_attention": f"{KERNELS}/attention/test_flash_attention.py",
    "tests of log_probs": f"{KERNELS}/sampling/test_log_probs.py",
    "tests of adjustments": f"{KERNELS}/sampling/test_adjustments.py",
}
"""Test files by their names in the ledger, which stay when a file moves."""
REAL_SHAPES = {"tests of attention_shapes at real sizes": SHAPES}
EXPERTS = {"tests of experts": f"{KERNELS}/moe/test_experts.py"}  # 20 GB of host memory where a GPU is only pretended
REAL_SIZES = "real_sizes"
BENCHED = ("8B", "0.6B")
"""Models whose kernels are measured."""


def _values(sizes: Sizes) -> Iterator[Step]:
    machine = "tests.gpu_session.machine"
    yield Step("machine", _module(machine), 15, 50, code=(machine,), is_always_due=True)
    generation = "tests.gpu_session.generation"
    yield Step("generation", _module(generation, "{scratch}"), 35, 80, 15, code=(generation,), may_fail=WRONG_VALUES)
    smoke = ("{python}", "{carried}/flash_attn_smoke_test.py")
    yield Step("flash_attn smoke", smoke, 12, 40, may_fail=WRONG_VALUES)
    yield _tests("tests", sizes, OF_VALUES, f"not {REAL_SIZES}", 120, 190)
    memcheck = "tests.gpu_session.memcheck"
    yield Step("memcheck", _module(memcheck, "{scratch}"), 35, 60, 25, code=(memcheck,), may_fail=(127,))


def _bench(sizes: Sizes) -> Iterator[Step]:
    bench = ("{python}", "benchmarks/bench_gpu.py", "--model", "0.6B", "--checkpoint", "{scratch}/0.6B", *sizes.bench)
    code = ("benchmarks.gpu.bench_gpu", "benchmarks.rig.recorded_executor")
    triton = ("--attention", "triton", "--out", "{scratch}/triton", "--profile-steps", str(sizes.profile_steps))
    yield Step(
        "bench triton", (*bench, *triton), 115, 150, 50, code=code, keep="{scratch}/triton/profile", may_fail=(4,)
    )
    # The table's width tells flash-attn how finely to split what a graph attends to.
    flash = ("--attention", "flash_attn", "--executor-option=--max-model-len=4096", "--out", "{scratch}/flash_attn")
    yield Step("bench flash_attn", (*bench, *flash, "--profile-steps", "0", "--no-in-process"), 45, 90, 40, code=code)
    for name, options in (
        ("triton", ("--attention", "triton")),
        ("triton-256", ("--attention", "triton", "--block-size", "256")),
        ("flash_attn", ("--attention", "flash_attn")),
    ):
        yield _shape_steps(f"steps 0.6B {name}", ("0.6B", *options, *sizes.steps), 20, 40)


def _kernels(sizes: Sizes) -> Iterator[Step]:
    for model in BENCHED:
        bench = ("{python}", "benchmarks/bench_kernels.py", "--quick", "--model", f"Qwen3-{model}")
        yield Step(f"bench kernels {model}", bench, 50, 90, 20, code=("benchmarks.kernels.bench_kernels",))
    yield _tests("real sizes", sizes, REAL_SHAPES, REAL_SIZES, 20, 60)
    yield _tests("experts", sizes, EXPERTS, "", 50, 80)


def _keeper(sizes: Sizes) -> Iterator[Step]:
    facts, proof = "tools.gpu_kill_facts", "tools.gpu_keeper_proof"
    command = _module(facts, *sizes.facts, "--seconds", "{seconds}")
    yield Step("kill facts", command, 60, 120, 30, code=(facts,), left_out=OTHERS)
    # 3 says that a statement is refuted, which is an answer.
    settled, may_fail = (0, 3), (2,)
    yield Step(
        "keeper proof", _module(proof), 40, 120, 30, code=KEPT, left_out=OTHERS, settled=settled, may_fail=may_fail
    )


def _failover(sizes: Sizes) -> Iterator[Step]:
    text, make = "{scratch}/0.6B-text", "{python} -m benchmarks.rig.text_checkpoint 0.6B"
    # Few rows mean few graphs, and a start of half the time.
    on_gpu = ("--device=cuda", "--attention=triton", f"--kv-cache-memory={sizes.pool_gib}", "--max-num-seqs=32")
    options = [f"--executor-option={option}" for option in on_gpu]
    bench = ("{python}", "benchmarks/bench_failover.py", "--model", text, *options, *sizes.failover, "--setting")
    for setting in ("standby", "rollout", "keeper", "alone"):
        # The checkpoint is written where no earlier step on this machine has done so.
        command = f"[ -e {text}/config.json ] || {make} {text} >&2; exec {' '.join((*bench, setting))}"
        code, left_out = ("benchmarks.service.bench_failover", *SWAPPED), ("scheduler_svc", "kernels.cpu")
        yield Step(f"swap {setting}", ("sh", "-c", command), 60, 85, 40, code=code, left_out=left_out)


def _shapes(sizes: Sizes) -> Iterator[Step]:
    for shape, options, predicted_s in (("8B", sizes.steps, 30), ("30B-A3B", sizes.few_rows, 45)):
        for attention in ("triton", "flash_attn"):
            yield _shape_steps(
                f"steps {shape} {attention}", (shape, "--attention", attention, *options), predicted_s, 90
            )


def _shape_steps(name: str, arguments: Sequence[str], predicted_s: float, limit_s: float) -> Step:
    module = "benchmarks.gpu.shape_steps"
    return Step(name, _module(module, *arguments), predicted_s, limit_s, 20, code=(module,))


def _tests(name: str, sizes: Sizes, files: Mapping[str, str], chosen: str, predicted_s: float, limit_s: float) -> Step:
    """Tests marked gpu of some files: those that `chosen` names, as pytest's -k does."""
    options = ("--seconds", "{seconds}", *sizes.tests, *(("--chosen", chosen) if chosen else ()))
    items = tuple(Item(label, (file, *_fixtures(file)), file=file) for label, file in files.items())
    command = _module("tests.gpu_session.by_file", *options, "{files}")
    return Step(name, command, predicted_s, limit_s, 30, items=items, may_fail=WRONG_VALUES)


def _fixtures(file: str) -> Iterator[str]:
    """The conftest.py of each folder that a test file lies in. That of all tests is about machines without a GPU."""
    for folder in list(Path(file).parents)[:-2]:
        if (ROOT / folder / "conftest.py").exists():
            yield str(folder / "conftest.py")


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return ("{python}", "-m", name, *arguments)
