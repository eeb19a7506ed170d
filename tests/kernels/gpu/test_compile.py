"""Every kernel compiles in every configuration that its launcher can pick, and takes no more than the chip has.

The work is done in processes of their own: in this one Triton may be interpreting. `compile_rig` says it in a table.
"""

import json
import os
import re
import subprocess
import sys

import pytest

from tests import ROOT

HALVES = (("attention",), ("layers", "experts", "sampling"))  # of the kernels: two processes compile them
ARCHS = (80, 90, 100)
OF_LITTLE = {"_log_probs_kernel"}  # reads a few segments of a row, a token a thread


def rig(*arguments):
    command = [sys.executable, "-m", "tests.kernels.gpu.compile_rig", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)


def compile_groups(archs, groups, *options):
    options = [*options, *(f"--arch={arch}" for arch in archs), *(f"--group={group}" for group in groups)]
    done = rig(*options, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def config(compiled):
    return dict(each.split("=") for each in compiled["variant"]["config"])


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS, ids="sm_{}".format)
@pytest.mark.parametrize("groups", HALVES, ids="-".join)
def test_no_configuration_spills_or_takes_too_much(groups, arch):
    compiled = compile_groups([arch], groups)
    faults = [fault for each in compiled for fault in each["faults"]]
    assert not faults, "\n".join(faults)
    of_floats = [each for each in compiled if any("*bf16" in argument for argument in each["variant"]["arguments"])]
    assert of_floats
    narrow = {each["variant"]["kernel"] for each in of_floats if not each["wide_loads"]}
    assert narrow <= OF_LITTLE, "loads of less than 128 bits"
    if arch == 90:
        wide = [each for each in compiled if int(config(each).get("BLOCK_M", 0)) >= 64]
        assert bool(wide) == ("attention" in groups)
        assert all(each["wgmma"] for each in wide), "a warp group takes 64 lines"


@pytest.mark.slow
def test_nothing_is_left_out():
    done = rig("--arch=90", "--list")
    assert done.returncode in (0, 1), done.stderr
    listed = done.stdout.splitlines()
    missing = [line for line in listed if line.startswith("MISSING")]
    assert not missing, "steps drawn at random wait for the compiler:\n" + "\n".join(missing)
    # Every kernel that the sources launch is among the cases.
    source = "\n".join(path.read_text() for path in (ROOT / "kernels/gpu").rglob("*.py"))
    launched = set(re.findall(r"(\w+)\.launch\(\n", source))
    assert {line.split("[")[0] for line in listed} == launched


@pytest.mark.slow
def test_faults_are_found():
    compiled = compile_groups(ARCHS, ["broken"])
    for arch in ARCHS:
        by_launch = {each["launch"]: each for each in compiled if each["arch"] == arch}
        faults = {name: " ".join(each["faults"]) for name, each in by_launch.items()}
        for fine in ("nothing", "narrow loads", "wgmma", "the last one again, and nothing"):
            assert not faults.pop(fine)
        assert "spills or has local memory" in faults.pop("registers")
        assert "spills or has local memory" in faults.pop("registers it may have")
        assert "bytes of shared memory" in faults.pop("shared memory")
        assert "does not compile" in faults.pop("does not compile")
        assert not faults, "each was compiled, and compiled once"
        assert by_launch["nothing"]["wide_loads"]
        assert not by_launch["narrow loads"]["wide_loads"]
        assert by_launch["wgmma"]["wgmma"] == (arch == 90)
    assert len(compiled) == 8 * len(ARCHS)
