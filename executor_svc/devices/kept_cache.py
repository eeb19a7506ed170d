"""At the start: whether this executor's KV cache is kept, and the pool that it is in."""

from common.errors import BatonError
from common.logging import get_logger
from common.messages import PoolKind
from executor_svc.devices.kept_memory import KeptMemory
from executor_svc.devices.platform import Platform
from executor_svc.keeper.kept_pool import KeptPool
from executor_svc.keeper.link import KeeperLink
from executor_svc.model.attention import KVGeometry

log = get_logger("executor")


def kept_device(platform: Platform, *, is_standby: bool) -> str | None:
    """Where a pool that is kept would be; None, with the reason in the log, if this device's memory cannot be kept.

    Raises:
        BatonError: it is for a standby, which would wait for ever.
    """
    try:
        return platform.pool_device()
    except BatonError as error:
        _not_kept(error, is_standby=is_standby)
        return None


def kept_cache(
    platform: Platform, link: KeeperLink, kind: PoolKind, geometry: KVGeometry, num_blocks: int, *, is_standby: bool
) -> KeptMemory | None:
    """Memory for a cache of so many blocks and one for padding rows: of a pool that this executor holds from now on.

    A standby gets scratch memory, in which nothing but the padding block may be touched. None, with the reason in the
    log, if no pool can be had.

    Raises:
        BatonError: the memory cannot be had, for a standby.
    """
    try:
        memory = platform.pool_memory((num_blocks + 1) * geometry.block_bytes)
        cache = KeptMemory(KeptPool(link, kind, num_blocks, memory), memory, geometry, num_blocks)
        if is_standby:
            cache.map_scratch()
            return cache
    except BatonError as error:
        _not_kept(error, is_standby=is_standby)
        return None
    return cache if cache.pool.take() else None


def _not_kept(error: BatonError, *, is_standby: bool) -> None:
    if is_standby:
        raise BatonError(f"a standby needs KV memory that outlives its process: {error}") from error
    log.warning("KV memory is not kept", reason=str(error))
