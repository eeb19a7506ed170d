"""Checkpoints with random weights, in the proportions of real models, and what transformers says of them."""

import functools
import shutil
from pathlib import Path
from typing import Any

import torch

from common.model_files import DEMO_MODEL_DIR, TOKENIZER_PATTERNS

# (heads, KV heads, head_dim) are those of the real models; the rest is small so that tests are quick.
PRESETS = {
    "0.6B": {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 64},
    "4B": {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 80},
    "32B": {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 96},
    "tiny": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 32},
    "30B-A3B": {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "hidden_size": 64},
}
# Of those with `experts`; real ones are 128, of which 8 compute a token, and 768 wide.
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True}
VOCAB_SIZE = 512
MEAN_ERROR, LARGEST_ERROR = 1.3, 3.0
"""Up to which multiple of transformers' error in bfloat16 ours is explained by another order of summing up: the mean
over many logits, and the largest."""


def make_checkpoint(
    folder: Path,
    *,
    preset: str = "0.6B",
    dtype: torch.dtype = torch.float32,
    tied: bool = True,
    num_layers: int = 4,
    shards: int = 1,
    experts: bool = False,
    family: str = "qwen3",
    rope: dict[str, Any] | None = None,
    seed: int = 0,
    tokenizer: bool = False,
    **config: Any,
) -> Path:
    """Write a random model through transformers' own `save_pretrained` and return its folder.

    Args:
        folder: made if need be.
        preset: one of `PRESETS`.
        dtype: stored and computed in.
        tied: whether the output projection is the embedding table.
        shards: files of weights, about; 1 writes a single one without an index.
        experts: whether it is a Qwen3-MoE, with `EXPERTS`.
        family: the `model_type` of any other.
        rope: transformers' `rope_parameters`.
        seed: of the weights.
        tokenizer: whether to copy the demo model's (the vocabulary becomes as large as that one's).
        config: anything else of transformers' class for the family's configuration.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": VOCAB_SIZE, "intermediate_size": 2 * PRESETS[preset]["hidden_size"], **PRESETS[preset]}
    if tokenizer:
        sizes["vocab_size"] = demo_vocab_size()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(
            "qwen3_moe" if experts else family,
            **{
                **sizes,
                **(EXPERTS if experts else {}),
                "num_hidden_layers": num_layers,
                "tie_word_embeddings": tied,
                "max_position_embeddings": 2048,
                "rope_parameters": rope or {"rope_type": "default", "rope_theta": 10_000.0},
                # Far above the usual 0.02, so that the best two logits are well apart and attention matters.
                "initializer_range": 0.3,
                **config,
            },
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):  # transformers leaves these at 1 and 0, which hides mix-ups
                parameter.add_(0.3 * torch.randn_like(parameter))
    num_bytes = sum(parameter.numel() * dtype.itemsize for parameter in model.parameters())
    limit = num_bytes * 2 if shards == 1 else num_bytes // shards
    model.to(dtype).save_pretrained(folder, max_shard_size=limit)
    if tokenizer:
        copy_tokenizer(folder)
    return folder


def copy_tokenizer(folder: Path) -> None:
    """Give a checkpoint the demo model's tokenizer, and its generation defaults."""
    for pattern in TOKENIZER_PATTERNS:
        for path in DEMO_MODEL_DIR.glob(pattern):
            if path.name != "config.json":
                shutil.copy(path, folder)


def demo_vocab_size() -> int:
    """Size of the demo model's vocabulary."""
    import msgspec

    config: dict[str, Any] = msgspec.json.decode((DEMO_MODEL_DIR / "config.json").read_bytes())
    return int(config["vocab_size"])


@functools.lru_cache(maxsize=8)
def reference_model(model_dir: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The checkpoint as transformers loads it, in eval mode on the CPU."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype).eval()


@torch.inference_mode()
def reference_greedy(model_dir: Path, prompt_ids: list[int], max_new_tokens: int) -> list[int]:
    """What transformers generates greedily in float32, without stopping at any token."""
    output = reference_model(model_dir).generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.int64),
        max_new_tokens=max_new_tokens,
        min_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    new_tokens: list[int] = output[0, len(prompt_ids) :].tolist()
    return new_tokens


@torch.inference_mode()
def reference_logits(model_dir: Path, token_ids: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """transformers' scores after every token of `token_ids`, float32 [tokens, vocab]."""
    logits: torch.Tensor = reference_model(model_dir, dtype)(torch.tensor([token_ids])).logits[0].float()
    return logits
