"""Which models are looked at before torch is imported, and that the others are left to the start."""

from pathlib import Path

import pytest

from common.errors import CheckpointError
from common.model_files import DEMO_MODEL_DIR
from executor_svc.model.found_model import find_model, find_model_here
from executor_svc.options import ExecutorOptions


@pytest.mark.parametrize("model", [None, str(DEMO_MODEL_DIR)])
def test_what_is_here_is_found(model: str | None) -> None:
    found = find_model_here(ExecutorOptions(model=model))
    assert found is not None
    assert found == find_model(ExecutorOptions(model=model))
    assert (found.folder, found.tasks) == (DEMO_MODEL_DIR, ("generate",))


@pytest.mark.parametrize("model", ["owner/name", "owner/name-GGUF:name.gguf"])
def test_the_hub_is_not_asked_before_a_gpu_was_looked_for(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", pytest.fail)
    assert find_model_here(ExecutorOptions(model=model)) is None


def test_what_is_nowhere_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no folder"):
        find_model_here(ExecutorOptions(model=str(tmp_path / "nowhere")))
