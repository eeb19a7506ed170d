"""From safetensors to parameters: every name and shape is checked before a byte is read, then tensors stream one by
one into their place in the fused matrices and into the fingerprint."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from common.errors import CheckpointError
from executor_svc.config import Qwen3Config
from executor_svc.model import Qwen3Weights

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
READABLE_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES_SHOWN = 10


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class Checkpoint:
    """The opened safetensors files of a folder. A context manager; the files stay mapped until it exits.

    Args:
        folder: holds `model.safetensors`, or the shards that `model.safetensors.index.json` names.

    Raises:
        CheckpointError: a file is missing, truncated or no safetensors file, or the index and the shards disagree.
    """

    def __init__(self, folder: Path) -> None:
        self._files = ExitStack()
        self._source: dict[str, Any] = {}
        with ExitStack() as on_error:
            on_error.callback(self._files.close)
            for path, expected in _shards(folder).items():
                shard = self._open(path)
                held = set(shard.keys())
                if missing := (expected or set()) - held:
                    raise CheckpointError(_complaint(f"{path} lacks what its index says it has", missing))
                self._source.update(dict.fromkeys(held if expected is None else sorted(expected), shard))
            on_error.pop_all()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._files.close()

    @property
    def names(self) -> list[str]:
        """Names of all tensors, sorted, whichever file they are in."""
        return sorted(self._source)

    def header(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and stored dtype (`BF16`, ...) of a tensor."""
        entry = self._source[name].get_slice(name)
        return tuple(entry.get_shape()), entry.get_dtype()

    def read(self, name: str) -> Tensor:
        """A tensor as it is stored, on the CPU."""
        tensor: Tensor = self._source[name].get_tensor(name)
        return tensor

    def _open(self, path: Path) -> Any:
        try:
            return self._files.enter_context(safe_open(path, framework="pt", device="cpu"))
        except FileNotFoundError as error:
            raise CheckpointError(f"there is no {path}, which the index names") from error
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is truncated or no safetensors file: {error}") from error


def load_weights(
    checkpoint: Checkpoint, config: Qwen3Config, dtype: torch.dtype, device: torch.device
) -> tuple[Qwen3Weights, str]:
    """Read all weights, cast to `dtype`, and hash them.

    Returns:
        The weights, and the model's fingerprint: xxh3_128 (32 hex digits) over the configuration and the name and
        stored bytes of every tensor that is used. Neither sharding nor `dtype` changes it.

    Raises:
        CheckpointError: tensors are missing, unexpected, of another shape than the configuration says, or stored in
            a dtype that is not supported; the message names them.
    """
    # A tied checkpoint may hold lm_head.weight all the same, as a copy; transformers ignores it too.
    names = [name for name in checkpoint.names if not (config.tied and name == "lm_head.weight")]
    _check(checkpoint, names, _places(config, Qwen3Weights.empty(config, dtype, torch.device("meta"))))
    weights = Qwen3Weights.empty(config, dtype, device)
    places = _places(config, weights)
    digest = xxhash.xxh3_128(_identity(config))
    for name in names:
        tensor = checkpoint.read(name)
        digest.update(name.encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
        places[name].copy_(tensor)
    return weights, digest.hexdigest()


def stored_dtype(checkpoint: Checkpoint, config: Qwen3Config) -> torch.dtype:
    """The dtype a checkpoint was saved in: what its configuration says, else that of its embedding table.

    Raises:
        CheckpointError: it is not one that can be computed in.
    """
    by_name = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    name = "model.embed_tokens.weight"
    if not config.dtype and name in checkpoint.names:
        found, table = checkpoint.header(name)[1], READABLE_DTYPES
    else:
        found, table = config.dtype, by_name
    if found not in table:
        raise CheckpointError(f"the checkpoint's dtype is {found!r}; float32, bfloat16 and float16 can be served")
    return table[found]


def _shards(folder: Path) -> dict[Path, set[str] | None]:
    """Files to open, each with the tensors to take from it (None: all of them)."""
    if (folder / SINGLE_FILE).is_file():
        return {folder / SINGLE_FILE: None}
    index_path = folder / INDEX_FILE
    if not index_path.is_file():
        others = sorted(path.name for path in folder.glob("*.bin"))
        hint = f" (only safetensors are read, not {others[0]})" if others else ""
        raise CheckpointError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}{hint}")
    try:
        weight_map = msgspec.json.decode(index_path.read_bytes(), type=_Index).weight_map
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{index_path} is no index of safetensors: {error}") from error
    shards: dict[Path, set[str] | None] = {}
    for name, file in weight_map.items():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(f"{index_path} names {file!r}, which is not a safetensors file of that folder")
        expected = shards.setdefault(folder / file, set())
        assert expected is not None
        expected.add(name)
    if not shards:
        raise CheckpointError(f"{index_path} names no tensors")
    return shards


def _places(config: Qwen3Config, weights: Qwen3Weights) -> dict[str, Tensor]:
    """Where each tensor of a Hugging Face checkpoint goes: its name -> a view into the fused parameters."""
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    places = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    if not config.tied:
        places["lm_head.weight"] = weights.head
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        q, k, v = layer.qkv.split_with_sizes([q_size, kv_size, kv_size])
        gate, up = layer.gate_up.chunk(2)
        named = {
            "input_layernorm.weight": layer.input_norm,
            "self_attn.q_proj.weight": q,
            "self_attn.k_proj.weight": k,
            "self_attn.v_proj.weight": v,
            "self_attn.o_proj.weight": layer.output,
            "self_attn.q_norm.weight": layer.q_norm,
            "self_attn.k_norm.weight": layer.k_norm,
            "post_attention_layernorm.weight": layer.post_attention_norm,
            "mlp.gate_proj.weight": gate,
            "mlp.up_proj.weight": up,
            "mlp.down_proj.weight": layer.down,
        }
        if layer.qkv_bias is not None and layer.output_bias is not None:
            biases = (*layer.qkv_bias.split_with_sizes([q_size, kv_size, kv_size]), layer.output_bias)
            named.update((f"self_attn.{part}_proj.bias", bias) for part, bias in zip("qkvo", biases, strict=True))
        places.update((prefix + name, place) for name, place in named.items())
    return places


def _check(checkpoint: Checkpoint, names: list[str], places: Mapping[str, Tensor]) -> None:
    misshaped, unreadable = [], []
    for name in names:
        shape, stored = checkpoint.header(name)
        if name in places and shape != tuple(places[name].shape):
            misshaped.append(f"{name} is {list(shape)}, not {list(places[name].shape)}")
        if stored not in READABLE_DTYPES:
            unreadable.append(f"{name} is {stored}")
    complaints = [
        _complaint("it lacks", places.keys() - set(names)),
        _complaint("no Qwen3 of this configuration has", set(names) - places.keys()),
        _complaint("the configuration gives other shapes", misshaped),
        _complaint(f"only {', '.join(READABLE_DTYPES)} can be read", unreadable),
    ]
    if any(complaints):
        raise CheckpointError(f"the checkpoint cannot be loaded: {'; '.join(filter(None, complaints))}")


def _complaint(what: str, found: Iterable[str]) -> str:
    """`what`, with the first ten of what was found and the number of the others; empty if nothing was."""
    items = sorted(found, key=_natural_order)
    if not items:
        return ""
    more = f" and {len(items) - _NAMES_SHOWN} more" if len(items) > _NAMES_SHOWN else ""
    return f"{what}: {', '.join(items[:_NAMES_SHOWN])}{more}"


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Layer 2 before layer 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.replace(" ", ".").split(".")]


def _identity(config: Qwen3Config) -> bytes:
    """What of the configuration decides the tokens, as canonical JSON."""
    fields = msgspec.to_builtins(config)
    for irrelevant in ("dtype", "max_positions"):
        del fields[irrelevant]
    return msgspec.json.encode(fields, order="deterministic")
