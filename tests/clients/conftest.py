"""Real services on the stand-in for Qwen3: a scheduler and two executors."""

import pytest

from tests.clients.matrix import MODEL
from tests.support.fleets import running_fleet
from tests.support.reciter.checkpoint import reciter_folder


@pytest.fixture(scope="session")
def fleet(tmp_path_factory):
    options = ("--served-model-name", MODEL)
    folder = tmp_path_factory.mktemp("logs")
    with running_fleet(folder, model=reciter_folder(), executors=2, scheduler_options=options) as running:
        yield running
