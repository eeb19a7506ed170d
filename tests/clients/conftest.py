"""Real services on the stand-in for Qwen3: a scheduler and two executors."""

import pytest

from tests.clients.matrix import MODEL
from tests.support.fleets import running_fleet
from tests.support.reciter.checkpoint import reciter_folder


@pytest.fixture(scope="package")
def fleet(tmp_path_factory):
    options = ("--served-model-name", MODEL, "--openapi")
    folder = tmp_path_factory.mktemp("logs")
    # Longer than any prompt here; a fuzzer's request that forbids the end must not generate for minutes.
    short = ("--max-model-len", "4096")
    fleet = {"executors": 2, "scheduler_options": options, "executor_options": short}
    with running_fleet(folder, model=reciter_folder(), **fleet) as running:
        yield running
