"""Writes GGUF files: whole ones by llama.cpp's own writer, and broken ones byte by byte."""

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from common.gguf import SUPPORTED_TYPES

STRING, ARRAY = 8, 9
SCALE_PLACES = {  # of the 16-bit floats in a block, in bytes
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
SMALL_LLAMA = {
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
Key = tuple[str | bytes, int, bytes]
"""A name, the number of a type, and the value's bytes."""
Info = tuple[str | bytes, Iterable[int], int, int]
"""A tensor's name, its shape as ggml has it, the number of its type, and its offset in the data."""


def text(content: str | bytes) -> bytes:
    """A string as the format has it."""
    content = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(content)) + content


def string_key(name: str, content: str | bytes) -> Key:
    return name, STRING, text(content)


def number_key(name: str, layout: str, number: float) -> Key:
    kinds = {"B": 0, "b": 1, "H": 2, "h": 3, "I": 4, "i": 5, "f": 6, "?": 7, "Q": 10, "q": 11, "d": 12}
    return name, kinds[layout], struct.pack(f"<{layout}", number)


def array_key(name: str, kind: int, items: bytes, count: int) -> Key:
    return name, ARRAY, struct.pack("<IQ", kind, count) + items


def gguf_bytes(
    keys: Iterable[Key] = (),
    tensors: Iterable[Info] = (),
    data_bytes: int = 0,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file, whatever it says; its data are zeros."""
    keys, tensors = [*keys], [*tensors]
    counts = [len(tensors) if num_tensors is None else num_tensors, len(keys) if num_keys is None else num_keys]
    parts = [magic, struct.pack("<IQQ", version, *counts)]
    parts += [text(name) + struct.pack("<I", kind) + value for name, kind, value in keys]
    for name, shape, kind, offset in tensors:
        dims = [*shape]
        parts.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset))
    header = b"".join(parts)
    return header + bytes(-len(header) % alignment) + bytes(data_bytes)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[np.ndarray, str]],
    arch: str = "llama",
    split_max_tensors: int = 0,
) -> Path:
    """Write a file by llama.cpp's own writer.

    Args:
        metadata: strings, bools, lists, and ints and floats, which are written with 32 bits.
        tensors: the bytes of rows (uint8 [..., bytes]) or values, and the type that they are stored as.
        split_max_tensors: of one shard; 0: all are in one file.

    Returns:
        The file, or the first shard.
    """
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split_max_tensors)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, (content, kind) in tensors.items():
        writer.add_tensor(name, content, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else next(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def random_blocks(rng: np.random.Generator, shape: tuple[int, ...], kind: str, size: float | None = None) -> np.ndarray:
    """Bytes of a tensor of a type: random blocks, with finite scales.

    Args:
        size: of scales, about; None: any 16-bit floats, zeros of both signs and subnormal ones among them.

    Returns:
        [..., bytes in a row] uint8.
    """
    values, num_bytes = SUPPORTED_TYPES[kind]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // values, num_bytes), np.uint8)
    for place in SCALE_PLACES[kind]:
        scales = rng.integers(0, 2**16, blocks.shape[:-1], np.uint16).view(np.float16)
        special = rng.choice(np.array([0.0, -0.0, 2.0**-24, -(2.0**-20)], np.float16), scales.shape)
        scales = np.where(rng.random(scales.shape) < 0.2, special, np.where(np.isfinite(scales), scales, 1))
        if size is not None:
            scales = size * (0.5 + rng.random(scales.shape))
        blocks[..., place : place + 2] = scales.astype("<f2")[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def convert(folder: Path, path: Path, kind: str = "F32", **how: Any) -> dict[str, np.ndarray]:
    """Write a GGUF file of a checkpoint in a folder, as llama.cpp's converter does.

    Args:
        folder: has config.json and model.safetensors, of a llama, mistral, qwen2 or qwen3.
        path: of the file.
        kind: that matrices are stored as. Of types that `gguf` cannot quantize to, they are random blocks.
        how: see `write_gguf`.

    Returns:
        The values in the file by the names in the folder, float32.
    """
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_bytes())
    arch = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config["num_hidden_layers"])
    rng, stored, values = np.random.default_rng(0), {}, {}
    for name, content in load_file(folder / "model.safetensors").items():
        value = content.float().numpy()
        fits = value.ndim > 1 and value.shape[-1] % SUPPORTED_TYPES[kind][0] == 0
        chosen = gguf.GGMLQuantizationType[kind if fits else "F32"]
        if arch == "llama" and ".self_attn.q_proj." in name:
            value = interleaved(value, config["num_attention_heads"])
        if arch == "llama" and ".self_attn.k_proj." in name:
            value = interleaved(value, config["num_key_value_heads"])
        if chosen.name.endswith("_K"):
            rows = random_blocks(rng, value.shape, chosen.name, size=0.3 / 63 / 16)
        else:
            rows = gguf.quants.quantize(value, chosen)
        stored[names.get_name(name, (".weight", ".bias")) or name] = (rows, chosen.name)
        value = gguf.quants.dequantize(rows, chosen)
        if arch == "llama" and ".self_attn.q_proj." in name:
            value = halved(value, config["num_attention_heads"])
        if arch == "llama" and ".self_attn.k_proj." in name:
            value = halved(value, config["num_key_value_heads"])
        values[name] = value
    write_gguf(path, _metadata(arch, config), stored | _rope_factors(folder, config), arch, **how)
    return values


def interleaved(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of heads in llama.cpp's order: of the first half and of the second in turns."""
    halves = rows.reshape(num_heads, 2, len(rows) // num_heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def halved(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """The other way round."""
    pairs = rows.reshape(num_heads, len(rows) // num_heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _metadata(arch: str, config: dict[str, Any]) -> dict[str, Any]:
    rope = config["rope_parameters"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    said = {
        "vocab_size": config["vocab_size"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.dimension_count": head_dim,
        "rope.freq_base": float(rope["rope_theta"]),
    }
    if rope["rope_type"] in ("linear", "yarn"):
        said |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] == "yarn":
        said["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return {f"{arch}.{key}": value for key, value in said.items()}


def _rope_factors(folder: Path, config: dict[str, Any]) -> dict[str, tuple[np.ndarray, str]]:
    """Llama 3.1's scaling: how often transformers' own frequencies go into those that are not scaled."""
    if config["rope_parameters"]["rope_type"] != "llama3":
        return {}
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    loaded = AutoConfig.from_pretrained(folder)
    scaled = ROPE_INIT_FUNCTIONS["llama3"](loaded, "cpu")[0].double().numpy()
    exponents = np.arange(len(scaled)) / len(scaled)
    factors = config["rope_parameters"]["rope_theta"] ** -exponents / scaled
    return {"rope_freqs.weight": (factors.astype(np.float32), "F32")}
