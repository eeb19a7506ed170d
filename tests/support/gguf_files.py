"""Writes GGUF files: whole ones by llama.cpp's own writer, and broken ones byte by byte."""

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

STRING, ARRAY = 8, 9
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
