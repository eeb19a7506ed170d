"""Real services on the stand-in for Qwen3: a scheduler and two executors."""

import pytest

from tests.clients.matrix import SERVED
from tests.support.fleets import running_fleet
from tests.support.reciter.checkpoint import reciter_folder


@pytest.fixture(scope="package")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    with running_fleet(folder, model=reciter_folder(), executors=2, scheduler_options=SERVED) as running:
        yield running
