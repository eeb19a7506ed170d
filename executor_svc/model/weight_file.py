"""Prepared weights in one piece of memory that says itself what is in it: a file, whatever device it is on.

The tensors lie one after the other from the beginning. At the end are a manifest of their names, dtypes, shapes and
places, and after it a trailer with the manifest's length and checksum. The checksum shows accidents and no forgery:
whoever can write the manifest can write the checksum, too.
"""

import struct
from collections.abc import Mapping

import msgspec
import torch
import xxhash
from torch import Tensor

from common.errors import BatonError
from common.messages import WeightsKind
from executor_svc.model.packing import TensorSpec
from executor_svc.model.weight_memory import WeightMemories

FORMAT_VERSION = 3
"""Also of what tensors are called, and of the fingerprint: files of other versions are never found."""
ALIGNMENT = 256
"""Bytes: what CUDA's own allocations have at least, and kernels may count on. A CPU's cache line is 64."""
FINGERPRINT_CHARS = 64

_MAGIC = b"BatonWts"
_TRAILER = struct.Struct("<8sQQ")  # magic, the manifest's length, its xxh3_64
_MAX_MANIFEST_BYTES = 2**26


class WeightFileError(BatonError):
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
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        entries.append(Entry(name, str(spec.dtype).removeprefix("torch."), spec.shape, offset))
        end = offset + spec.num_bytes
    return tuple(entries), end


class WeightWriter:
    """A file whose tensors are being written. A context manager, which closes the descriptor.

    Args:
        specs: of all its tensors.
        kind: of the weights.
        memories: where it is made.

    Raises:
        BatonError: the memory cannot be had.
    """

    def __init__(self, specs: Mapping[str, TensorSpec], kind: WeightsKind, memories: WeightMemories) -> None:
        entries, data_bytes = place_tensors(specs)
        self._manifest = Manifest(FORMAT_VERSION, "0" * FINGERPRINT_CHARS, kind, entries)
        self._offsets = {entry.name: entry.offset for entry in entries}
        self._memory = memories.create(data_bytes + len(_encoded(self._manifest)))
        self._content = self._memory.tensor()

    def __enter__(self) -> "WeightWriter":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._memory.close()

    @property
    def num_bytes(self) -> int:
        """Of the file."""
        return self._memory.num_bytes

    @property
    def descriptor(self) -> int:
        """Of the file."""
        return self._memory.descriptor

    def new(self, name: str, spec: TensorSpec) -> Tensor:
        """The memory of a tensor, whose values stay after `seal`."""
        return _view(self._content, spec, self._offsets[name])

    def seal(self, fingerprint: str) -> None:
        """Write the manifest, and no more from then on.

        Raises:
            BatonError: it cannot be sealed; its tensors are good.
        """
        assert len(fingerprint) == FINGERPRINT_CHARS
        encoded = _encoded(msgspec.structs.replace(self._manifest, fingerprint=fingerprint))
        self._content[-len(encoded) :].copy_(torch.frombuffer(bytearray(encoded), dtype=torch.uint8))
        self._memory.seal()


def read_tensors(content: Tensor, specs: Mapping[str, TensorSpec], kind: WeightsKind) -> tuple[dict[str, Tensor], str]:
    """The tensors of a file, which are views of its memory.

    Args:
        content: all of its bytes, uint8.
        specs: the tensors that it has to have, and no other ones.
        kind: that it has to be of.

    Returns:
        The tensors by name, and the model's fingerprint.

    Raises:
        WeightFileError: the file holds something else.
    """
    manifest, data_bytes = _read_manifest(content)
    if manifest.kind != kind:
        raise WeightFileError(f"it is of another kind: {manifest.kind}, not {kind}")
    _check_entries(manifest.tensors, specs, data_bytes)
    tensors = {entry.name: _view(content, specs[entry.name], entry.offset) for entry in manifest.tensors}
    return tensors, manifest.fingerprint


def _read_manifest(content: Tensor) -> tuple[Manifest, int]:
    """The manifest, and how many bytes lie before it."""
    num_bytes = len(content)
    if num_bytes < _TRAILER.size:
        raise WeightFileError(f"it has {num_bytes} bytes, which are no file of weights")
    magic, length, digest = _TRAILER.unpack(_bytes(content[-_TRAILER.size :]))
    if magic != _MAGIC:
        raise WeightFileError(f"it ends with {magic!r}, which is no file of weights")
    data_bytes = num_bytes - _TRAILER.size - length
    if not 0 < length <= _MAX_MANIFEST_BYTES or data_bytes <= 0:
        raise WeightFileError(f"its manifest has {length} bytes, and the file {num_bytes}")
    encoded = _bytes(content[data_bytes : data_bytes + length])
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


def _view(content: Tensor, spec: TensorSpec, offset: int) -> Tensor:
    return content[offset : offset + spec.num_bytes].view(spec.dtype).view(spec.shape)


def _bytes(content: Tensor) -> bytes:
    return content.cpu().numpy().tobytes()
