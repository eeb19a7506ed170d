"""At the start: whether this executor's KV cache is kept, and the pool that it is in."""

import contextlib
from dataclasses import dataclass

import msgspec

from common.errors import BatonError
from common.logging import get_logger
from common.messages import PoolKind
from executor_svc.devices.kept_memory import KeptMemory
from executor_svc.devices.platform import Platform
from executor_svc.keeper.kept_pool import KeptPool, find_pool_size, make_room
from executor_svc.keeper.link import KeeperLink
from executor_svc.model.attention import KVGeometry

log = get_logger("executor")


@dataclass(frozen=True)
class KeptCache:
    """A KV cache that a keeper keeps, before it is there.

    Attributes:
        platform: whose memory it is in.
        link: to the keeper.
        kind: of its pool.
        geometry: of the cache.
        is_standby: whether the pool is that of another executor, once that one has gone.
    """

    platform: Platform
    link: KeeperLink
    kind: PoolKind
    geometry: KVGeometry
    is_standby: bool

    @staticmethod
    def on(
        platform: Platform, link: KeeperLink, kind: PoolKind, geometry: KVGeometry, *, standby: str
    ) -> "KeptCache | None":
        """None, with the reason in the log, if memory of this device cannot be kept.

        Args:
            kind: of the pool; its device is the platform's.
            standby: as `ExecutorOptions` has it.

        Raises:
            BatonError: it is for a standby, which would wait for ever.
            KeeperError: the keeper has gone.
        """
        try:
            kind = msgspec.structs.replace(kind, device=platform.pool_device())
        except BatonError as error:
            _not_kept(error, is_standby=standby == "always")
            return None
        is_standby = standby == "always" or (standby == "auto" and link.ask_role(kind))
        return KeptCache(platform, link, kind, geometry, is_standby)

    def find(self, num_blocks: int) -> int:
        """Number of blocks of the pool to go on with; 0 if there is none.

        Args:
            num_blocks: only one of so many; 0 for any.

        Raises:
            KeeperError: the keeper has gone.
        """
        found = find_pool_size(self.link, self.kind, num_blocks, is_awaited=self.is_standby)
        if not found:
            make_room(self.link, self.kind.device)
        return found

    def memory(self, num_blocks: int) -> KeptMemory | None:
        """Memory of a pool of so many blocks, and one for padding rows, which this executor holds from now on.

        A standby gets scratch memory, in which nothing but the padding block may be touched. None, with the reason in
        the log, if no pool can be had.

        Raises:
            BatonError: a standby cannot have it.
        """
        try:
            memory = self.platform.pool_memory((num_blocks + 1) * self.geometry.block_bytes)
            cache = KeptMemory(KeptPool(self.link, self.kind, num_blocks, memory), memory, self.geometry, num_blocks)
            if self.is_standby:
                cache.map_scratch()
                return cache
        except BatonError as error:
            _not_kept(error, is_standby=self.is_standby)
            return None
        return cache if cache.pool.take() else None


def room_was_made(platform: Platform, link: KeeperLink) -> bool:
    """Give back what pools without a holder have of the device's memory; False if they had none."""
    with contextlib.suppress(BatonError):
        return make_room(link, platform.pool_device()) > 0
    return False


def _not_kept(error: BatonError, *, is_standby: bool) -> None:
    if is_standby:
        raise BatonError(f"a standby needs KV memory that outlives its process: {error}") from error
    log.warning("KV memory is not kept", reason=str(error))
