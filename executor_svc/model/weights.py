"""From safetensors to parameters: every name and shape is checked before a byte is read, then tensors stream one by
one into their place in the fused matrices. A rank reads what it keeps; the ranks share out the hashing."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from common.errors import CheckpointError
from executor_svc.model.checkpoint_layout import StoredTensor, stored_tensors
from executor_svc.model.config import Qwen3Config
from executor_svc.model.model import Qwen3Weights
from executor_svc.model.rank_group import SINGLE_RANK, RankGroup
from executor_svc.model.sharding import Shard

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
        """Names of the tensors in all files, sorted."""
        return sorted(self._source)

    def header(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and stored dtype (`BF16`, ...) of a tensor."""
        entry = self._source[name].get_slice(name)
        return tuple(entry.get_shape()), entry.get_dtype()

    def read(self, name: str) -> Tensor:
        """A tensor as it is stored, on the CPU. Its memory is the mapped file: a part is read when it is accessed."""
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
    checkpoint: Checkpoint,
    config: Qwen3Config,
    dtype: torch.dtype,
    device: torch.device,
    group: RankGroup = SINGLE_RANK,
) -> tuple[Qwen3Weights, str]:
    """Read this rank's part of the weights, cast to `dtype`, and hash all of them with the other ranks.

    Returns:
        The weights, and the model's fingerprint: xxh3_128 (32 hex digits) over the configuration and over the name and
        the xxh3_128 of the stored bytes of every tensor that is used. Neither the files they are in nor `dtype` nor
        the number of ranks changes it, and it is the same on every rank.

    Raises:
        CheckpointError: tensors are missing, unexpected, of another shape than the configuration says, or stored in
            a dtype that is not supported (the message names them), or the ranks cannot share the model out.
    """
    shard = Shard.of(config, group.rank, group.size)
    # A tied checkpoint may still hold lm_head.weight, as a copy; transformers ignores it too.
    names = [name for name in checkpoint.names if not (config.tied and name == "lm_head.weight")]
    _check(
        checkpoint, names, stored_tensors(config, shard, Qwen3Weights.empty(config, dtype, torch.device("meta"), shard))
    )
    weights = Qwen3Weights.empty(config, dtype, device, shard)
    for table in (weights.embedding, weights.head):
        table[len(shard.vocab) :] = 0
    stored_of = stored_tensors(config, shard, weights)
    digests = np.zeros((len(names), 4), dtype=np.int32)
    for index, name in enumerate(names):
        tensor, stored = checkpoint.read(name), stored_of[name]
        if stored.target is not None:
            stored.target.copy_(tensor[stored.part])
        if index % group.size == group.rank:
            in_memory = tensor.contiguous().view(torch.uint8).numpy()
            digests[index] = np.frombuffer(xxhash.xxh3_128_digest(in_memory.data), dtype=np.int32)
    return weights, _fingerprint(config, names, digests, device, group)


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


def _fingerprint(
    config: Qwen3Config, names: Sequence[str], digests: npt.NDArray[np.int32], device: torch.device, group: RankGroup
) -> str:
    """Hash all ranks' digests; each rank has zeros for the tensors that other ranks hashed."""
    total = torch.from_numpy(digests).to(device)
    group.all_reduce(total)
    digest = xxhash.xxh3_128(_identity(config))
    for name, hashed in zip(names, total.cpu().numpy(), strict=True):
        digest.update(name.encode())
        digest.update(hashed.tobytes())
    return digest.hexdigest()


def _check(checkpoint: Checkpoint, names: list[str], expected: Mapping[str, StoredTensor]) -> None:
    misshaped, unreadable = [], []
    for name in names:
        shape, stored = checkpoint.header(name)
        if name in expected and shape != expected[name].shape:
            misshaped.append(f"{name} is {list(shape)}, not {list(expected[name].shape)}")
        if stored not in READABLE_DTYPES:
            unreadable.append(f"{name} is {stored}")
    complaints = [
        _complaint("it lacks", expected.keys() - set(names)),
        _complaint("no Qwen3 of this configuration has", set(names) - expected.keys()),
        _complaint("the configuration gives other shapes", misshaped),
        _complaint(f"only {', '.join(READABLE_DTYPES)} can be read", unreadable),
    ]
    if any(complaints):
        raise CheckpointError(f"the checkpoint cannot be loaded: {'; '.join(filter(None, complaints))}")


def _complaint(what: str, found: Iterable[str]) -> str:
    """`what`, with the first ten findings and the number of the others; empty if nothing was found."""
    items = sorted(found, key=_natural_order)
    if not items:
        return ""
    more = f" and {len(items) - _NAMES_SHOWN} more" if len(items) > _NAMES_SHOWN else ""
    return f"{what}: {', '.join(items[:_NAMES_SHOWN])}{more}"


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Layer 2 before layer 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.replace(" ", ".").split(".")]


def _identity(config: Qwen3Config) -> bytes:
    """The part of the configuration that decides the tokens, as canonical JSON."""
    fields = msgspec.to_builtins(config)
    for irrelevant in ("dtype", "max_positions"):
        del fields[irrelevant]
    return msgspec.json.encode(fields, order="deterministic")
