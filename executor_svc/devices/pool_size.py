"""How many KV blocks an executor gets."""

from collections.abc import Callable
from pathlib import Path

from common.errors import BatonError
from executor_svc.model.attention import KVGeometry

_GIB = 2**30
_MEMINFO = Path("/proc/meminfo")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


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


def available_memory(meminfo: Path = _MEMINFO, cgroup_root: Path = _CGROUP_ROOT) -> int:
    """Bytes this process could take now without swapping: of the machine, and of its container (cgroup v2, v1).

    Clean page cache counts as available, as in Kubernetes' working set: reading the weights has just filled it.
    """
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for folder, limit_file, usage_file, cache_field in (
        (cgroup_root, "memory.max", "memory.current", "inactive_file"),
        (cgroup_root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _read_bytes(folder / limit_file), _read_bytes(folder / usage_file)
        if limit is not None and usage is not None:
            used = max(0, usage - _read_field(folder / "memory.stat", cache_field))
            available = min(available, max(0, limit - used))
    return available


def _read_bytes(path: Path) -> int | None:
    """The number in a cgroup file; None if there is no such file or no limit (`max`)."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _read_field(path: Path, field: str) -> int:
    """A number in a cgroup's statistics; 0 if there is none."""
    try:
        statistics = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
    except OSError:
        return 0
    return int(statistics.get(field, 0))
