"""Weights that a keeper has are the same weights, in the same memory."""

import contextlib
import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import KeeperError
from executor_svc.devices.memfd_weights import MemfdWeights, NewMemfd
from executor_svc.keeper.link import KeeperLink
from executor_svc.model.checkpoint import Checkpoint
from executor_svc.model.kept_weights import LoadedWeights
from executor_svc.model.rank_group import RankGroup
from executor_svc.model.weight_file import read_tensors
from executor_svc.options import ExecutorOptions
from executor_svc.startup import start_executor
from tests.executor_svc.conftest import Make
from tests.executor_svc.fake_keeper import FakeKeeper
from tests.executor_svc.harness import Driver, ExecutorLimits, Pool, Row, logits, needs_cpp
from tests.executor_svc.obtaining import MEMFDS, assert_equal, file_of, obtain
from tests.executor_svc.ranks import in_threads
from tests.support.checkpoints import VOCAB_SIZE
from tests.support.eventually import eventually
from tests.support.logged import Log

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
    keeper, found = FakeKeeper(), []
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
    keeper, options = FakeKeeper(), {"model": str(folder), "device": "cpu", "num_blocks": 8, "threads": 1}
    for asked in ({"dtype": "float32"}, {"dtype": "float16"}, {"quantization": "int8"}, {}):
        start_executor(ExecutorOptions(**options, **asked), keeper)
    monkeypatch.setenv("BATON_CPU_ISA", "torch")
    start_executor(ExecutorOptions(**options), keeper)
    assert keeper.calls == 5 * ["find source", "find fingerprint", "deposit"]
    assert len({(kept.kind.dtype, kept.kind.quantization, kept.kind.packing) for kept in keeper.weights}) == 5


def test_the_demo_model_takes_the_same_road() -> None:
    keeper = FakeKeeper()
    for _ in range(2):
        start_executor(ExecutorOptions(device="cpu", num_blocks=8, threads=1), keeper)
    assert keeper.calls == ["find source", "find fingerprint", "deposit", "find source"]


# --- memory ---


def test_processes_share_the_memory(folder: Path) -> None:
    """What another process maps are the pages of the same file: it has none of its own."""
    first = obtain(folder, FakeKeeper())
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
    content = MEMFDS.map(held.memory_fd, held.num_bytes)
    tensors, _ = read_tensors(content, first.weights.layout.specs, held.kind)
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
from executor_svc.devices.memfd_weights import MemfdWeights, NewMemfd
from executor_svc.keeper.link import KeeperLink
from tests.executor_svc.obtaining import obtain
loaded = obtain(Path(sys.argv[1]), KeeperLink(Path(sys.argv[2]), "second"))
print(loaded.kept, loaded.fingerprint, os.fstat(loaded.held.memory_fd).st_ino)
"""


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[Path]:
    """Of a real keeper."""
    tmp_path.chmod(0o700)
    path = tmp_path / "keeper.sock"
    keeper = subprocess.Popen([sys.executable, "-m", "keeper_svc", "--socket", str(path)])
    try:
        eventually(path.exists)
        yield path
    finally:
        keeper.kill()
        keeper.wait()


def test_a_real_keeper_hands_them_to_another_process(folder: Path, socket: Path) -> None:
    with contextlib.closing(KeeperLink(socket, "first")) as first_link:
        first = obtain(folder, first_link)
        arguments = [sys.executable, "-c", OBTAIN, str(folder), str(socket)]
        second = subprocess.run(arguments, capture_output=True, check=True, text=True).stdout.split()
        assert second == ["True", first.fingerprint, str(file_of(first))]


def slow(log: Log, num_waiting: int) -> tuple[type[Checkpoint], list[Checkpoint]]:
    """A checkpoint that is read when so many links have said that they wait for that, and those that were read."""
    read: list[Checkpoint] = []

    class Slow(Checkpoint):
        def copy(self, *arguments: Any) -> None:
            if self not in read:
                read.append(self)
                eventually(lambda: len(log.lines) >= num_waiting, timeout_s=30)
            super().copy(*arguments)

    return Slow, read


def test_executors_that_start_at_once_read_a_checkpoint_once(folder: Path, socket: Path, log: Log) -> None:
    checkpoint, read = slow(log, num_waiting=2)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(3) as threads:
        links = [stack.enter_context(contextlib.closing(KeeperLink(socket, name))) for name in ("a", "b", "c")]
        loaded = list(threads.map(lambda each: obtain(folder, each, checkpoint=checkpoint), links))
        assert len({file_of(each) for each in loaded}) == 1
    assert len(read) == 1
    assert sorted(each.kept for each in loaded) == [False, True, True]
    assert log.events == ["waits for weights that another executor reads"] * 2


def test_groups_that_start_at_once_read_a_checkpoint_once(folder: Path, socket: Path, log: Log) -> None:
    checkpoint, read = slow(log, num_waiting=1)

    def start(group: RankGroup) -> bool:
        with contextlib.closing(KeeperLink(socket, f"rank {group.rank}")) as own:
            return obtain(folder, own, group, checkpoint=checkpoint).kept

    with ThreadPoolExecutor(2) as groups:
        kept = list(groups.map(lambda _: in_threads(2, start), range(2)))
    assert sorted(kept) == [[False, False], [True, True]]
    assert len(read) == 2  # ranks of one group


def test_without_a_keeper_there_is_no_file(folder: Path) -> None:
    loaded = obtain(folder, None)
    assert (loaded.kept, loaded.held) == (False, None)


def test_a_system_that_gives_no_such_memory(folder: Path, log: Log) -> None:
    class Refused(MemfdWeights):
        def create(self, num_bytes: int) -> NewMemfd:
            raise KeeperError(f"no memory file of {num_bytes} bytes")

    loaded = obtain(folder, FakeKeeper(), memories=Refused())
    assert loaded.held is None
    assert log.events == ["weights cannot be shared"]
    assert_equal(loaded, obtain(folder, None))
