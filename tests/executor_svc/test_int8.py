"""The executor with weights in int8: how much less exact it is, and who is refused."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from common.errors import BatonError
from common.model_files import resolve_model
from executor_svc.options import ExecutorOptions
from executor_svc.startup import start_executor
from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import Driver, Pool, Row, logits, needs_cpp, start
from tests.support.checkpoints import VOCAB_SIZE, reference_logits

pytestmark = needs_cpp

LENGTH = 96


def start_int8(folder: Path | None, **options: Any) -> Any:
    return start(folder, **{"dtype": "bfloat16", "quantization": "int8", "num_blocks": 24, "threads": 2, **options})


def scores(folder: Path | None, tokens: list[int], quantization: str) -> torch.Tensor:
    runner, limits = start_int8(folder, quantization=quantization)
    table = Pool(24, 16).grow([], len(tokens))
    return logits(runner, [Row(0, tokens, len(tokens), table)], limits).float()


def divergence(exact: torch.Tensor, other: torch.Tensor) -> float:
    """Kullback and Leibler's, in nats for each token."""
    expected = exact.log_softmax(-1)
    return float((expected.exp() * (expected - other.log_softmax(-1))).sum(-1).mean())


def test_the_demo_model_hardly_notices() -> None:
    """What docs/cpu.md states, of a model with trained weights: random ones have no outliers."""
    folder = resolve_model(None, weights=True)
    text = "But, soft! what light through yonder window breaks? It is the east, and Juliet is the sun.\n"
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(4 * text).ids[:LENGTH]
    assert len(tokens) == LENGTH
    exact = reference_logits(folder, tokens, torch.float32)
    of_bfloat16, of_int8 = (divergence(exact, scores(None, tokens, kind)) for kind in ("none", "int8"))
    assert 0 < of_bfloat16 < 0.0005
    assert of_bfloat16 < of_int8 < 0.002


@pytest.mark.parametrize(
    "config", [{"preset": "0.6B"}, {"preset": "4B", "tied": False, "attention_bias": True}], ids=str
)
def test_close_to_float32(checkpoint: Make, config: dict[str, Any]) -> None:
    folder = checkpoint(**config, dtype=torch.bfloat16)
    tokens = random.Random(0).choices(range(VOCAB_SIZE), k=LENGTH)
    exact = reference_logits(folder, tokens, torch.float32)
    assert (scores(folder, tokens, "int8") - exact).std() < 0.06 * exact.std()


def test_a_plan_may_be_cut_anywhere(checkpoint: Make) -> None:
    folder = checkpoint(preset="0.6B", dtype=torch.bfloat16, num_layers=2)
    rng = random.Random(1)
    prompts = [rng.choices(range(VOCAB_SIZE), k=length) for length in (1, 5, 16, 33, 60)]
    runner, limits = start_int8(folder, num_blocks=64)
    whole = Driver(runner, limits).generate(prompts, 12)
    assert Driver(runner, limits, chunk=7, read_lanes=False).generate(prompts, 12) == whole
    assert [Driver(runner, limits).generate([prompt], 12)[0] for prompt in prompts] == whole


def test_it_is_another_model_to_a_fleet() -> None:
    """As executors with other weights are: a sequence goes on with those that it began with while there are any."""
    options = {"num_blocks": 8, "threads": 1, "dtype": "bfloat16"}
    plain, int8 = (start_executor(ExecutorOptions(**options, quantization=kind)).hello for kind in ("none", "int8"))
    assert (plain.dtype, int8.dtype) == ("bfloat16", "bfloat16-int8")
    assert plain.fingerprint == int8.fingerprint


def test_who_has_no_such_kernels_is_refused(checkpoint: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BatonError, match="are for bfloat16, not float32; add --dtype bfloat16"):
        start_int8(None, dtype="float32")
    with pytest.raises(BatonError, match="int8 is for dense models"):
        start_int8(checkpoint(preset="30B-A3B", experts=True, dtype=torch.bfloat16))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(BatonError, match="int8 is for --device cpu"):
        start_int8(None, device="cuda")
