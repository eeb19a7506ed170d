"""The proof of what the keeper rests on, over memfds (`tests/support/fake_cuda.py`)."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
sys.path[:0] = ["tools", "."]
import gpu_keeper_proof
import gpu_keeper_roles  # with torch, which each child would load anew
from tests.support.fake_cuda import FakeCuda
gpu_keeper_proof.POOL_BYTES, gpu_keeper_proof.ROUNDS = 2**22, 2
sys.exit(gpu_keeper_proof.main(lambda: FakeCuda(name={name!r}, **{options!r})))
"""


def prove(**options):
    program = PROGRAM.format(name=f"fake_cuda_{uuid.uuid4().hex}", options=options)
    return run(sys.executable, "-c", program)


def run(*command, **environment):
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=240, env=os.environ | environment
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {line["statement"]: line for line in lines}


def outcomes(found):
    return {name: line["outcome"] for name, line in found.items()}


@pytest.mark.slow
def test_memory_that_outlives_its_maker():
    code, found = prove()
    wanted = {"outlives": "proven", "freed": "proven", "silent": "proven", "guarded": "proven", "remapped": "skipped"}
    assert (code, outcomes(found)) == (2, wanted), found  # no graph without torch's CUDA build
    assert found["outlives"]["keeper_without_cuda"] is True
    assert found["outlives"]["kill_ms"] > 0
    assert found["freed"]["free_before"] - found["freed"]["free_while_held"] == 2**22
    assert found["freed"]["free_after"] == found["freed"]["free_before"]
    assert found["silent"]["changed_bytes"] == [0, 0]
    assert found["guarded"]["error"] == "cuMemcpyHtoD failed: CUDA_ERROR_INVALID_VALUE"
    assert not any("then" in line for line in found.values())


@pytest.mark.slow
def test_memory_that_does_not_says_what_to_do():
    code, found = prove(loses=True)
    assert code == 3
    assert (found["outlives"]["outcome"], found["anchored"]["outcome"]) == ("refuted", "refuted")
    assert "see `anchored`" in found["outlives"]["then"]
    assert "--no-keep" in found["anchored"]["then"]


@pytest.mark.slow
def test_a_descriptor_that_can_no_longer_be_imported_refutes_as_well():
    code, found = prove(fail="cuMemImportFromShareableHandle")
    assert code == 3
    assert found["outlives"]["outcome"] == "refuted"
    assert found["outlives"]["call"] == "cuMemImportFromShareableHandle"


@pytest.mark.slow
def test_a_call_that_the_driver_refuses_is_named():
    code, found = prove(fail="cuMemExportToShareableHandle")
    assert (code, found["outlives"]["outcome"]) == (2, "unsupported")
    assert found["outlives"]["call"] == "cuMemExportToShareableHandle"


@pytest.mark.slow
def test_a_machine_without_a_gpu():
    code, found = run(sys.executable, "tools/gpu_keeper_proof.py", CUDA_VISIBLE_DEVICES="")
    assert code == 2
    assert outcomes(found) == dict.fromkeys(("outlives", "silent", "guarded", "remapped"), "unsupported")
