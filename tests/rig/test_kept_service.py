"""Real services on the pretended GPU whose KV memory is kept: an executor is killed, and a standby goes on with it.

Tokens mean nothing here; that each answer has all of its tokens does, and that none was computed again.
"""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from common import messages as m
from scheduler_svc.client.processes.keeper import ask_keeper
from scheduler_svc.client.processes.local_fleet import LocalFleet, executor_name
from tests.e2e.conftest import client_of
from tests.rig.streams import NEW_TOKENS, stream
from tests.support.eventually import eventually
from tests.support.fake_cuda import bytes_of_all_processes
from tests.support.fleets import rank_pids, running_fleet

NUM_STREAMS = 12
OPTIONS = ("--device", "cuda", "--max-num-seqs", "16", "--max-batch-tokens", "256", "--num-blocks", "64")


@pytest.fixture
def hazards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that hazards of all processes are written to."""
    folder = tmp_path / "hazards"
    folder.mkdir()
    monkeypatch.setenv("RIG_HAZARDS", str(folder))
    monkeypatch.setenv("RIG_MEMORY", f"rig_{os.getpid()}_{tmp_path.name}")  # no other test's GPU
    return folder


def report(fleet: LocalFleet) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{fleet.spec.url}/status").json()
    return found


def has_standby(fleet: LocalFleet) -> bool:
    executors = report(fleet)["executors"]
    return bool(executors) and all(each["has_standby"] for each in executors)


def holder(fleet: LocalFleet) -> int:
    (executor,) = report(fleet)["executors"]
    return int(executor["executor"].rpartition("-")[2])


@pytest.mark.parametrize(
    ("attention", "number"),
    [("triton", signal.SIGKILL), ("flash_attn", signal.SIGKILL), ("triton", signal.SIGTERM)],
    ids=["triton killed", "flash_attn killed", "triton leaves"],
)
def test_a_standby_goes_on_with_the_memory_of_an_executor_that_ends(
    attention: str, number: signal.Signals, tmp_path: Path, hazards: Path
) -> None:
    options = (*OPTIONS, "--attention", attention)
    with running_fleet(tmp_path, standbys=1, executor_options=options) as fleet:
        eventually(lambda: has_standby(fleet), timeout_s=120)
        client, counts, begun = client_of(fleet), dict[str, int](), threading.Semaphore(0)
        threads = [
            threading.Thread(target=stream, args=(client, f"Line {line}:", counts, begun))
            for line in range(NUM_STREAMS)
        ]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert begun.acquire(timeout=120)
        gone = holder(fleet)
        os.kill(fleet.pids[executor_name(gone)], number)
        for thread in threads:
            thread.join(timeout=200)
        after = report(fleet)
        assert (after["pools_adopted"], after["recomputed_tokens"]) == (1, 0)
        assert holder(fleet) != gone
        log = fleet.log_tail(executor_name(holder(fleet)), lines=10**6)
        assert_one_copy(fleet)
        assert "device=GPU-00010203-0405-0607-0809-0a0b0c0d0e0f" in log
        assert log.index("graphs captured") < log.index("holds a pool"), "the graphs are those of the scratch memory"
        assert "no pool is kept" not in log
        assert_freed_by(fleet, number)
    assert counts == {f"Line {line}:": NEW_TOKENS for line in range(NUM_STREAMS)}
    assert_none(hazards)


def assert_freed_by(fleet: LocalFleet, number: signal.Signals) -> None:
    """A holder that was killed keeps its lease until its end; one that leaves in order releases it."""
    cause = "its holder has ended" if number == signal.SIGKILL else "its holder has released it"
    assert f'cause="{cause}"' in fleet.log_tail("keeper", lines=10**6)


def stream_over(fleet: LocalFleet, kill: Callable[[], None]) -> None:
    """A stream whose executor is killed, and started again: it goes on with what is kept."""
    client, counts, begun = client_of(fleet), dict[str, int](), threading.Semaphore(0)
    thread = threading.Thread(target=stream, args=(client, "Line:", counts, begun))
    thread.start()
    assert begun.acquire(timeout=120)
    kill()
    eventually(lambda: [end.name for end in fleet.poll()] == [executor_name(0)])
    fleet.start_executor(0)
    thread.join(timeout=200)
    after = report(fleet)
    assert (after["pools_adopted"], after["recomputed_tokens"]) == (1, 0)
    assert counts == {"Line:": NEW_TOKENS}


def assert_one_copy(fleet: LocalFleet) -> None:
    """Of the weights and the pool: nobody has memory of CUDA's besides."""
    assert fleet.spec.keeper is not None
    kept = ask_keeper(fleet.spec.keeper, m.KeeperQuery(), timeout_s=10)
    assert isinstance(kept, m.KeeperReport)
    assert [(len(each), each[0].kind.device[:4]) for each in (kept.weights, kept.pools)] == [(1, "GPU-")] * 2
    assert bytes_of_all_processes(os.environ["RIG_MEMORY"]) == sum(
        each.num_bytes for each in (*kept.weights, *kept.pools)
    )


def assert_none(hazards: Path) -> None:
    assert not (found := "".join(each.read_text() for each in hazards.iterdir())), found[:2000]


def test_without_a_standby_the_next_process_finds_the_memory(tmp_path: Path, hazards: Path) -> None:
    with running_fleet(tmp_path, keeps=True, executor_options=(*OPTIONS[:-2], "--kv-cache-memory", "0.25")) as fleet:
        stream_over(fleet, lambda: os.kill(fleet.pids[executor_name(0)], signal.SIGKILL))
    assert_none(hazards)


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGKILL, id="killed"), pytest.param(signal.SIGTERM, id="leaves", marks=pytest.mark.slow)],
)
def test_two_ranks_find_their_memory(
    number: signal.Signals, tmp_path: Path, hazards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIG_DEVICES", "2")
    monkeypatch.setenv("RIG_COLLECTIVES", str(tmp_path))
    with running_fleet(tmp_path, keeps=True, ranks=2, executor_options=OPTIONS) as fleet:
        # A supervisor tells torchrun; a kill strikes a rank.
        pid = {signal.SIGKILL: rank_pids(fleet, 0)[1], signal.SIGTERM: fleet.pids[executor_name(0)]}[number]
        stream_over(fleet, lambda: os.kill(pid, number))
        assert_freed_by(fleet, number)
    assert_none(hazards)
