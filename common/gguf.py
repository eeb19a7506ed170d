"""Reads what a GGUF file says of itself: metadata, and where its tensors are. No byte of a tensor is read.

The format is llama.cpp's (ggml-org/ggml, docs/gguf.md): a magic word, a version, two counts, then key and value pairs,
then the tensors' names, shapes, types and offsets, then their data. All of it was written by somebody else: each count,
length and offset is held against a limit and against the file before memory is taken for it.
"""

import os
import struct
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from common.errors import CheckpointError
from common.model_files import MAGIC, MAX_SHARDS, ShardName, check_first_shard
from common.model_reading import open_model_file

MAX_HEADER_BYTES = 64 * 2**20  # all before the data, of all shards together; Gemma 3 with 514,906 merges has 16 MB
MAX_VALUES = 2**21  # in all arrays of a file; Gemma 3 has 1.3 million
MAX_KEYS = 2**12  # in a file; 60 are known
MAX_TENSORS = 2**16  # in all shards; 2,000 are known
MAX_DIMS = 4  # ggml has no more
MAX_NAME_BYTES = 2**10  # of a key or a tensor; ggml itself takes 63 for a tensor
_DEFAULT_ALIGNMENT = 32  # bytes

SUPPORTED_TYPES = {  # values in a block, and its bytes
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
_TYPES = (  # in the order of their numbers, those that llama.cpp has given up too
    "F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL "
    "IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0_4_4 Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0 IQ4_NL_4_4 IQ4_NL_4_8 "
    "IQ4_NL_8_8 MXFP4 NVFP4 Q1_0 Q2_0"
)
_TYPE_NAMES = dict(enumerate(_TYPES.split()))
_STRING, _ARRAY = 8, 9
_LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""What `struct` calls the types of numbers."""
_U32, _U64, _KIND_AND_OFFSET = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<IQ")
_COUNTS = struct.Struct("<4sIQQ")  # magic, version, tensors, keys
_ARRAY_HEAD = struct.Struct("<IQ")

Metadata = dict[str, Any]
"""By their keys: bools, ints, floats, strs, and lists of one of these."""


class GgufTensor(msgspec.Struct, frozen=True):
    """A stored tensor.

    Attributes:
        shape: as torch has it, with the longest stride first: the reverse of ggml's.
        kind: the name of its GGML type, one of `SUPPORTED_TYPES`.
        path: the file that holds it.
        offset: of its first byte in that file.
        num_bytes: that it takes there.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    path: Path
    offset: int
    num_bytes: int


class Gguf(msgspec.Struct, frozen=True):
    """The headers of a model's GGUF files.

    Attributes:
        metadata: of the first shard.
        tensors: of all shards that were read, by name.
        header_bytes: of each shard that was read, in order: all that comes before its tensors' data.
    """

    metadata: Metadata
    tensors: dict[str, GgufTensor]
    header_bytes: dict[Path, int]


def read_gguf(path: Path, *, all_shards: bool = True) -> Gguf:
    """Read what is written in a GGUF file before its tensors' data.

    Args:
        path: the file; of a model in several, the first one, whose name ends with `-00001-of-0000N.gguf`.
        all_shards: whether it is an error if one of the others is not there; it is left out otherwise.

    Raises:
        CheckpointError: a file is not there, is no GGUF file of version 2 or 3 in little endian, is truncated, has more
            of something than a limit, or contradicts itself; or a tensor's type is not supported.
    """
    check_first_shard(path)
    shard = ShardName.of(path)
    first = _read_file(path, MAX_HEADER_BYTES, MAX_TENSORS)
    count = max(1, _split_value(path, first.metadata, "split.count", 1))
    if count != (shard.count if shard else 1):
        by_name = f"one of {shard.count} shards" if shard else "a whole model"
        raise CheckpointError(f"{path} is {by_name} by its name, and one of {count} shards by its split.count")
    if count > MAX_SHARDS:
        raise CheckpointError(f"{path} is one of {count} shards, the limit is {MAX_SHARDS}")
    if (number := _split_value(path, first.metadata, "split.no", 0)) != 0:
        raise CheckpointError(f"{path} has split.no {number}, and the first shard has 0")
    tensors, header_bytes = first.tensors, first.header_bytes
    paths = [path.with_name(shard.sibling(number)) for number in range(2, count + 1)] if shard else []
    for number, other in enumerate(paths, 1):
        if not all_shards and not os.path.exists(other):
            continue
        found = _read_file(other, MAX_HEADER_BYTES - sum(header_bytes.values()), MAX_TENSORS - len(tensors))
        if (said := _split_value(other, found.metadata, "split.no", -1)) != number:
            raise CheckpointError(f"{other} has split.no {said}, and not {number}")
        if (said := _split_value(other, found.metadata, "split.count", -1)) != count:
            raise CheckpointError(f"{other} has split.count {said}, and {path.name} has {count}")
        if twice := tensors.keys() & found.tensors.keys():
            raise CheckpointError(f"{other} has the tensor {min(twice)}, and so has {tensors[min(twice)].path.name}")
        tensors |= found.tensors
        header_bytes |= found.header_bytes
    expected = _split_value(path, first.metadata, "split.tensors.count", len(tensors))
    if len(header_bytes) == count and len(tensors) != expected:
        raise CheckpointError(f"{path} has {len(tensors)} tensors in its shards, its split.tensors.count is {expected}")
    return Gguf(first.metadata, tensors, header_bytes)


def _split_value(path: Path, metadata: Metadata, key: str, absent: int) -> int:
    value = metadata.get(key, absent)
    if type(value) is not int:
        raise CheckpointError(f"{path} has {key} {value!r:.80}, which is no whole number")
    return value


def _read_file(path: Path, max_bytes: int, max_tensors: int) -> Gguf:
    """Read one file."""
    try:
        with open_model_file(path) as (file, size):
            return _parse(_Header(path, file, size, max_bytes), max_tensors)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"there is no {path}") from error


class _Header:
    """The beginning of a file, read as far as it is asked for.

    Args:
        size: of the file in bytes.
        max_bytes: that may be asked for.

    Attributes:
        position: of the next byte that is taken.
        what: is being taken, in the words of messages.
    """

    def __init__(self, path: Path, file: BinaryIO, size: int, max_bytes: int) -> None:
        self.path, self.size = path, size
        self.position = 0
        self.what = "what a GGUF file begins with"
        self._file, self._max_bytes = file, max_bytes
        self._data = b""
        self._num_values = 0

    def error(self, fault: str) -> CheckpointError:
        """Return an error with the file's name."""
        return CheckpointError(f"{self.path}: {fault}")

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Take numbers that stand one after the other."""
        start, self.position = self.position, self.position + layout.size
        return layout.unpack_from(self._until(self.position), start)

    def name(self, kind: str) -> str:
        """Take the name of something of a kind."""
        self.what = f"the name of a {kind}"
        (length,) = self.take(_U64)
        if not 0 < length <= MAX_NAME_BYTES:
            raise self.error(f"{self.what} has {length} bytes, allowed are 1 to {MAX_NAME_BYTES}")
        self.position -= _U64.size
        (name,) = self._strings(1)
        if not name.isprintable():
            raise self.error(f"{self.what} is {name!r:.80}, and only printable characters are allowed in it")
        return name

    def value(self, kind: int) -> Any:
        """Take a value of the type with this number."""
        if kind != _ARRAY:
            return self._values(kind, 1)[0]
        kind, count = self.take(_ARRAY_HEAD)
        if kind == _ARRAY:
            raise self.error(f"{self.what} is an array of arrays, which is not supported")
        self._num_values += count
        if self._num_values > MAX_VALUES:
            raise self.error(f"with {self.what}, arrays have {self._num_values} values, the limit is {MAX_VALUES}")
        return self._values(kind, count)

    def _values(self, kind: int, count: int) -> list[Any]:
        if kind == _STRING:
            return self._strings(count)
        if kind not in _LETTERS:
            raise self.error(f"{self.what} has the type {kind}, which GGUF does not have")
        return list(self.take(struct.Struct(f"<{count}{_LETTERS[kind]}")))

    def _strings(self, count: int) -> list[str]:
        """Take strings, each after its length. There are hundreds of thousands: all is written out in one loop."""
        found = []
        data, end, held = self._data, self.position, len(self._data)
        try:
            for _ in range(count):
                start = end + 8
                if start > held:
                    data = self._until(start)
                    held = len(data)
                end = start + int.from_bytes(data[end:start], "little")
                if end > held:
                    data = self._until(end)
                    held = len(data)
                found.append(data[start:end].decode())
        except UnicodeDecodeError as error:
            raise self.error(f"{self.what} is not in UTF-8: {error}") from error
        self.position = end
        return found

    def _until(self, end: int) -> bytes:
        """Return the file's bytes before a place, and perhaps some more."""
        if end > len(self._data):
            if end > self.size:
                raise self.error(f"the file is truncated: it has {self.size} bytes, and {self.what} ends at {end}")
            if end > self._max_bytes:
                raise self.error(f"{self.what} ends at byte {end}, and the limit for a header is {self._max_bytes}")
            wanted = min(max(end, 2 * len(self._data), 2**16), self.size, self._max_bytes)
            self._data += self._file.read(wanted - len(self._data))
            if end > len(self._data):
                raise self.error("the file became shorter while it was read")
        return self._data


def _parse(header: _Header, max_tensors: int) -> Gguf:
    magic, version, num_tensors, num_keys = header.take(_COUNTS) if header.size >= _COUNTS.size else (b"", 0, 0, 0)
    if magic != MAGIC:
        raise header.error("this is no GGUF file")
    if version & 0xFFFF == 0:
        raise header.error("this is a GGUF file in big endian, and only little endian is supported")
    if version not in (2, 3):
        raise header.error(f"this is a GGUF file of version {version}, and only 2 and 3 are supported")
    for what, found, limit in (("tensors", num_tensors, max_tensors), ("keys", num_keys, MAX_KEYS)):
        if found > limit:
            raise header.error(f"the file has {found} {what}, the limit is {limit}")
    metadata: Metadata = {}
    for _ in range(num_keys):
        key = header.name("key")
        if key in metadata:
            raise header.error(f"the key {key} is there twice")
        header.what = f"the value of {key}"
        (kind,) = header.take(_U32)
        metadata[key] = header.value(kind)
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
        raise header.error(f"general.alignment is {alignment!r:.80}, and not a power of two of 8 or more")
    found = [_tensor_info(header) for _ in range(num_tensors)]
    data_start = header.position + -header.position % alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in found:
        if name in tensors:
            raise header.error(f"the tensor {name} is there twice")
        tensors[name] = _placed(header, alignment, data_start, name, shape, kind, offset)
    _check_overlaps(header, tensors.values())
    return Gguf(metadata, tensors, {header.path: header.position})


def _tensor_info(header: _Header) -> tuple[str, tuple[int, ...], int, int]:
    """Take a tensor's name, shape in torch's order, type, and offset in the data."""
    name = header.name("tensor")
    header.what = f"the shape of {name}"
    (num_dims,) = header.take(_U32)
    if not 1 <= num_dims <= MAX_DIMS:
        raise header.error(f"{name} has {num_dims} dimensions, allowed are 1 to {MAX_DIMS}")
    shape = tuple(header.take(_U64)[0] for _ in range(num_dims))[::-1]
    kind, offset = header.take(_KIND_AND_OFFSET)
    return name, shape, kind, offset


def _placed(
    header: _Header, alignment: int, data_start: int, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> GgufTensor:
    type_name = _TYPE_NAMES.get(kind, f"type {kind}")
    if type_name not in SUPPORTED_TYPES:
        raise header.error(
            f"{name} is stored as {type_name}, which is not supported (supported: {', '.join(SUPPORTED_TYPES)})"
        )
    block, block_bytes = SUPPORTED_TYPES[type_name]
    if 0 in shape:
        raise header.error(f"{name} is {list(shape)}, which is nothing")
    if shape[-1] % block:
        raise header.error(f"{name} is {list(shape)}: rows of {type_name} have a multiple of {block} values")
    num_bytes = prod(shape) // block * block_bytes
    if offset % alignment:
        raise header.error(f"{name} is at {offset} in the data, which is no multiple of the alignment, {alignment}")
    start = data_start + offset
    if start + num_bytes > header.size:
        raise header.error(
            f"the file is truncated: it has {header.size} bytes, and {name}, {type_name} {list(shape)}, ends at "
            f"{start + num_bytes}"
        )
    return GgufTensor(name, shape, type_name, header.path, start, num_bytes)


def _check_overlaps(header: _Header, tensors: Iterable[GgufTensor]) -> None:
    end, last = 0, ""
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            raise header.error(f"{tensor.name} begins at byte {tensor.offset}, and {last} ends at {end}")
        end, last = tensor.offset + tensor.num_bytes, tensor.name
