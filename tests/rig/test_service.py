"""Real services on the pretended GPU: executors are killed, drained and replaced under load, and no request ends early.

Tokens mean nothing here; that each answer has all of its tokens does.
"""

import threading
from pathlib import Path

import pytest

from tests.e2e.conftest import client_of, running_fleet
from tests.rig.streams import NEW_TOKENS, stream


@pytest.mark.parametrize("attention", ["triton", "flash_attn"])
def test_executors_are_swapped_under_load(attention: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hazards = tmp_path / "hazards"
    hazards.mkdir()
    monkeypatch.setenv("RIG_HAZARDS", str(hazards))
    options = ("--device", "cuda", "--attention", attention, "--max-num-seqs", "16", "--max-batch-tokens", "256")
    with running_fleet(tmp_path, executors=2, executor_options=(*options, "--num-blocks", "64")) as fleet:
        client, counts, begun = client_of(fleet), dict[str, int](), threading.Semaphore(0)
        threads = [
            threading.Thread(target=stream, args=(client, f"Line {number}:", counts, begun)) for number in range(24)
        ]
        for thread in threads:
            thread.start()
        for _ in threads[:8]:
            assert begun.acquire(timeout=120)
        fleet.kill_executor(0)
        fleet.start_executor(0)
        fleet.wait_ready()
        fleet.terminate_executor(1)
        assert fleet.wait_executor(1) == 0
        fleet.start_executor(1)
        for thread in threads:
            thread.join(timeout=200)
    assert counts == {f"Line {number}:": NEW_TOKENS for number in range(24)}
    found = "".join(log.read_text() for log in hazards.iterdir())
    assert not found, found[:2000]
