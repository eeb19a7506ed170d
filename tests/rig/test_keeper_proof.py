"""What the first GPU is to prove, and what a kill costs there, on the pretended GPU: by NVIDIA's bindings, to the end.

Kernels write nothing here, so copies write in their place, and `remapped` is not settled.
"""

import json
import os
import subprocess
import sys
from typing import Any

GIB = 2**30


def run(tool: str, *arguments: str, **environment: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    done = subprocess.run(
        [sys.executable, "-m", f"tools.{tool}", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | environment,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {line.get("statement", line.get("case")): line for line in lines}, done.stderr


def test_the_proof() -> None:
    code, found, errors = run("gpu_keeper_proof")
    assert {name: line["outcome"] for name, line in found.items()} == {
        "outlives": "proven",
        "freed": "proven",
        "silent": "proven",
        "guarded": "proven",
        "remapped": "skipped",
    }, (found, errors)
    assert code == 2
    assert found["freed"]["free_before"] - found["freed"]["free_while_held"] == 2 * GIB
    assert found["silent"]["writes"] == found["guarded"]["writes"] == "copies"
    assert found["remapped"]["error"] == "kernels write nothing here"
    assert found["remapped"]["create_and_remap_ms"] > 0


def test_without_a_gpu_nothing_is_settled() -> None:
    code, found, _ = run("gpu_keeper_proof", RIG_DEVICES="0")
    assert code == 2
    assert found["outlives"]["call"] == "cuInit"


def test_what_a_kill_costs() -> None:
    code, found, errors = run("gpu_kill_facts", "--gb", "0.2", "--pinned-gb", "0.1")
    assert (code, set(found)) == (0, {"vmm", "malloc", "pinned"}), (found, errors)
    for how, facts in found.items():
        assert (facts["keeper_without_cuda"], facts["freed"]) == (True, True), how
        assert (facts["too_early"], facts["changed_bytes"]) == ([], 0), how
        assert facts["device_files"].keys() >= {"nvidiactl", "nvidia-uvm", "nvidia0"}
        assert max(facts["device_files"]["nvidiactl"]) < min(facts["device_files"]["nvidia0"])
        assert {"exiting_ms", "files_gone_ms", "zombie_ms", "threads_gone_ms", "middle_socket_ms"} <= facts.keys()
        assert facts["high_socket_ms"] <= facts["low_socket_ms"]
    assert (found["vmm"]["same"], found["pinned"]["same"]) == (True, True)
