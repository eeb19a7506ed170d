"""Prepared weights in a sealed memory file, which says itself what is in it.

The tensors lie one after the other. Behind them is a manifest of their names, dtypes, shapes and places, and at the end
a trailer with the manifest's length and hash.
"""

import os
import struct
import weakref
from collections.abc import Mapping
from mmap import PAGESIZE

import msgspec
import torch
import xxhash
from torch import Tensor

from common.errors import KeeperError
from common.messages import WeightsKind
from executor_svc.keeper.memory import Mapping as MemoryMapping
from executor_svc.keeper.memory import check_memory, create_memory, seal_read_only
from executor_svc.model.packing import TensorSpec

FORMAT_VERSION = 1
ALIGNMENT = 64
"""Bytes: a cache line, and what the widest loads want."""
FINGERPRINT_CHARS = 32

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
    """Where tensors go, in their order, and the bytes of all: whole pages, so that they can be mapped alone."""
    entries, end = [], 0
    for name, spec in specs.items():
        offset = _aligned(end, ALIGNMENT)
        entries.append(Entry(name, str(spec.dtype).removeprefix("torch."), spec.shape, offset))
        end = offset + spec.num_bytes
    return tuple(entries), _aligned(end, PAGESIZE)


class WeightWriter:
    """A file whose tensors are being written. A context manager, which closes the file.

    Args:
        specs: of all its tensors.
        kind: of the weights.

    Raises:
        KeeperError: the system does not give so much memory.

    Attributes:
        memory: the file.
        num_bytes: of the file.
    """

    def __init__(self, specs: Mapping[str, TensorSpec], kind: WeightsKind) -> None:
        entries, self._data_bytes = place_tensors(specs)
        self._manifest = Manifest(FORMAT_VERSION, "0" * FINGERPRINT_CHARS, kind, entries)
        self._offsets = {entry.name: entry.offset for entry in entries}
        self.num_bytes = self._data_bytes + len(_encoded(self._manifest))  # the file cannot grow
        self.memory = create_memory("baton-weights", self.num_bytes, to_be_read_only=True)
        try:
            self._mapping = MemoryMapping(self._data_bytes)
            self._mapping.map(self.memory)
        except KeeperError:
            os.close(self.memory)
            raise
        self._content = _content(self._mapping)
        self._mapping.collapse()  # while it is empty, which is when that is cheap

    def __enter__(self) -> "WeightWriter":
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self.memory)

    def new(self, name: str, spec: TensorSpec) -> Tensor:
        """The memory of a tensor, whose values stay after `seal`."""
        return _view(self._content, spec, self._offsets[name])

    def seal(self, fingerprint: str) -> None:
        """Write the manifest, and make the file one that nobody can change.

        Raises:
            KeeperError: it cannot be sealed; its tensors are good.
        """
        assert len(fingerprint) == FINGERPRINT_CHARS
        manifest = msgspec.structs.replace(self._manifest, fingerprint=fingerprint)
        _write(self.memory, _encoded(manifest), self._data_bytes)
        self._mapping.map(self.memory, read_only=True)  # at the same addresses: the tensors stay where they are
        seal_read_only(self.memory)


def map_tensors(
    memory: int, num_bytes: int, specs: Mapping[str, TensorSpec], kind: WeightsKind
) -> tuple[dict[str, Tensor], str]:
    """Map a file for reading. Its tensors keep the mapping; the file may be closed.

    Args:
        num_bytes: that the file has to have.
        specs: the tensors that it has to have, and no other ones.
        kind: that it has to be of.

    Returns:
        The tensors by name, and the model's fingerprint.

    Raises:
        WeightFileError: the file holds something else.
    """
    try:
        check_memory(memory, num_bytes, read_only=True)
        manifest, data_bytes = _read_manifest(memory, num_bytes)
        if manifest.kind != kind:
            raise WeightFileError(f"it is of another kind: {manifest.kind}, not {kind}")
        _check_entries(manifest.tensors, specs, data_bytes)
        mapping = MemoryMapping(data_bytes)
        mapping.map(memory, read_only=True)
    except KeeperError as error:
        raise WeightFileError(str(error)) from error
    content = _content(mapping)
    tensors = {entry.name: _view(content, specs[entry.name], entry.offset) for entry in manifest.tensors}
    return tensors, manifest.fingerprint


def _read_manifest(memory: int, num_bytes: int) -> tuple[Manifest, int]:
    """The manifest, and how many bytes lie before it."""
    if num_bytes < _TRAILER.size:
        raise WeightFileError(f"it has {num_bytes} bytes, which are no file of weights")
    magic, length, digest = _TRAILER.unpack(os.pread(memory, _TRAILER.size, num_bytes - _TRAILER.size))
    if magic != _MAGIC:
        raise WeightFileError(f"it ends with {magic!r}, which is no file of weights")
    data_bytes = num_bytes - _TRAILER.size - length
    if not 0 < length <= _MAX_MANIFEST_BYTES or data_bytes <= 0 or data_bytes % PAGESIZE:
        raise WeightFileError(f"its manifest has {length} bytes, and the file {num_bytes}")
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


def _encoded(manifest: Manifest) -> bytes:
    """A manifest with its trailer."""
    encoded = msgspec.msgpack.encode(manifest)
    return encoded + _TRAILER.pack(_MAGIC, len(encoded), xxhash.xxh3_64_intdigest(encoded))


def _content(mapping: MemoryMapping) -> Tensor:
    """A mapping's bytes; it lasts as long as they or a view of them."""
    buffer = mapping.buffer()
    weakref.finalize(buffer, mapping.unmap).atexit = False
    return torch.frombuffer(buffer, dtype=torch.uint8)


def _view(content: Tensor, spec: TensorSpec, offset: int) -> Tensor:
    return content[offset : offset + spec.num_bytes].view(spec.dtype).view(spec.shape)


def _write(memory: int, data: bytes, offset: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(memory, data[written:], offset + written)


def _aligned(num_bytes: int, unit: int) -> int:
    return -(-num_bytes // unit) * unit
