"""The tensors of a GGUF file, by the names and in the order of rows that Hugging Face's checkpoints have.

llama.cpp rotates neighbouring dimensions of a llama's heads, and its files have the rows of q and k in that order: what
stands `i` places into the second half of a head there follows what stands `i` places into the first one. Here each row
is read from its place. Values are computed tile by tile on their way into the target, so beside it there is no more
memory than a tile takes.

Files are read and not mapped: a mapped one that becomes shorter, or whose disk fails, kills the process without a word.
"""

import math
import os
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

from common.errors import CheckpointError
from common.gguf import SUPPORTED_TYPES, Gguf, GgufTensor, read_gguf
from common.gguf_config import EMBEDDING, HEAD, ROPE_FACTORS
from common.model_reading import open_model_file, read_model_json
from executor_svc.model import checkpoint
from executor_svc.model.checkpoint import Checkpoint, TensorSource, complaint
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


class GgufCheckpoint(TensorSource):
    """The GGUF file of a model, and its other shards.

    Args:
        folder: the file, or the first shard.

    Raises:
        CheckpointError: a shard is missing or broken, the architecture is not supported, or has no such tensor.
    """

    def _open_files(self) -> None:
        config, model = read_model_json(self.folder / "config.json", dict) or {}, read_gguf(self.folder)
        self._tensors = _by_name(self.folder, model)
        self.is_quantized = any(tensor.kind not in PLAIN_TYPES for tensor in self._tensors.values())
        self._head_dim: int = config["head_dim"] if model.metadata["general.architecture"] == "llama" else 0
        self._descriptors: dict[Path, int] = {}
        for shard in model.header_bytes:
            file, _ = self._files.enter_context(open_model_file(shard))
            self._descriptors[shard] = file.fileno()
        # One of each for all tiles: what is allocated between weights would lie in pieces among them.
        self._tile = torch.empty(_TILE)
        self._of_thread = threading.local()

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
        """Yield the bytes of rows, tile by tile: [rows, bytes] uint8, valid until the next tile of the thread. A vector
        has a value in each row."""
        tensor = self._tensors[name]
        is_interleaved = self._head_dim > 0 and _ROTATED.fullmatch(name) is not None
        at_once = max(1, _TILE // math.prod(tensor.shape[1:]))
        for start in range(0, len(rows), at_once):
            some = rows[start : start + at_once]
            if isinstance(some, range) and not is_interleaved:
                yield self._stored_rows(tensor, some.start, some.stop)
            else:
                places = _places(some, self._head_dim) if is_interleaved else torch.tensor(some)
                first, last = int(places.min()), int(places.max())
                yield self._stored_rows(tensor, first, last + 1)[places - first]

    def _stored_rows(self, tensor: GgufTensor, start: int, end: int) -> Tensor:
        """Read rows that lie one after the other into the memory of this thread: [rows, bytes] uint8.

        Raises:
            CheckpointError: they cannot be read, or are no longer there.
        """
        row_bytes = tensor.num_bytes // tensor.shape[0]
        place, num_bytes = tensor.offset + start * row_bytes, (end - start) * row_bytes
        room = getattr(self._of_thread, "room", None)
        if room is None or len(room) < num_bytes:
            room = self._of_thread.room = torch.empty(num_bytes, dtype=torch.uint8)
        found, left = room[:num_bytes], room.numpy().data[:num_bytes]
        while left:
            try:
                count = os.preadv(self._descriptors[tensor.path], [left], place)
            except OSError as error:
                raise CheckpointError(f"{tensor.path} cannot be read: {error.strerror}") from error
            if count == 0:
                raise CheckpointError(f"{tensor.path} became shorter while it was read: it ends in {tensor.name}")
            left, place = left[count:], place + count
        return found.view(end - start, row_bytes)


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
