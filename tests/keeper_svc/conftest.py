"""A keeper and puppets, which end with the test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.keeper_svc.processes import KeeperProcess, Puppet


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def keeper(folder: Path) -> Iterator[KeeperProcess]:
    process = KeeperProcess(folder)
    yield process
    process.kill()


@pytest.fixture
def puppet(request: pytest.FixtureRequest) -> Iterator[Callable[[KeeperProcess, str], Puppet]]:
    started: list[Puppet] = []

    def start(keeper: KeeperProcess, name: str) -> Puppet:
        started.append(Puppet(keeper, name))
        return started[-1]

    yield start
    for one in started:
        one.kill()
