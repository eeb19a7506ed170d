"""The safetensors files of a checkpoint: what is in them is checked before a byte of a tensor is read."""

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from torch import Tensor

from common.errors import CheckpointError
from common.gguf import SUPPORTED_TYPES
from common.model_reading import MAX_INDEX_BYTES, check_regular, read_model_json
from executor_svc.model.checkpoint_layout import Parameter, Slices
from executor_svc.model.config import DecoderConfig
from executor_svc.model.rank_group import SINGLE_RANK, RankGroup

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
READABLE_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES_SHOWN = 10
_BASE = "model."  # what a model with a head calls the rest of it
_DERIVED = "rotary_emb.inv_freq"  # older checkpoints have these beside the weights
_ROWS_AT_ONCE = 1024
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class Hashing:
    """Threads that hash tensors while others are read, on the CPUs that the calling thread may use now. A context
    manager.

    A thread begins with the CPUs of the one that starts it, which may be bound to one by then. There are as many as
    torch computes with, and no more tensors wait than there are threads: what is not in memory is read once, and no
    second copy of a model is held.
    """

    def __init__(self) -> None:
        cpus, self._num_threads = os.sched_getaffinity(0), torch.get_num_threads()
        self._threads = ThreadPoolExecutor(self._num_threads, "hash", initializer=lambda: os.sched_setaffinity(0, cpus))
        self._being_hashed: deque[Future[bytes]] = deque()

    def submit(self, digest: Callable[[], bytes]) -> Future[bytes]:
        """Call a function in a thread; wait for one if all have work."""
        if len(self._being_hashed) == self._num_threads:
            self._being_hashed.popleft().result()
        self._being_hashed.append(self._threads.submit(digest))
        return self._being_hashed[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the threads after what they are at."""
        self._threads.shutdown(cancel_futures=True)


class TensorSource(ABC):
    """The stored tensors of a model, by the names that Hugging Face's checkpoints have. A context manager; the files
    stay open until it exits.

    Attributes:
        folder: of the files, or the first file, for messages.
        is_quantized: whether some tensors are stored in integers with scales.
    """

    is_quantized = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = ExitStack()
        try:
            self._open_files()
        except BaseException:
            self._files.close()
            raise
        self._hashing = self._files.enter_context(Hashing())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._files.close()

    @abstractmethod
    def _open_files(self) -> None:
        """Open the files, to be closed with `_files`. Raises CheckpointError if one is missing or broken."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """Names of all tensors, sorted, without those that follow from the configuration."""

    @abstractmethod
    def header(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and stored dtype (`BF16`, `Q8_0`, ...) of a tensor."""

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """A tensor's values, on the CPU."""

    def copy(self, name: str, part: Slices, target: Tensor) -> None:
        """Copy a part of a tensor's values, rounded to the dtype of `target`, which may be on any device.

        Args:
            part: indices that `target` has the shape of; the rows' may be a list of numbers.
        """
        target.copy_(self.read(name)[part])

    @abstractmethod
    def digest(self, name: str) -> Future[bytes]:
        """Hash a tensor's bytes as they are stored (BLAKE3, 32 bytes) in a thread; wait for one if all have work."""


class Checkpoint(TensorSource):
    """The safetensors files of a folder, which are mapped.

    A checkpoint of a model without its head, as embedding models are saved, has names without `model.`; here they have
    it, so that the same weights have the same names either way.

    Args:
        folder: holds `model.safetensors`, or the shards that `model.safetensors.index.json` names.

    Raises:
        CheckpointError: a file is missing, truncated or no safetensors file, or the index and the shards disagree.
    """

    def _open_files(self) -> None:
        self._source: dict[str, Any] = {}  # by the names in the files
        for path, expected in stored_files(self.folder).items():
            shard = self._open(path)
            held = set(shard.keys())
            if missing := (expected or set()) - held:
                raise CheckpointError(complaint(f"{path} lacks what its index says it has", missing))
            self._source.update(dict.fromkeys(held if expected is None else sorted(expected), shard))
        has_head = any(name.startswith((_BASE, "lm_head.")) for name in self._source)
        stored = [name for name in self._source if not name.endswith(_DERIVED)]
        self._stored_names = {(name if has_head else _BASE + name): name for name in stored}

    @property
    def names(self) -> list[str]:
        """See `TensorSource.names`."""
        return sorted(self._stored_names)

    def header(self, name: str) -> tuple[tuple[int, ...], str]:
        """See `TensorSource.header`."""
        stored = self._stored_names[name]
        entry = self._source[stored].get_slice(stored)
        return tuple(entry.get_shape()), entry.get_dtype()

    def read(self, name: str) -> Tensor:
        """A tensor as it is stored, on the CPU. Its memory is the mapped file: a part is read when it is accessed."""
        stored = self._stored_names[name]
        tensor: Tensor = self._source[stored].get_tensor(stored)
        return tensor

    def digest(self, name: str) -> Future[bytes]:
        """See `TensorSource.digest`."""
        stored = self.read(name).contiguous().view(torch.uint8).numpy()
        return self._hashing.submit(lambda: blake3(stored.data).digest())

    def _open(self, path: Path) -> Any:
        try:
            with path.open("rb"):  # for the reason: safetensors calls what it cannot open missing
                pass
        except FileNotFoundError as error:
            raise CheckpointError(f"there is no {path}, which the index names") from error
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        try:
            return self._files.enter_context(safe_open(path, framework="pt", device="cpu"))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is truncated or no safetensors file: {error}") from error


def stored_dtype(checkpoint: TensorSource, config: DecoderConfig) -> torch.dtype:
    """The dtype a checkpoint was saved in: what its configuration says, else that of its embedding table.

    Raises:
        CheckpointError: it is not one that can be computed in.
    """
    by_name = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if not config.dtype and EMBEDDING in checkpoint.names:
        found, table = checkpoint.header(EMBEDDING)[1], READABLE_DTYPES
    else:
        found, table = config.dtype, by_name
    if found not in table:
        raise CheckpointError(f"the checkpoint's dtype is {found!r}; float32, bfloat16 and float16 can be served")
    return table[found]


def has_other_head(checkpoint: TensorSource, config: DecoderConfig, group: RankGroup = SINGLE_RANK) -> bool:
    """Whether a checkpoint holds a head with other values than its embedding table: then it is not tied, whatever its
    configuration says.

    A copy is read for that, whether or not a keeper has the weights: the ranks share it out, and compare bytes.

    Raises:
        CheckpointError: the head is of another shape, or of a dtype that is not supported: it can be neither tied nor
            used.
    """
    if not {EMBEDDING, HEAD} <= {*checkpoint.names}:
        return False
    (shape, dtype), (head_shape, head_dtype) = checkpoint.header(EMBEDDING), checkpoint.header(HEAD)
    if shape != (config.vocab_size, config.hidden_size) or dtype not in READABLE_DTYPES:
        return False  # whatever the head is, `check_tensors` refuses the table
    if head_shape != shape or head_dtype not in READABLE_DTYPES:
        raise CheckpointError(
            f"{checkpoint.folder} ties its head to the embedding, {dtype} {list(shape)}, and has a {HEAD} that is "
            f"{head_dtype} {list(head_shape)}: remove it from the files, if the embedding is to be the head"
        )
    table, head = checkpoint.read(EMBEDDING), checkpoint.read(HEAD)
    starts = range(0, shape[0], _ROWS_AT_ONCE)[group.rank :: group.size]
    parts = (slice(start, start + _ROWS_AT_ONCE) for start in starts)
    differs = any(not _are_equal(table[part], head[part]) for part in parts)
    return any(found for (found,) in group.gather([differs]))


def _are_equal(rows: Tensor, others: Tensor) -> bool:
    """Bytes first: at the speed of memory, and a NaN is equal to its copy."""
    if rows.dtype == others.dtype and np.array_equal(rows.view(torch.uint8).numpy(), others.view(torch.uint8).numpy()):
        return True
    return torch.equal(rows.float(), others.float())


def stored_files(folder: Path) -> dict[Path, set[str] | None]:
    """The files of a folder's weights, each with the tensors to take from it (None: all of them).

    Raises:
        CheckpointError: there are none, or the index is malformed.
    """
    if check_regular(folder / SINGLE_FILE):
        return {folder / SINGLE_FILE: None}
    index_path = folder / INDEX_FILE
    index = read_model_json(index_path, _Index, MAX_INDEX_BYTES)
    if index is None:
        others = sorted(path.name for path in folder.glob("*.bin"))
        hint = f" (only safetensors are read, not {others[0]})" if others else ""
        raise CheckpointError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}{hint}")
    names_in: dict[str, set[str]] = {}
    for name, file in index.weight_map.items():
        names_in.setdefault(file, set()).add(name)
    for file in names_in:
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(f"{index_path} names {file!r}, which is not a safetensors file of that folder")
        check_regular(folder / file)
    if not names_in:
        raise CheckpointError(f"{index_path} names no tensors")
    return {folder / file: names for file, names in names_in.items()}


def check_tensors(checkpoint: TensorSource, names: Sequence[str], wanted: Iterable[Parameter]) -> None:
    """Hold what a checkpoint has against what parameters are made of.

    Raises:
        CheckpointError: tensors are missing, unexpected, of another shape, or stored in a dtype that is not supported.
    """
    expected = {stored.name: stored.shape for parameter in wanted for stored in parameter.stored}
    misshaped, unreadable = [], []
    for name in names:
        shape, stored = checkpoint.header(name)
        if name in expected and shape != expected[name]:
            misshaped.append(f"{name} is {list(shape)}, not {list(expected[name])}")
        if stored not in READABLE_DTYPES and stored not in SUPPORTED_TYPES:
            unreadable.append(f"{name} is {stored}")
    complaints = [
        complaint("it lacks", expected.keys() - set(names)),
        complaint("no model of this configuration has", set(names) - expected.keys()),
        complaint("the configuration gives other shapes", misshaped),
        complaint(f"only {', '.join(READABLE_DTYPES)} can be read", unreadable),
    ]
    if any(complaints):
        raise CheckpointError(f"the checkpoint cannot be loaded: {'; '.join(filter(None, complaints))}")


def complaint(what: str, found: Iterable[str]) -> str:
    """Say `what`, with the first ten findings and the number of the others; empty if nothing was found."""
    items = sorted(found, key=_natural_order)
    if not items:
        return ""
    more = f" and {len(items) - _NAMES_SHOWN} more" if len(items) > _NAMES_SHOWN else ""
    return f"{what}: {', '.join(items[:_NAMES_SHOWN])}{more}"


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Layer 2 before layer 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.replace(" ", ".").split(".")]
