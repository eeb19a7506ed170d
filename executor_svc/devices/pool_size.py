"""How many KV blocks an executor gets."""

from collections.abc import Callable
from pathlib import Path

from common.cgroups import memory_room
from common.errors import BatonError
from executor_svc.model.attention import KVGeometry

_GIB = 2**30


class PoolTooSmall(BatonError):
    """The memory for the pool holds no block, or fewer positions than the operator asked for."""


def choose_num_blocks(
    geometry: KVGeometry,
    *,
    num_blocks: int | None,
    memory_gib: float | None,
    default_bytes: Callable[[], int],
) -> int:
    """Blocks in the pool: the operator's number, or as many as the memory holds.

    Args:
        geometry: of the cache.
        num_blocks: the operator's choice, or None.
        memory_gib: GiB for the cache, the operator's choice if there is no num_blocks, or None.
        default_bytes: returns the memory for the cache; called if the operator chose neither.

    Raises:
        PoolTooSmall: the memory holds no block.
    """
    if num_blocks is not None:
        return num_blocks
    budget = default_bytes() if memory_gib is None else int(memory_gib * _GIB)
    affordable = budget // geometry.block_bytes
    if affordable < 1:
        raise PoolTooSmall(
            f"{budget / _GIB:.3f} GiB for the KV cache hold no block of {geometry.block_bytes / _GIB:.3f} GiB "
            f"({geometry.block_size} positions); give more with --kv-cache-memory"
        )
    return affordable


def blocks_in(memory_gib: float, geometry: KVGeometry) -> int:
    """How many blocks so much memory holds."""
    return int(memory_gib * _GIB) // geometry.block_bytes


def choose_max_model_len(requested: int | None, model_limit: int, num_blocks: int, block_size: int) -> int:
    """Positions a sequence may have: the operator's number, or the model's limit cut to what the pool holds.

    Raises:
        PoolTooSmall: the operator's number exceeds the pool or the model.
    """
    pool_positions = num_blocks * block_size
    if requested is None:
        return min(model_limit, pool_positions)
    if requested > model_limit:
        raise PoolTooSmall(f"--max-model-len is {requested}, the model takes {model_limit}")
    if requested > pool_positions:
        raise PoolTooSmall(
            f"--max-model-len is {requested}, the pool holds {pool_positions} positions "
            f"({num_blocks} blocks of {block_size}); give more with --num-blocks or --kv-cache-memory"
        )
    return requested


def available_memory(root: Path = Path("/")) -> int:
    """Bytes this process could take now without swapping: of the machine, and of its control groups.

    Args:
        root: folder with proc and sys.
    """
    fields = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    room = memory_room(root)
    return available if room is None else min(available, room)
