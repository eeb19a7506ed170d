"""SmolLM2-135M-Instruct, a real and trained model, for tests. `make real-model` fetches it; without it they skip."""

import functools
from pathlib import Path
from typing import Any

import pytest

from scheduler_svc.client.processes.named_models import NAMED_MODELS, fetch_model, find_model
from tests import ROOT

SMOLLM2 = NAMED_MODELS["smollm2"]
FOLDER = ROOT / "build" / "models"
PAGE = """\
Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, and
dedicated to the proposition that all men are created equal.

Now we are engaged in a great civil war, testing whether that nation, or any nation so conceived and so dedicated, can
long endure. We are met on a great battle-field of that war. We have come to dedicate a portion of that field, as a
final resting place for those who here gave their lives that that nation might live. It is altogether fitting and proper
that we should do this.

But, in a larger sense, we can not dedicate -- we can not consecrate -- we can not hallow -- this ground. The brave men,
living and dead, who struggled here, have consecrated it, far above our poor power to add or detract. The world will
little note, nor long remember what we say here, but it can never forget what they did here. It is for us the living,
rather, to be dedicated here to the unfinished work which they who fought here have thus far so nobly advanced. It is
rather for us to be here dedicated to the great task remaining before us -- that from these honored dead we take
increased devotion to that cause for which they gave the last full measure of devotion -- that we here highly resolve
that these dead shall not have died in vain -- that this nation, under God, shall have a new birth of freedom -- and
that government of the people, by the people, for the people, shall not perish from the earth.

When, in the course of human events, it becomes necessary for one people to dissolve the political bonds which have
connected them with another, and to assume among the powers of the earth, the separate and equal station to which the
laws of nature and of nature's God entitle them, a decent respect to the opinions of mankind requires that they should
declare the causes which impel them to the separation.
"""


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
