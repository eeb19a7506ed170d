"""Checkpoints of Qwen3's real shapes with random weights: the values of weights do not change how fast a model is.

    python -m benchmarks.rig.checkpoints 0.6B /tmp/qwen3-0.6b

A checkpoint has the files of a download, bfloat16 safetensors in shards with an index and a config.json, but no
tokenizer.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from safetensors.torch import save_file
from torch import Tensor

SHARD_BYTES = 4 * 2**30
DTYPE = torch.bfloat16
INITIALIZER_RANGE = 0.02  # standard deviation of a weight, as transformers would draw it

Specs = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Qwen3Shape:
    """A Qwen3's sizes, in elements; a dense model has 0 experts.

    Attributes:
        intermediate: width of a dense MLP.
        expert_intermediate: width of one expert.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool
    head_dim: int = 128
    vocab_size: int = 151_936
    experts: int = 0
    chosen_experts: int = 8
    expert_intermediate: int = 768

    def config(self) -> dict[str, Any]:
        """The checkpoint's config.json."""
        kind = "Qwen3Moe" if self.experts else "Qwen3"
        config = {
            "architectures": [f"{kind}ForCausalLM"],
            "model_type": "qwen3_moe" if self.experts else "qwen3",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": 40_960,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": self.tied,
            "attention_bias": False,
            "initializer_range": INITIALIZER_RANGE,
            "torch_dtype": "bfloat16",
        }
        if self.experts:
            config |= {
                "num_experts": self.experts,
                "num_experts_per_tok": self.chosen_experts,
                "moe_intermediate_size": self.expert_intermediate,
                "norm_topk_prob": True,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
            }
        return config

    def tensors(self) -> Specs:
        """Name and shape of each tensor, in the order of the layers."""
        yield "model.embed_tokens.weight", (self.vocab_size, self.hidden)
        for layer in range(self.layers):
            yield from ((f"model.layers.{layer}.{name}", shape) for name, shape in self._layer())
        yield "model.norm.weight", (self.hidden,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab_size, self.hidden)

    def num_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(DTYPE.itemsize * torch.Size(shape).numel() for _, shape in self.tensors())

    def _layer(self) -> Specs:
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}.weight", (self.hidden,)
        for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            yield f"self_attn.{name}_proj.weight", (heads * self.head_dim, self.hidden)
        yield "self_attn.o_proj.weight", (self.hidden, self.heads * self.head_dim)
        for name in ("q_norm", "k_norm"):
            yield f"self_attn.{name}.weight", (self.head_dim,)
        if not self.experts:
            yield from self._swiglu("mlp", self.intermediate)
            return
        yield "mlp.gate.weight", (self.experts, self.hidden)
        for expert in range(self.experts):
            yield from self._swiglu(f"mlp.experts.{expert}", self.expert_intermediate)

    def _swiglu(self, prefix: str, intermediate: int) -> Specs:
        yield f"{prefix}.gate_proj.weight", (intermediate, self.hidden)
        yield f"{prefix}.up_proj.weight", (intermediate, self.hidden)
        yield f"{prefix}.down_proj.weight", (self.hidden, intermediate)


SHAPES = {
    "0.6B": Qwen3Shape(1024, 3072, 28, 16, 8, tied=True),
    "1.7B": Qwen3Shape(2048, 6144, 28, 16, 8, tied=True),
    "4B": Qwen3Shape(2560, 9728, 36, 32, 8, tied=True),
    "8B": Qwen3Shape(4096, 12_288, 36, 32, 8, tied=False),
    "30B-A3B": Qwen3Shape(2048, 6144, 48, 32, 4, tied=False, experts=128),
    "tiny": Qwen3Shape(64, 128, 2, 4, 2, tied=True, head_dim=32, vocab_size=10_240),
    "tiny-moe": Qwen3Shape(
        64,
        128,
        2,
        4,
        2,
        tied=False,
        head_dim=32,
        vocab_size=10_240,
        experts=8,
        chosen_experts=2,
        expert_intermediate=32,
    ),
}
"""Qwen3's models by their names, and two tiny ones for quick runs (their vocabulary has the workloads' token ids)."""


def write_checkpoint(
    folder: Path,
    shape: Qwen3Shape,
    device: torch.device | None = None,
    *,
    shard_bytes: int = SHARD_BYTES,
    seed: int = 0,
) -> Path:
    """Write a checkpoint with random weights and return its folder, which is made if it is missing.

    Args:
        device: where the numbers are drawn, which changes them; None is a GPU if there is one.
        shard_bytes: the most bytes of a file, unless one tensor has more.
        seed: seed of the weights.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator(device).manual_seed(seed)
    shards = list(_shards(shape, shard_bytes))
    weight_map = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {name: _draw(name, size, generator).cpu() for name, size in names.items()}
        save_file(tensors, folder / file, {"format": "pt"})
        weight_map.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": shape.num_bytes()}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=1))
    return folder


def _shards(shape: Qwen3Shape, shard_bytes: int) -> Iterator[dict[str, tuple[int, ...]]]:
    """The tensors of each file."""
    names: dict[str, tuple[int, ...]] = {}
    taken = 0
    for name, size in shape.tensors():
        num_bytes = DTYPE.itemsize * torch.Size(size).numel()
        if names and taken + num_bytes > shard_bytes:
            yield names
            names, taken = {}, 0
        names[name] = size
        taken += num_bytes
    yield names


def _draw(name: str, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """A tensor's random values; the weights of norms are near 1, as in a model."""
    values = torch.empty(size, dtype=DTYPE, device=generator.device)
    mean = 1.0 if name.endswith("norm.weight") else 0.0
    return values.normal_(mean, INITIALIZER_RANGE, generator=generator)


@click.command()
@click.argument("shape", type=click.Choice(sorted(SHAPES)))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def main(shape: str, folder: Path) -> None:
    """Write a checkpoint of SHAPE with random weights to FOLDER."""
    start = time.monotonic()
    write_checkpoint(folder, SHAPES[shape])
    print(
        json.dumps({"shape": shape, "gib": round(SHAPES[shape].num_bytes() / 2**30, 2), "s": time.monotonic() - start})
    )


if __name__ == "__main__":
    main()
