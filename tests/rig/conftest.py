"""Tests that run where torch finds the pretended GPU (`make test-dry-gpu`); all but one are collected nowhere else."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import build

IN_RIG = os.environ.get("LD_LIBRARY_PATH") == str(build.libraries())
ANYWHERE = "test_faults.py"
collect_ignore = (
    [] if IN_RIG else [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name != ANYWHERE]
)

if IN_RIG:
    # This process and its children have a memory of their own: no other test takes any of it.
    os.environ["RIG_MEMORY"] = f"rig_{os.getpid()}"

    import torch

    from tests.executor_svc.conftest import Make, checkpoint  # noqa: F401  (a fixture)
    from tests.rig.stand_in import StandIn

    torch.cuda.init()


@pytest.fixture(scope="session")
def _stand_in() -> "StandIn":
    return StandIn(build.libraries() / "librig.so")


@pytest.fixture
def rig(_stand_in: "StandIn") -> "Iterator[StandIn]":
    """The pretended GPU; a hazard that the test has not taken fails it."""
    _stand_in.hazards.clear()
    yield _stand_in
    _stand_in.set("device_error", 0)
    _stand_in.set("allocations_until_failure", -1)
    torch.cuda.synchronize()
    found = list(dict.fromkeys(map(str, _stand_in.hazards)))
    _stand_in.hazards.clear()
    assert not found, "\n".join(found[:3])


@pytest.fixture
def small(checkpoint: "Make") -> Path:
    """A checkpoint in bfloat16 with the heads of 0.6B and two layers."""
    return checkpoint(preset="0.6B", dtype=torch.bfloat16, num_layers=2)
