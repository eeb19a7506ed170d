"""SmolLM2-135M-Instruct, a real and trained model, for tests. `make real-model` fetches it; without it they skip."""

import functools
from pathlib import Path
from typing import Any

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


@functools.lru_cache(maxsize=1)
def reference(path: Path) -> Any:
    """transformers' LlamaForCausalLM in float32, with the weights that `gguf` reads in a file, and transformers puts in
    its own order of rows."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    model = LlamaForCausalLM(LlamaConfig(**load_gguf_checkpoint(str(path))["config"]))
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # which is the embedding
    model.tie_weights()
    return model.eval()


if __name__ == "__main__":
    print(find_model(SMOLLM2, FOLDER) or fetch_model(SMOLLM2, FOLDER))
