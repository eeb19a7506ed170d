"""Checkpoints that many tests of the executor read; written once a test process."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.checkpoints import make_checkpoint
from tests.support.logged import Log, logged

Make = Callable[..., Path]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch finds none")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """`make_checkpoint` with a folder of its own, remembered by its arguments."""
    made: dict[str, Path] = {}

    def make(**arguments: Any) -> Path:
        key = repr(sorted(arguments.items()))
        if key not in made:
            made[key] = make_checkpoint(tmp_path_factory.mktemp("checkpoint"), **arguments)
        return made[key]

    return make


@pytest.fixture
def log() -> Iterator[Log]:
    """What is logged during the test."""
    with logged() as log:
        yield log


@pytest.fixture
def never() -> Iterator[int]:
    """A descriptor that is never readable."""
    ends = os.pipe()
    yield ends[0]
    for end in ends:
        os.close(end)


@pytest.fixture
def folder(checkpoint: Make, tmp_path: Path) -> Path:
    """A checkpoint that may be changed."""
    shutil.copytree(checkpoint(preset="tiny", num_layers=2), tmp_path / "model")
    return tmp_path / "model"
