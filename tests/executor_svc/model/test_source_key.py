"""When the weights that a keeper has are used: where nothing differs, and by all ranks or none."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.torch import load_file, save_file

from executor_svc.model.checkpoint import SINGLE_FILE, Checkpoint
from executor_svc.model.families import read_config
from executor_svc.model.packing import TensorSpec
from executor_svc.model.source_key import source_key
from executor_svc.model.weight_file import WeightWriter
from tests.executor_svc.conftest import Make
from tests.executor_svc.fake_keeper import FakeKeeper, KeptWeights
from tests.executor_svc.obtaining import MEMFDS, assert_equal, file_of, obtain
from tests.executor_svc.ranks import in_threads
from tests.support.eventually import eventually
from tests.support.logged import Log

# --- when they are used ---


def test_weights_are_read_once(folder: Path) -> None:
    keeper = FakeKeeper()
    first, second = obtain(folder, keeper), obtain(folder, keeper)
    assert (first.kept, second.kept) == (False, True)
    assert_equal(first, second)
    assert_equal(first, obtain(folder, None))
    assert file_of(first) == file_of(second)


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


def until_it_shows(change: Callable[[Path], None], path: Path) -> None:
    """Change a file until its times differ, which are as exact as the kernel's clock ticks."""
    before = path.stat().st_ctime_ns

    def shows() -> bool:
        change(path)
        return path.stat().st_ctime_ns != before

    eventually(shows)


@pytest.mark.parametrize("change", [touch, copy, write_in_place, new_header])
def test_files_that_look_otherwise_are_read(folder: Path, change: Any) -> None:
    """The content is the same, so what is kept is mapped in spite of it, and found at once from now on."""
    keeper = FakeKeeper()
    first = obtain(folder, keeper)
    until_it_shows(change, folder / SINGLE_FILE)
    second, third = obtain(folder, keeper), obtain(folder, keeper)
    assert (second.kept, third.kept) == (False, True)
    assert file_of(first) == file_of(second) == file_of(third)
    assert len(keeper.weights) == 1
    assert_equal(first, second)
    assert_equal(first, third)


def test_other_content_is_another_model(folder: Path, checkpoint: Make) -> None:
    keeper = FakeKeeper()
    first = obtain(folder, keeper)
    shutil.copy(checkpoint(preset="tiny", num_layers=2, seed=1) / SINGLE_FILE, folder)
    second = obtain(folder, keeper)
    assert not second.kept
    assert second.fingerprint != first.fingerprint
    assert [kept.fingerprint for kept in keeper.weights] == [first.fingerprint, second.fingerprint]


def test_another_configuration_is_another_source(folder: Path) -> None:
    config = read_config(folder)
    key = source_key(folder, config)
    assert source_key(folder, msgspec.structs.replace(config, rms_norm_eps=1e-5)) != key
    assert source_key(folder, msgspec.structs.replace(config, max_positions=99)) == key, "it changes no weight"


def test_files_that_change_while_they_are_read_are_shared_with_nobody(folder: Path, log: Log) -> None:
    """A tensor is copied and then hashed: the fingerprint may be that of files which were complete a moment later."""

    class Changing(Checkpoint):
        def copy(self, *arguments: Any) -> None:
            super().copy(*arguments)
            until_it_shows(touch, folder / SINGLE_FILE)

    keeper = FakeKeeper()
    loaded = obtain(folder, keeper, checkpoint=Changing)
    assert (keeper.weights, loaded.held, keeper.calls) == ([], None, ["find source", "reads for itself"])
    reason = "the checkpoint's files changed while they were read"
    assert log.lines == [("weights cannot be shared", {"reason": reason})]
    assert_equal(loaded, obtain(folder, None))


def test_verifying_reads_what_is_kept(folder: Path, log: Log) -> None:
    keeper = FakeKeeper()
    first, second = obtain(folder, keeper), obtain(folder, keeper, verify=True)
    assert not second.kept
    assert file_of(first) == file_of(second)
    assert_equal(first, second)
    assert log.lines == [("weights verified", {"fingerprint": first.fingerprint, "kept": True})]
    assert len(keeper.weights) == 1


def test_verifying_finds_kept_weights_of_other_content(folder: Path, log: Log) -> None:
    """As if the files' state had lied."""
    keeper = FakeKeeper()
    first = obtain(folder, keeper)
    tensors = load_file(folder / SINGLE_FILE)
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, folder / SINGLE_FILE)
    keeper.weights[0].sources = {source_key(folder, read_config(folder))}
    assert obtain(folder, keeper).fingerprint == first.fingerprint, "the state is believed"
    verified = obtain(folder, keeper, verify=True)
    assert file_of(verified) != file_of(first)
    assert log.lines == [("weights verified", {"fingerprint": verified.fingerprint, "kept": False})]
    assert obtain(folder, keeper).fingerprint == verified.fingerprint != first.fingerprint


def replace_file(kept: KeptWeights, specs: Mapping[str, TensorSpec], fingerprint: str) -> None:
    with WeightWriter(specs, kept.kind, MEMFDS) as writer:
        writer.seal(fingerprint)
        kept.memory, kept.num_bytes = os.dup(writer.descriptor), writer.num_bytes


def test_kept_weights_that_cannot_be_used_are_read_anew(folder: Path, log: Log, checkpoint: Make) -> None:
    """Such as those of a release that named tensors otherwise."""
    keeper = FakeKeeper()
    good = obtain(folder, keeper)
    specs = dict(good.weights.layout.specs)
    specs["layers.0.qkv"] = specs.pop("layers.0.qkv.weight")
    replace_file(keeper.weights[0], specs, good.fingerprint)
    again = obtain(folder, keeper)
    assert not again.kept
    assert_equal(good, again)
    reason = "it has other tensors: layers.0.qkv, layers.0.qkv.weight (2 differ)"
    assert log.lines == [("kept weights not used", {"reason": reason})] * 2


def test_kept_weights_of_another_fingerprint_than_they_are_kept_for(folder: Path, log: Log) -> None:
    keeper = FakeKeeper()
    good = obtain(folder, keeper)
    replace_file(keeper.weights[0], good.weights.layout.specs, "e" * 64)
    touch(folder / SINGLE_FILE)
    assert_equal(good, obtain(folder, keeper))
    assert log.lines == [
        ("kept weights not used", {"reason": f"it holds the model {'e' * 64}, not {good.fingerprint}"})
    ]


def test_a_keeper_that_is_gone(folder: Path, log: Log) -> None:
    loaded = obtain(folder, FakeKeeper(fails=True))
    assert_equal(loaded, obtain(folder, None))
    assert [event for event, _ in log.lines] == ["kept weights not found"] * 2 + ["weights not deposited"]
    assert loaded.held is None


# --- ranks ---


@pytest.mark.parametrize("lost", [None, 0, 1])
def test_all_ranks_map_or_all_read(folder: Path, lost: int | None) -> None:
    keepers = [FakeKeeper(), FakeKeeper()]
    first = in_threads(2, lambda group: obtain(folder, keepers[group.rank], group))
    if lost is not None:
        keepers[lost].weights.clear()
    second = in_threads(2, lambda group: obtain(folder, keepers[group.rank], group))
    assert [loaded.kept for loaded in second] == [lost is None] * 2
    for one, other in zip(first, second, strict=True):
        assert_equal(one, other)
    assert {keeper.weights[0].kind.rank for keeper in keepers} == {0, 1}
    assert [keeper.num_readers for keeper in keepers] == [2, 0], "ranks that wait could wait for each other's groups"


def test_a_rank_without_a_keeper_reads_with_the_others(folder: Path) -> None:
    keepers = [FakeKeeper(), FakeKeeper()]
    in_threads(2, lambda group: obtain(folder, keepers[group.rank], group))
    loaded = in_threads(2, lambda group: obtain(folder, keepers[0] if group.rank == 0 else None, group))
    assert [(rank.kept, rank.held is not None) for rank in loaded] == [(False, True), (False, False)]
