"""Real services: a scheduler, and two executors of the stand-in for Qwen3; one that embeds and one that scores."""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.client.processes.local_fleet import LocalFleet
from tests.clients.matrix import ROOT, SERVED
from tests.support.eventually import eventually
from tests.support.fleets import running_fleet
from tests.support.pooling_folders import make_embedder, make_reranker
from tests.support.reciter.checkpoint import reciter_folder

POOLED: Mapping[str, tuple[str, Callable[[Path], Path]]] = {
    "embed": ("embedder", make_embedder),
    "score": ("judge", make_reranker),
}
"""Tasks; the name of the model that takes it, and what makes its folder."""


@pytest.fixture(scope="package")
def pooled_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of models with the demo model's weights, by their tasks."""
    folder = tmp_path_factory.mktemp("models")
    made = {task: make(folder / name) for task, (name, make) in POOLED.items()}
    for each in made.values():
        shutil.copy(DEMO_MODEL_DIR / "model.safetensors", each)
    return made


@pytest.fixture(scope="package")
def fleet(tmp_path_factory: pytest.TempPathFactory, pooled_models: dict[str, Path]) -> Iterator[LocalFleet]:
    """Without executors of `pooled_models`."""
    folder = tmp_path_factory.mktemp("logs")
    pooled = [part for task, path in pooled_models.items() for part in ("--pooling-model", f"{task}={path}")]
    options = {"scheduler_options": (*SERVED, *pooled), "executor_options": ("--task", "generate")}
    with running_fleet(folder, model=reciter_folder(), executors=2, **options) as running:
        yield running


@pytest.fixture(scope="package")
def whole_fleet(fleet: LocalFleet, pooled_models: dict[str, Path]) -> Iterator[LocalFleet]:
    """With an executor of each."""
    with contextlib.ExitStack() as stack:
        for task, path in pooled_models.items():
            stack.callback(_end, _start_executor(fleet, task, path))
        eventually(lambda: {name for name, _ in POOLED.values()} <= _ready_models(fleet))
        yield fleet


def _start_executor(fleet: LocalFleet, task: str, model: Path) -> subprocess.Popen:
    scheduler = f"tcp://127.0.0.1:{fleet.spec.executor_port}"
    options = ("--scheduler", scheduler, "--model", model, "--task", task, "--dtype", "float32", "--threads", "1")
    more = ("--num-blocks", "256", "--no-keep", "--log-level", "error")
    return subprocess.Popen([sys.executable, "-m", "executor_svc", *options, *more], cwd=ROOT)


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def _ready_models(fleet: LocalFleet) -> set[str]:
    cards = httpx.get(f"{fleet.spec.url}/v1/models").json()["data"]
    return {card["id"] for card in cards if card["max_model_len"] is not None}
