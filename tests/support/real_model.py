"""SmolLM2-135M-Instruct, a real and trained model, for tests. `make real-model` fetches it; without it they skip."""

from pathlib import Path

import pytest

from scheduler_svc.client.processes.named_models import NAMED_MODELS, fetch_model, find_model

SMOLLM2 = NAMED_MODELS["smollm2"]
FOLDER = Path(__file__).parents[2] / "build" / "models"


def smollm2() -> Path:
    """The model's file. Skips the test if it was not fetched."""
    path = find_model(SMOLLM2, FOLDER)
    if path is None:
        pytest.skip("needs a real model: make real-model fetches it")
    return path


if __name__ == "__main__":
    print(find_model(SMOLLM2, FOLDER) or fetch_model(SMOLLM2, FOLDER))
