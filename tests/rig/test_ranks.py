"""Two tensor-parallel ranks: both make the same collective operations in the same order, in graphs and outside."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.executor_svc.conftest import Make
from tests.rig.rank import STEPS

WAIT_S = 240


def run_ranks(folder: Path, tmp_path: Path, *arguments: str) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """Each rank's report, and its collective operations as each other rank has to make them."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    subprocess.run(
        [*torchrun, "-m", "tests.rig.rank", str(folder), *arguments],
        env={**os.environ, "RIG_COLLECTIVES": str(tmp_path), "RIG_DEVICES": "2"},
        timeout=WAIT_S,
        check=True,
    )
    reports = [json.loads((tmp_path / f"report{rank}.json").read_text()) for rank in range(2)]
    made = [(tmp_path / f"rank{rank}").read_text().splitlines() for rank in range(2)]
    return reports, made


def in_step(made: list[list[str]]) -> bool:
    """Whether both make the same sums in the same order, and each receives what the other sends."""
    sums = [[line for line in lines if "all_reduce" in line] for lines in made]
    if sums[0] != sums[1] or len(made[0]) != len(made[1]):
        return False
    # All sends of an exchange come before or after all its receives, so order them by direction.
    opposite = {"send": "receive", "receive": "send"}
    for mine, theirs in zip(*map(exchanges, made), strict=True):
        if sorted((opposite[kind], size) for kind, peer, size in mine if peer == 1) != sorted(
            (kind, size) for kind, peer, size in theirs if peer == 0
        ):
            return False
    return kinds(made[0]) == kinds(made[1])


def kinds(lines: list[str]) -> list[str]:
    """Sums and exchanges in their order."""
    found: list[str] = []
    for line in lines:
        kind = "sum" if "all_reduce" in line else "exchange"
        if kind == "sum" or found[-1:] != ["exchange"]:
            found.append(kind)
    return found


def exchanges(lines: list[str]) -> list[list[tuple[str, int, str]]]:
    """Runs of sends and receives, each with its peer and size."""
    runs: list[list[tuple[str, int, str]]] = [[]]
    for line in lines:
        if "all_reduce" in line:
            runs.append([])
            continue
        _, kind, number, _, peer = line.split()
        runs[-1].append((kind, int(peer.removeprefix("peer=")), number))
    return runs


@pytest.mark.parametrize("attention", ["triton", "flash_attn"])
@pytest.mark.parametrize("sizes", [{"tokenizer": True}, {"vocab_size": 1003}], ids=["grammars", "odd vocabulary"])
def test_ranks_keep_step(checkpoint: Make, tmp_path: Path, attention: str, sizes: dict[str, Any]) -> None:
    folder = checkpoint(preset="0.6B", dtype=torch.bfloat16, num_layers=2, **sizes)
    reports, made = run_ranks(folder, tmp_path, attention)
    for report in reports:
        assert report["hazards"] == []
        assert report["exit_code"] == 0
        assert report["counts"]["graph_launch"] > STEPS // 4
        assert report["counts"]["captured_collective"] > 0
    assert reports[0]["blocks"] == reports[1]["blocks"] > 0
    assert in_step(made)


def test_swapped_collectives_are_found(small: Path, tmp_path: Path) -> None:
    _, made = run_ranks(small, tmp_path, "triton", "a rank swaps collectives")
    assert not in_step(made)


def test_graphs_that_outlive_the_group_are_found(small: Path, tmp_path: Path) -> None:
    reports, _ = run_ranks(small, tmp_path, "triton", "graphs outlive the group")
    assert any("a communicator is destroyed while" in sentence for sentence in reports[1]["hazards"])
