"""Weights that a keeper has are the same, are there at once, and are not used where anything differs."""

import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from common.errors import KeeperError
from executor_svc.keeper.link import KeeperLink
from executor_svc.model import kept_weights
from executor_svc.model.checkpoint import SINGLE_FILE, Checkpoint
from executor_svc.model.config import read_config
from executor_svc.model.kept_weights import LoadedWeights, WeightKeeper, obtain_weights
from executor_svc.model.packing import TensorSpec
from executor_svc.model.prepared import WeightLayout
from executor_svc.model.rank_group import SINGLE_RANK, RankGroup
from executor_svc.model.sharding import Shard
from executor_svc.model.source_key import source_key
from executor_svc.model.weight_file import WeightWriter, map_tensors
from executor_svc.options import ExecutorOptions
from executor_svc.startup import start_executor
from kernels.cpu.isa import ISAS, processor_flags
from tests.executor.conftest import Make
from tests.executor.harness import Driver, ExecutorLimits, Pool, Row, logits
from tests.executor.kept import Keeper, Kept
from tests.executor.ranks import in_threads
from tests.support.checkpoints import VOCAB_SIZE
from tests.support.eventually import eventually

CPU = torch.device("cpu")
needs_cpp = pytest.mark.skipif(
    not any(processor_flags().issuperset(isa.needs) for isa in ISAS), reason="needs a processor with AVX2 or more"
)


class Log:
    """Takes what is logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    warning = info


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr(kept_weights, "log", log)
    return log


@pytest.fixture
def folder(checkpoint: Make, tmp_path: Path) -> Path:
    """A checkpoint that may be changed."""
    shutil.copytree(checkpoint(preset="tiny", num_layers=2), tmp_path / "model")
    return tmp_path / "model"


def obtain(folder: Path, keeper: WeightKeeper | None, group: RankGroup = SINGLE_RANK, **options: Any) -> LoadedWeights:
    config = read_config(folder)
    layout = WeightLayout(config, Shard.of(config, group.rank, group.size), torch.float32)
    with Checkpoint(folder) as checkpoint:
        return obtain_weights(checkpoint, layout, CPU, group, keeper, **options)


def assert_equal(one: LoadedWeights, other: LoadedWeights) -> None:
    assert one.fingerprint == other.fingerprint
    assert list(one.weights.tensors) == list(other.weights.tensors)
    assert all(torch.equal(tensor, other.weights.tensors[name]) for name, tensor in one.weights.tensors.items())


# --- a model computes the same with them ---


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"preset": "tiny"}, {"dtype": "float32"}),
        ({"preset": "tiny", "tied": False, "attention_bias": True}, {"dtype": "float32"}),
        ({"preset": "tiny", "experts": True, "mlp_only_layers": [0]}, {"dtype": "float32"}),
        pytest.param({"preset": "0.6B"}, {"dtype": "bfloat16"}, marks=needs_cpp),
        pytest.param({"preset": "0.6B", "tied": False, "attention_bias": True}, {"dtype": "bfloat16"}, marks=needs_cpp),
        pytest.param({"preset": "30B-A3B", "experts": True}, {"dtype": "bfloat16"}, marks=needs_cpp),
        pytest.param({"preset": "0.6B"}, {"dtype": "bfloat16", "quantization": "int8"}, marks=needs_cpp),
        pytest.param({"preset": "0.6B", "tied": False}, {"dtype": "bfloat16", "quantization": "int8"}, marks=needs_cpp),
    ],
)
def test_scores_and_tokens_are_the_same(checkpoint: Make, config: dict[str, Any], options: dict[str, Any]) -> None:
    """Bit for bit: without a keeper, deposited and mapped."""
    folder = checkpoint(**config, num_layers=2, dtype=torch.bfloat16)
    rng = random.Random(0)
    prompts = [rng.choices(range(VOCAB_SIZE), k=length) for length in (3, 40)]
    keeper, found = Keeper(), []
    for given in (None, keeper, keeper):
        asked = ExecutorOptions(model=str(folder), device="cpu", num_blocks=16, threads=1, **options)
        started = start_executor(asked, given)
        runner, hello = started.runner, started.hello
        limits = ExecutorLimits.of(hello)
        scores = logits(runner, [Row(0, prompts[1], 40, Pool(16, 16).grow([], 40))], limits)
        found.append((scores, Driver(runner, limits).generate(prompts, 6), hello.fingerprint))
    assert keeper.calls == ["find source", "find fingerprint", "deposit", "find source"]
    for scores, *rest in found[1:]:
        assert torch.equal(scores, found[0][0])
        assert rest == list(found[0][1:])


@needs_cpp
def test_who_computes_otherwise_has_other_weights(checkpoint: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(preset="0.6B", num_layers=1, dtype=torch.bfloat16)
    keeper, options = Keeper(), {"model": str(folder), "device": "cpu", "num_blocks": 8, "threads": 1}
    for asked in ({"dtype": "float32"}, {"dtype": "float16"}, {"quantization": "int8"}, {}):
        start_executor(ExecutorOptions(**options, **asked), keeper)
    monkeypatch.setenv("BATON_CPU_ISA", "torch")
    start_executor(ExecutorOptions(**options), keeper)
    assert keeper.calls == 5 * ["find source", "find fingerprint", "deposit"]
    assert len({(kept.kind.dtype, kept.kind.quantization, kept.kind.packing) for kept in keeper.kept}) == 5


def test_the_demo_model_takes_the_same_road() -> None:
    keeper = Keeper()
    for _ in range(2):
        start_executor(ExecutorOptions(device="cpu", num_blocks=8, threads=1), keeper)
    assert keeper.calls == ["find source", "find fingerprint", "deposit", "find source"]


# --- memory ---


def test_processes_share_the_memory(folder: Path) -> None:
    """What another process maps are the pages of the same file: it has none of its own."""
    first = obtain(folder, Keeper())
    assert first.held is not None
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_map, args=(first, theirs))
    process.start()
    inode, anonymous, total = ours.recv()
    process.join()
    assert inode == os.fstat(first.held.memory_fd).st_ino
    assert anonymous == 0
    assert total == sum(float(tensor.double().sum()) for tensor in first.weights.tensors.values())


def _map(first: LoadedWeights, pipe: Any) -> None:
    held = first.held
    assert held is not None
    tensors, _ = map_tensors(held.memory_fd, held.num_bytes, first.weights.layout.specs, held.kind)
    total = sum(float(tensor.double().sum()) for tensor in tensors.values())
    address = f"{tensors['embedding'].data_ptr() // 4096 * 4096:x}-"
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    head = next(line for line in lines if line.startswith(address)).split()
    assert head[1] == "r--p"
    anonymous = next(line for line in lines if line.startswith("Anonymous:"))
    pipe.send((int(head[4]), int(anonymous.split()[1]), total))


OBTAIN = """
import os, sys
from pathlib import Path
from executor_svc.keeper.link import KeeperLink
from tests.executor.test_kept_weights import obtain
loaded = obtain(Path(sys.argv[1]), KeeperLink(Path(sys.argv[2]), "second"))
print(loaded.kept, loaded.fingerprint, os.fstat(loaded.held.memory_fd).st_ino)
"""


def test_a_real_keeper_hands_them_to_another_process(folder: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    socket = tmp_path / "keeper.sock"
    keeper = subprocess.Popen([sys.executable, "-m", "keeper_svc", "--socket", str(socket)])
    try:
        eventually(socket.exists)
        link = KeeperLink(socket, "first")
        first = obtain(folder, link)
        arguments = [sys.executable, "-c", OBTAIN, str(folder), str(socket)]
        second = subprocess.run(arguments, capture_output=True, check=True, text=True).stdout.split()
        assert second == ["True", first.fingerprint, str(file_of(first))]
        link.close()
    finally:
        keeper.kill()
        keeper.wait()


def test_without_a_keeper_there_is_no_file(folder: Path) -> None:
    loaded = obtain(folder, None)
    assert (loaded.kept, loaded.held) == (False, None)


def test_a_system_that_gives_no_such_memory(folder: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, num_bytes: int, **_: Any) -> int:
        raise KeeperError(f"no memory file of {num_bytes} bytes")

    monkeypatch.setattr("executor_svc.model.weight_file.create_memory", refuse)
    loaded = obtain(folder, Keeper())
    assert loaded.held is None
    assert [event for event, _ in log.lines] == ["weights cannot be shared"]
    assert_equal(loaded, obtain(folder, None))


# --- when they are used ---


def test_weights_are_read_once(folder: Path) -> None:
    keeper = Keeper()
    first, second = obtain(folder, keeper), obtain(folder, keeper)
    assert (first.kept, second.kept) == (False, True)
    assert_equal(first, second)
    assert_equal(first, obtain(folder, None))
    assert file_of(first) == file_of(second)


def file_of(loaded: LoadedWeights) -> int:
    assert loaded.held is not None
    return os.fstat(loaded.held.memory_fd).st_ino


def touch(path: Path) -> None:
    os.utime(path)


def copy(path: Path) -> None:
    shutil.copy2(path, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def write_in_place(path: Path) -> None:
    """The same bytes, and the times set back as far as a program can."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(last)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def new_header(path: Path) -> None:
    save_file(load_file(path), path, metadata={"format": "pt", "note": "another"})


@pytest.mark.parametrize("change", [touch, copy, write_in_place, new_header])
def test_files_that_look_otherwise_are_read(folder: Path, change: Any) -> None:
    """The content is the same, so what is kept is mapped all the same, and found at once from now on."""
    keeper = Keeper()
    first = obtain(folder, keeper)
    time.sleep(0.02)  # a file's times are as exact as the kernel's clock ticks
    change(folder / SINGLE_FILE)
    second, third = obtain(folder, keeper), obtain(folder, keeper)
    assert (second.kept, third.kept) == (False, True)
    assert file_of(first) == file_of(second) == file_of(third)
    assert len(keeper.kept) == 1
    assert_equal(first, second)
    assert_equal(first, third)


def test_other_content_is_another_model(folder: Path, checkpoint: Make) -> None:
    keeper = Keeper()
    first = obtain(folder, keeper)
    shutil.copy(checkpoint(preset="tiny", num_layers=2, seed=1) / SINGLE_FILE, folder)
    second = obtain(folder, keeper)
    assert not second.kept
    assert second.fingerprint != first.fingerprint
    assert [kept.fingerprint for kept in keeper.kept] == [first.fingerprint, second.fingerprint]


def test_another_configuration_is_another_source(folder: Path) -> None:
    config = read_config(folder)
    key = source_key(folder, config)
    assert source_key(folder, msgspec.structs.replace(config, rms_norm_eps=1e-5)) != key
    assert source_key(folder, msgspec.structs.replace(config, max_positions=99)) == key, "it changes no weight"


def test_files_that_change_while_they_are_read_are_no_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, read = Keeper(), kept_weights.read_weights

    def read_and_touch(*arguments: Any) -> Any:
        result = read(*arguments)
        time.sleep(0.02)
        touch(folder / SINGLE_FILE)
        return result

    monkeypatch.setattr(kept_weights, "read_weights", read_and_touch)
    obtain(folder, keeper)
    assert [kept.sources for kept in keeper.kept] == [set()]


def test_verifying_reads_all_the_same(folder: Path, log: Log) -> None:
    keeper = Keeper()
    first, second = obtain(folder, keeper), obtain(folder, keeper, verify=True)
    assert not second.kept
    assert file_of(first) == file_of(second)
    assert_equal(first, second)
    assert log.lines == [("weights verified", {"fingerprint": first.fingerprint, "kept": True})]
    assert len(keeper.kept) == 1


def test_verifying_finds_kept_weights_of_other_content(folder: Path, log: Log) -> None:
    """As if the files' state had lied."""
    keeper = Keeper()
    first = obtain(folder, keeper)
    tensors = load_file(folder / SINGLE_FILE)
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, folder / SINGLE_FILE)
    keeper.kept[0].sources = {source_key(folder, read_config(folder))}
    assert obtain(folder, keeper).fingerprint == first.fingerprint, "the state is believed"
    verified = obtain(folder, keeper, verify=True)
    assert file_of(verified) != file_of(first)
    assert log.lines == [("weights verified", {"fingerprint": verified.fingerprint, "kept": False})]
    assert obtain(folder, keeper).fingerprint == verified.fingerprint != first.fingerprint


def replace_file(kept: Kept, specs: Mapping[str, TensorSpec], fingerprint: str) -> None:
    with WeightWriter(specs, kept.kind) as writer:
        writer.seal(fingerprint)
        kept.memory, kept.num_bytes = os.dup(writer.memory), writer.num_bytes


def test_kept_weights_that_cannot_be_used_are_read_anew(folder: Path, log: Log, checkpoint: Make) -> None:
    """Such as those of a release that named tensors otherwise."""
    keeper = Keeper()
    good = obtain(folder, keeper)
    specs = dict(good.weights.layout.specs)
    specs["layers.0.qkv"] = specs.pop("layers.0.qkv.weight")
    replace_file(keeper.kept[0], specs, good.fingerprint)
    again = obtain(folder, keeper)
    assert not again.kept
    assert_equal(good, again)
    reason = "it has other tensors: layers.0.qkv, layers.0.qkv.weight (2 differ)"
    assert log.lines == [("kept weights not used", {"reason": reason})] * 2


def test_kept_weights_of_another_fingerprint_than_they_are_kept_for(folder: Path, log: Log) -> None:
    keeper = Keeper()
    good = obtain(folder, keeper)
    replace_file(keeper.kept[0], good.weights.layout.specs, "e" * 32)
    touch(folder / SINGLE_FILE)
    assert_equal(good, obtain(folder, keeper))
    assert log.lines == [
        ("kept weights not used", {"reason": f"it holds the model {'e' * 32}, not {good.fingerprint}"})
    ]


def test_a_keeper_that_is_gone(folder: Path, log: Log) -> None:
    loaded = obtain(folder, Keeper(fails=True))
    assert_equal(loaded, obtain(folder, None))
    assert [event for event, _ in log.lines] == ["kept weights not found"] * 2 + ["weights not deposited"]
    assert loaded.held is None


# --- ranks ---


@pytest.mark.parametrize("lost", [None, 0, 1])
def test_all_ranks_map_or_all_read(folder: Path, lost: int | None) -> None:
    keepers = [Keeper(), Keeper()]
    first = in_threads(2, lambda group: obtain(folder, keepers[group.rank], group))
    if lost is not None:
        keepers[lost].kept.clear()
    second = in_threads(2, lambda group: obtain(folder, keepers[group.rank], group))
    assert [loaded.kept for loaded in second] == [lost is None] * 2
    for one, other in zip(first, second, strict=True):
        assert_equal(one, other)
    assert {keeper.kept[0].kind.rank for keeper in keepers} == {0, 1}


def test_a_rank_without_a_keeper_reads_with_the_others(folder: Path) -> None:
    keepers = [Keeper(), Keeper()]
    in_threads(2, lambda group: obtain(folder, keepers[group.rank], group))
    loaded = in_threads(2, lambda group: obtain(folder, keepers[0] if group.rank == 0 else None, group))
    assert [(rank.kept, rank.held is not None) for rank in loaded] == [(False, True), (False, False)]
