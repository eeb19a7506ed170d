"""The tensors of a GGUF file, by the names and in the order of rows that Hugging Face's checkpoints have.

llama.cpp rotates neighbouring dimensions of a llama's heads, and its files have the rows of q and k in that order: what
stands `i` places into the second half of a head there follows what stands `i` places into the first one. Here each row
is read from its place. Values are computed tile by tile on their way into the target, so beside it there is no more
memory than a tile takes.
"""

import math
import mmap
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Self

import torch
from blake3 import blake3
from torch import Tensor

from common.errors import CheckpointError
from common.gguf import SUPPORTED_TYPES, Gguf, GgufTensor, read_gguf
from common.gguf_config import EMBEDDING, HEAD, ROPE_FACTORS
from common.model_reading import read_model_json
from executor_svc.model import checkpoint
from executor_svc.model.checkpoint import Checkpoint, Hashing, TensorSource, complaint
from executor_svc.model.checkpoint_layout import Slices
from executor_svc.model.gguf_blocks import PLAIN_TYPES, expand, read_groups

_TILE = 2**20  # values that are computed at once: 4 MiB, of which a CPU's cache has most
_NAMES = {EMBEDDING: checkpoint.EMBEDDING, HEAD: checkpoint.HEAD, "output_norm.weight": "model.norm.weight"}
_NAMES_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OF_LAYER = re.compile(r"blk\.(?P<layer>0|[1-9][0-9]*)\.(?P<part>\w+)\.(?P<kind>weight|bias)", re.ASCII)
_ROTATED = re.compile(r".*\.self_attn\.[qk]_proj\.(weight|bias)")


def open_checkpoint(path: Path) -> TensorSource:
    """Open a folder's safetensors files, or a GGUF file. Raises CheckpointError if one is missing or broken."""
    return GgufCheckpoint(path) if path.is_file() else Checkpoint(path)


class GgufCheckpoint:
    """The opened GGUF file of a model, and its other shards: a `TensorSource`.

    Attributes:
        folder: the file, or the first shard.
        is_quantized: whether a tensor is stored in integers with scales.

    Args:
        path: the file, or the first shard.

    Raises:
        CheckpointError: a shard is missing or broken, the architecture is not supported, or has no such tensor.
    """

    def __init__(self, path: Path) -> None:
        self.folder = path
        config, model = read_model_json(path / "config.json", dict) or {}, read_gguf(path)
        self._tensors = _by_name(path, model)
        self.is_quantized = any(tensor.kind not in PLAIN_TYPES for tensor in self._tensors.values())
        self._head_dim: int = config["head_dim"] if model.metadata["general.architecture"] == "llama" else 0
        self._maps = {shard: _mapped(shard, model.tensors.values()) for shard in model.header_bytes}
        self._hashing = Hashing()
        self._tile = torch.empty(_TILE)  # one for all: what is allocated between weights would lie in pieces among them

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._hashing.close()
        self._maps.clear()

    @property
    def names(self) -> list[str]:
        """See `TensorSource.names`."""
        return sorted(self._tensors)

    def header(self, name: str) -> tuple[tuple[int, ...], str]:
        """See `TensorSource.header`."""
        tensor = self._tensors[name]
        return tensor.shape, tensor.kind

    def read(self, name: str) -> Tensor:
        """See `TensorSource.read`: in the stored dtype, or in float32 if that is of integers."""
        tensor = self._tensors[name]
        target = torch.empty(tensor.shape, dtype=PLAIN_TYPES.get(tensor.kind, torch.float32))
        self.copy(name, (), target)
        return target

    def copy(self, name: str, part: Slices, target: Tensor) -> None:
        """See `TensorSource.copy`.

        Raises:
            CheckpointError: a scale is infinite or NaN.
        """
        tensor = self._tensors[name]
        rows, columns = (*part, slice(None), slice(None))[:2]
        assert isinstance(columns, slice)
        if len(tensor.shape) == 1:
            target = target.unsqueeze(-1)
        chosen = range(*rows.indices(tensor.shape[0])) if isinstance(rows, slice) else rows
        assert not isinstance(chosen, int)
        first, end, _ = columns.indices(math.prod(tensor.shape[1:]))
        size, num_bytes = SUPPORTED_TYPES[tensor.kind]
        first_block, end_block = first // size, -(-end // size)
        inside = slice(first - first_block * size, end - first_block * size)
        start = 0
        for stored in self._tiles(name, chosen):
            blocks = stored[:, first_block * num_bytes : end_block * num_bytes]
            if (dtype := PLAIN_TYPES.get(tensor.kind)) is not None:
                values = blocks.view(dtype)
            else:
                groups = read_groups(tensor, blocks)
                values = expand(groups, self._tile[: groups.integers.numel()].view(len(blocks), -1))
            target[start : start + len(values)].copy_(values[:, inside])
            start += len(values)

    def digest(self, name: str) -> Future[bytes]:
        """See `TensorSource.digest`. The bytes of rows are hashed in Hugging Face's order: a tensor has the digest that
        it has there if it is stored in the same dtype, and other values have another one."""

        def digest() -> bytes:
            hasher = blake3()
            for stored in self._tiles(name, range(self._tensors[name].shape[0])):
                hasher.update(stored.numpy().data)
            return hasher.digest()

        return self._hashing.submit(digest)

    def _tiles(self, name: str, rows: Sequence[int]) -> Iterator[Tensor]:
        """Yield the bytes of rows, tile by tile: [rows, bytes] uint8. A vector has a value in each row."""
        tensor = self._tensors[name]
        num_rows, width = tensor.shape[0], math.prod(tensor.shape[1:])
        whole = self._maps[tensor.path][tensor.offset : tensor.offset + tensor.num_bytes].view(num_rows, -1)
        is_interleaved = self._head_dim > 0 and _ROTATED.fullmatch(name) is not None
        at_once = max(1, _TILE // width)
        for start in range(0, len(rows), at_once):
            some = rows[start : start + at_once]
            if is_interleaved:
                yield whole[_places(some, self._head_dim)]
            else:
                yield whole[slice(some.start, some.stop) if isinstance(some, range) else list(some)]


def _places(rows: Sequence[int], head_dim: int) -> Tensor:
    """Say where rows of heads are that are stored with their halves interleaved."""
    numbers = torch.tensor(rows)
    dims, half = numbers % head_dim, head_dim // 2
    return numbers - dims + 2 * (dims % half) + dims // half


def _by_name(path: Path, model: Gguf) -> dict[str, GgufTensor]:
    """Give tensors the names that Hugging Face's checkpoints have."""
    names, unknown = dict(_NAMES), []
    for name, tensor in model.tensors.items():
        found = _OF_LAYER.fullmatch(name)
        if found and (part := _NAMES_IN_LAYER.get(found["part"])):
            names[name] = f"model.layers.{found['layer']}.{part}.{found['kind']}"
        elif name not in names and name != ROPE_FACTORS:  # of which config.json has the values
            unknown.append(name)
        if len(tensor.shape) == 1 and tensor.kind not in PLAIN_TYPES:
            raise CheckpointError(f"{path}: {name} is a vector that is stored as {tensor.kind}, which is not supported")
    if unknown:
        raise CheckpointError(complaint(f"{path} has tensors that no model of its architecture has", unknown))
    return {names[name]: tensor for name, tensor in model.tensors.items() if name != ROPE_FACTORS}


def _mapped(path: Path, tensors: Iterable[GgufTensor]) -> Tensor:
    """Map a file: uint8 [bytes], not to be written to. Its pages are in no memory of this process alone."""
    try:
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if any(tensor.path == path and tensor.offset + tensor.num_bytes > len(mapping) for tensor in tensors):
        raise CheckpointError(f"{path} became shorter while it was read")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(mapping, dtype=torch.uint8)
