"""Real services on the pretended GPU: executors are killed, drained and replaced under load, and no request ends early.

Tokens mean nothing here; that each answer has all of its tokens does.
"""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import client_of, running_fleet

NEW_TOKENS = 120


def stream(client: Any, prompt: str, counts: dict[str, int], begun: threading.Semaphore) -> None:
    request = {"model": "baton-demo", "prompt": prompt, "max_tokens": NEW_TOKENS, "stream": True}
    extra = {"ignore_eos": True}
    for number, chunk in enumerate(
        client.completions.create(**request, extra_body=extra, stream_options={"include_usage": True})
    ):
        if number == 0:
            begun.release()
        if chunk.usage is not None:
            counts[prompt] = chunk.usage.completion_tokens


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
