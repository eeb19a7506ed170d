"""The tensors of a Hugging Face checkpoint of Qwen3: their names and shapes, and where each goes."""

from dataclasses import dataclass

from torch import Tensor

from executor_svc.model.config import Qwen3Config
from executor_svc.model.mlp import DenseMlp, Mlp
from executor_svc.model.model import LayerWeights, Qwen3Weights
from executor_svc.model.sharding import Shard


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint, and the part of it that a rank keeps.

    Attributes:
        shape: of the stored tensor.
        target: a view into the parameters, or None if this rank keeps nothing.
        part: the slices of the stored tensor that go to `target`.
    """

    shape: tuple[int, ...]
    target: Tensor | None
    part: tuple[slice, ...] = ()


def stored_tensors(config: Qwen3Config, shard: Shard, weights: Qwen3Weights) -> dict[str, StoredTensor]:
    """Every tensor that a checkpoint of `config` holds, by name. `weights` are those of `shard`."""
    vocab = slice(shard.vocab.start, shard.vocab.stop)
    table = (config.vocab_size, config.hidden_size)
    found = {
        "model.embed_tokens.weight": StoredTensor(table, weights.embedding[: len(shard.vocab)], (vocab,)),
        "model.norm.weight": _whole(weights.norm),
    }
    if not config.tied:
        found["lm_head.weight"] = StoredTensor(table, weights.head[: len(shard.vocab)], (vocab,))
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        found[prefix + "input_layernorm.weight"] = _whole(layer.input_norm)
        found[prefix + "post_attention_layernorm.weight"] = _whole(layer.post_attention_norm)
        found.update((f"{prefix}self_attn.{name}", stored) for name, stored in _attention(config, shard, layer).items())
        found.update((f"{prefix}mlp.{name}", stored) for name, stored in _mlp(config, shard, layer.mlp).items())
    return found


def _attention(config: Qwen3Config, shard: Shard, layer: LayerWeights) -> dict[str, StoredTensor]:
    hidden, head_dim = config.hidden_size, config.head_dim
    heads = _slice(shard.rank * shard.num_heads * head_dim, shard.num_heads * head_dim)
    kv_heads = _slice(shard.first_kv_head * head_dim, shard.num_kv_heads * head_dim)
    parts = {"q": (config.num_heads, heads), "k": (config.num_kv_heads, kv_heads), "v": (config.num_kv_heads, kv_heads)}
    sizes = [part.stop - part.start for _, part in parts.values()]
    found = {
        "q_norm.weight": _whole(layer.q_norm),
        "k_norm.weight": _whole(layer.k_norm),
        "o_proj.weight": StoredTensor((hidden, config.num_heads * head_dim), layer.output, (slice(None), heads)),
    }
    for (name, (count, part)), target in zip(parts.items(), layer.qkv.split_with_sizes(sizes), strict=True):
        found[f"{name}_proj.weight"] = StoredTensor((count * head_dim, hidden), target, (part,))
    if layer.qkv_bias is not None:
        found["o_proj.bias"] = StoredTensor((hidden,), layer.output_bias)
        for (name, (count, part)), target in zip(parts.items(), layer.qkv_bias.split_with_sizes(sizes), strict=True):
            found[f"{name}_proj.bias"] = StoredTensor((count * head_dim,), target, (part,))
    return found


def _mlp(config: Qwen3Config, shard: Shard, mlp: Mlp) -> dict[str, StoredTensor]:
    if isinstance(mlp, DenseMlp):
        return _swiglu("", config.hidden_size, config.intermediate_size, shard, mlp.gate_up, mlp.down)
    found = {"gate.weight": _whole(mlp.router)}
    for index, (gate_up, down) in enumerate(zip(mlp.gate_up, mlp.down, strict=True)):
        prefix = f"experts.{index}."
        found.update(_swiglu(prefix, config.hidden_size, mlp.config.intermediate_size, shard, gate_up, down))
    return found


def _swiglu(
    prefix: str, hidden: int, intermediate: int, shard: Shard, gate_up: Tensor, down: Tensor
) -> dict[str, StoredTensor]:
    gate, up = gate_up.chunk(2)
    part = _slice(shard.rank * len(gate), len(gate))
    return {
        f"{prefix}gate_proj.weight": StoredTensor((intermediate, hidden), gate, (part,)),
        f"{prefix}up_proj.weight": StoredTensor((intermediate, hidden), up, (part,)),
        f"{prefix}down_proj.weight": StoredTensor((hidden, intermediate), down, (slice(None), part)),
    }


def _whole(target: Tensor) -> StoredTensor:
    return StoredTensor(tuple(target.shape), target)


def _slice(start: int, length: int) -> slice:
    return slice(start, start + length)
