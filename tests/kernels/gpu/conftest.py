"""Runs the kernels on a CUDA device where there is one, and else in Triton's interpreter on the CPU.

A test that takes `device` runs kernels. Where they are compiled, that is on a GPU, each such test is marked `gpu`:
`-m gpu` there chooses the small cases with traps as well as the tests at real size, which have the mark everywhere.

Triton decides for each function when it is decorated, that is when its module is imported. Triton's own library is
made of such functions and transformers imports it, so `tests/conftest.py` has to set the variable before any test is
collected; here it is set once more for a tree without that line, and checked.
"""

import os
from pathlib import Path

import pytest
import torch

from tests.support.quick_interpreter import quicken

HAS_CUDA = torch.cuda.is_available()
if not HAS_CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not INTERPRETED:
        for item in items:
            if "device" in getattr(item, "fixturenames", ()) and Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.gpu)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    if not HAS_CUDA:
        pytest.skip("needs a CUDA device, and torch finds none")
    if INTERPRETED:
        pytest.skip("needs compiled kernels: start pytest without TRITON_INTERPRET=1")


@pytest.fixture(scope="session")
def host() -> torch.device:
    """The CPU, whose memory is sparse, for tensors that are almost all hole. With compiled kernels there is none."""
    if not INTERPRETED:
        pytest.skip("needs Triton's interpreter: the memory of a GPU is not sparse")
    return _checked(torch.device("cpu"))


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the kernels' tensors go; on the CPU the interpreter runs the kernels."""
    return _checked(torch.device("cpu" if INTERPRETED else "cuda"))


def _checked(device: torch.device) -> torch.device:
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    if isinstance(tl.sum, InterpretedFunction) != INTERPRETED:
        pytest.fail("Triton was imported before TRITON_INTERPRET was set: start pytest with TRITON_INTERPRET=1")
    if INTERPRETED:
        quicken()
    return device
