"""Prepared weights in a sealed memory file, which says itself what is in it.

The tensors lie one after the other. Behind them is a manifest of their names, dtypes, shapes and places, and at the end
a trailer with the manifest's length and hash.
"""

import os
import struct
from collections.abc import Mapping

import msgspec
import torch
import xxhash
from torch import Tensor

from common.messages import WeightsKind
from executor_svc.model.memory_file import HUGE_PAGE_BYTES, create_memory, is_sealed, seal_read_only
from executor_svc.model.memory_file import Mapping as MemoryMapping
from executor_svc.model.packing import TensorSpec

FORMAT_VERSION = 1
ALIGNMENT = 64
"""Bytes: a cache line, and what the widest loads want."""

_MAGIC = b"BatonWts"
_TRAILER = struct.Struct("<8sQQ")  # magic, the manifest's length, its xxh3_64
_MAX_MANIFEST_BYTES = 2**26


class WeightFileError(Exception):
    """A file does not hold the weights that are wanted; the message says why."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor of the file.

    Attributes:
        dtype: as torch names it, such as `bfloat16`.
        offset: of its first byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file holds.

    Attributes:
        version: `FORMAT_VERSION` of the writer.
        fingerprint: of the model.
    """

    version: int
    fingerprint: str
    kind: WeightsKind
    tensors: tuple[Entry, ...]


def place_tensors(specs: Mapping[str, TensorSpec]) -> tuple[tuple[Entry, ...], int]:
    """Where tensors go, in their order, and the bytes of all."""
    entries, end = [], 0
    for name, spec in specs.items():
        offset = _aligned(end)
        entries.append(Entry(name, str(spec.dtype).removeprefix("torch."), spec.shape, offset))
        end = offset + spec.num_bytes
    return tuple(entries), _aligned(end)


class WeightWriter:
    """A file whose tensors are being written. A context manager, which closes a file that was not sealed.

    Args:
        specs: of all its tensors.

    Raises:
        OSError: the system does not give so much memory.
    """

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        self._entries, self._data_bytes = place_tensors(specs)
        self._offsets = {entry.name: entry.offset for entry in self._entries}
        self._huge_until = 0
        self._sealed = False
        self._memory = create_memory("baton-weights", self._data_bytes)
        try:
            self._mapping = MemoryMapping(self._memory, self._data_bytes, writable=True)
        except OSError:
            os.close(self._memory)
            raise
        self._bytes = torch.frombuffer(self._mapping.buffer(), dtype=torch.uint8)

    def new(self, name: str, spec: TensorSpec) -> Tensor:
        """The memory of a tensor; after `seal` it can only be read."""
        offset = self._offsets[name]
        pages = min(-(-(offset + spec.num_bytes) // HUGE_PAGE_BYTES), self._data_bytes // HUGE_PAGE_BYTES)
        end = pages * HUGE_PAGE_BYTES
        if end > self._huge_until:
            self._mapping.use_huge_pages(self._huge_until, end)
            self._huge_until = end
        return _view(self._bytes, spec, offset)

    def __enter__(self) -> "WeightWriter":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._sealed:
            os.close(self._memory)

    def seal(self, kind: WeightsKind, fingerprint: str) -> int:
        """Write the manifest, and make the file what nobody can change. Returns the file; the caller closes it."""
        manifest = msgspec.msgpack.encode(Manifest(FORMAT_VERSION, fingerprint, kind, self._entries))
        trailer = _TRAILER.pack(_MAGIC, len(manifest), xxhash.xxh3_64_intdigest(manifest))
        _write(self._memory, manifest + trailer, self._data_bytes)
        self._mapping.make_read_only(self._memory)
        seal_read_only(self._memory)
        self._sealed = True
        return self._memory


def map_tensors(memory: int, specs: Mapping[str, TensorSpec], kind: WeightsKind) -> tuple[dict[str, Tensor], Manifest]:
    """Map a file for reading. Its tensors keep the mapping; the file may be closed.

    Args:
        specs: the tensors that it has to have, and no other ones.
        kind: that it has to be of.

    Raises:
        WeightFileError: the file holds something else.
    """
    manifest, data_bytes = _read_manifest(memory)
    if manifest.kind != kind:
        raise WeightFileError(f"it is of another kind: {manifest.kind}, not {kind}")
    _check_entries(manifest.tensors, specs, data_bytes)
    try:
        mapping = MemoryMapping(memory, data_bytes, writable=False)
    except OSError as error:
        raise WeightFileError(str(error)) from error
    content = torch.frombuffer(mapping.buffer(), dtype=torch.uint8)
    return {entry.name: _view(content, specs[entry.name], entry.offset) for entry in manifest.tensors}, manifest


def _read_manifest(memory: int) -> tuple[Manifest, int]:
    """The manifest, and how many bytes lie before it."""
    if not is_sealed(memory):
        raise WeightFileError("it is not sealed")
    size = os.fstat(memory).st_size
    if size < _TRAILER.size:
        raise WeightFileError(f"it has {size} bytes, which are no file of weights")
    magic, length, digest = _TRAILER.unpack(os.pread(memory, _TRAILER.size, size - _TRAILER.size))
    if magic != _MAGIC:
        raise WeightFileError(f"it ends with {magic!r}, which is no file of weights")
    data_bytes = size - _TRAILER.size - length
    if not 0 < length <= _MAX_MANIFEST_BYTES or data_bytes <= 0:
        raise WeightFileError(f"its manifest has {length} bytes, and the file {size}")
    encoded = os.pread(memory, length, data_bytes)
    if xxhash.xxh3_64_intdigest(encoded) != digest:
        raise WeightFileError("its manifest is damaged")
    try:
        version = msgspec.msgpack.decode(encoded, type=_Versioned).version
        if version != FORMAT_VERSION:
            raise WeightFileError(f"its format is version {version}, not {FORMAT_VERSION}")
        return msgspec.msgpack.decode(encoded, type=Manifest), data_bytes
    except msgspec.MsgspecError as error:
        raise WeightFileError(f"its manifest cannot be read: {error}") from error


class _Versioned(msgspec.Struct, frozen=True):
    version: int


def _check_entries(entries: tuple[Entry, ...], specs: Mapping[str, TensorSpec], data_bytes: int) -> None:
    names = [entry.name for entry in entries]
    if sorted(names) != sorted(specs):
        odd = sorted(set(names) ^ set(specs)) or ["a name twice"]
        raise WeightFileError(f"it has other tensors: {', '.join(odd[:3])} ({len(odd)} differ)")
    for entry in entries:
        spec = specs[entry.name]
        if (entry.dtype, entry.shape) != (str(spec.dtype).removeprefix("torch."), spec.shape):
            wanted = f"{str(spec.dtype).removeprefix('torch.')} {list(spec.shape)}"
            raise WeightFileError(f"{entry.name} is {entry.dtype} {list(entry.shape)}, not {wanted}")
        if entry.offset % ALIGNMENT or not 0 <= entry.offset <= data_bytes - spec.num_bytes:
            raise WeightFileError(
                f"{entry.name} lies at {entry.offset}, and the file has {data_bytes} bytes of tensors"
            )


def _view(content: Tensor, spec: TensorSpec, offset: int) -> Tensor:
    return content[offset : offset + spec.num_bytes].view(spec.dtype).view(spec.shape)


def _write(memory: int, data: bytes, offset: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(memory, data[written:], offset + written)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
