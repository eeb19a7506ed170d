"""SmolLM2-135M-Instruct, trained and quantized by others: its scores and tokens are those of transformers."""

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch

from common.model_reading import MAX_TOKENIZER_BYTES, read_model_file
from common.plan import ExecutorLimits
from executor_svc.model.gguf_checkpoint import GgufCheckpoint
from executor_svc.runner.runner import Runner
from tests import ROOT
from tests.executor_svc.harness import Driver, Pool, Row, logits, needs_cpp, poison_cache, start
from tests.support.real_model import PAGE, reference, smollm2

pytestmark = pytest.mark.slow

PROMPTS = (
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):\n",
    "Once upon a time",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,",
    "The opposite of hot is",
    "Roses are red,",
    "SELECT name FROM",
    "In 1969, humans first",
    "A recipe for pancakes:",
    "Photosynthesis is the process",
    "To be, or not to be,",
    "The largest planet is",
    "import numpy as np\n",
    "Dogs and cats are",
    "My favourite book is",
    "The three primary colours are",
    "E = mc^2 means that",
    "Bonjour, je m'appelle",
)
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")  # that `gguf` can make
PERPLEXITY = 17.1086  # of the page, with a layer of each type, in float32; transformers finds the same
NUM_BLOCKS = 256

Started = tuple[Runner[Any], ExecutorLimits]


@pytest.fixture(scope="module")
def model() -> Path:
    return smollm2()


def start_real(model: Path, **options: Any) -> Started:
    """An executor's runner, and its limits."""
    return start(model, num_blocks=NUM_BLOCKS, max_model_len=2048, max_num_seqs=32, **options)


@pytest.fixture(scope="module")
def in_float32(model: Path) -> Started:
    """One for all texts; its cache is to be poisoned before each."""
    return start_real(model)


def tokens_of(model: Path, *texts: str) -> list[list[int]]:
    content = read_model_file(model / "tokenizer.json", MAX_TOKENIZER_BYTES)
    assert content is not None
    tokenizer = tokenizers.Tokenizer.from_str(content.decode())
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def computed_logits(started: Started, tokens: list[int]) -> torch.Tensor:
    """The scores after each token, of an executor that may have computed other texts before."""
    runner, limits = started
    poison_cache(runner)
    return logits(runner, [Row(0, tokens, len(tokens), Pool(NUM_BLOCKS, 16).grow([], len(tokens)))], limits)


def scores(started: Started, tokens: list[int]) -> torch.Tensor:
    """The log-probability of each token but the first, after those before it."""
    return of_tokens(computed_logits(started, tokens), tokens)


def of_tokens(found: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    return found.float().log_softmax(-1)[:-1].gather(1, torch.tensor(tokens[1:])[:, None]).flatten()


@torch.inference_mode()
def expected_logits(model: Path, tokens: list[int]) -> torch.Tensor:
    found: torch.Tensor = reference(model)(torch.tensor([tokens])).logits[0]
    return found


def test_every_log_probability_of_a_page(model: Path, in_float32: Started) -> None:
    (tokens,) = tokens_of(model, PAGE)
    assert len(tokens) > 400
    found = computed_logits(in_float32, tokens)
    expected = expected_logits(model, tokens)
    assert (found.log_softmax(-1) - expected.log_softmax(-1)).abs().max() < 1e-3


def test_greedy_tokens(model: Path, in_float32: Started) -> None:
    """Each is the likeliest one after those before it, which is what transformers would generate."""
    prompts = tokens_of(model, *PROMPTS)
    runner, limits = in_float32
    for some, length in ((prompts, 32), (prompts[3:4], 200)):
        poison_cache(runner)
        for prompt, found in zip(some, Driver(runner, limits, chunk=3).generate(some, length), strict=True):
            expected = expected_logits(model, prompt + found[:-1])[len(prompt) - 1 :].argmax(-1)
            assert found == expected.tolist()


def perplexity(log_probs: torch.Tensor) -> float:
    return math.exp(-float(log_probs.double().mean()))


@needs_cpp
def test_perplexity_in_bfloat16(model: Path) -> None:
    """Of 6,000 tokens: of fewer, what roundings do to each token does not even out, for transformers neither."""
    texts = (path.read_text() for path in (ROOT / "LICENSE", *sorted((ROOT / "docs").glob("*.md"))[:3]))
    started = start_real(model, dtype="bfloat16")
    exact, found = [], []
    for tokens in (of_text[:1500] for of_text in tokens_of(model, *texts)):
        exact.append(of_tokens(expected_logits(model, tokens), tokens))
        found.append(scores(started, tokens))
    assert len(torch.cat(exact)) > 5500
    assert perplexity(torch.cat(found)) == pytest.approx(perplexity(torch.cat(exact)), rel=0.002)


def test_perplexity_with_a_layer_of_each_type(model: Path, tmp_path: Path) -> None:
    """Weights are the values that `gguf` reads, and the model is as good as they are."""
    path = stored_anew(model, tmp_path / "SmolLM2.gguf")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    with GgufCheckpoint(path) as checkpoint:
        for layer, kind in enumerate(TYPES):
            stored = tensors[f"blk.{layer}.ffn_down.weight"]
            assert stored.tensor_type.name == kind
            found = checkpoint.read(f"model.layers.{layer}.mlp.down_proj.weight").float().numpy()
            assert np.array_equal(found, gguf.quants.dequantize(stored.data, stored.tensor_type)), kind
    (tokens,) = tokens_of(path, PAGE)
    assert perplexity(scores(start_real(path), tokens)) == pytest.approx(PERPLEXITY, rel=1e-4)


def stored_anew(model: Path, path: Path) -> Path:
    """The model with the matrices of its first layers in a type for each layer."""
    source = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in source.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            of_items = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], of_items)
    kind_of = {f"blk.{layer}": gguf.GGMLQuantizationType[kind] for layer, kind in enumerate(TYPES)}
    for tensor in source.tensors:
        kind = kind_of.get(".".join(tensor.name.split(".")[:2]), tensor.tensor_type)
        stored = tensor.data
        if len(tensor.shape) > 1 and kind != tensor.tensor_type:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            stored = gguf.quants.quantize(np.ascontiguousarray(values, dtype=np.float32), kind)
        else:
            kind = tensor.tensor_type
        writer.add_tensor(tensor.name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
