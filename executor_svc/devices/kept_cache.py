"""At the start: whether this executor's KV cache is kept, and the pool that it is in.

Of several ranks all make the same calls at the same time, and all have a pool that is kept, or none has.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from common.errors import BatonError, KeeperError
from common.logging import get_logger
from common.messages import PoolKind
from executor_svc.devices.kept_memory import KeptMemory
from executor_svc.devices.platform import Platform
from executor_svc.keeper.kept_pool import KeptPool, find_pool_size
from executor_svc.keeper.link import KeeperLink
from executor_svc.keeper.pool_ranks import without
from executor_svc.model.attention import KVGeometry
from executor_svc.model.rank_group import RankGroup

Had = TypeVar("Had")

log = get_logger("executor")


@dataclass(frozen=True)
class KeptCache:
    """A KV cache that a keeper keeps, before it is there.

    Attributes:
        platform: whose memory it is in.
        link: to the keeper.
        kind: of its pool.
        geometry: of the cache.
        ranks: of the executor.
        is_standby: whether the pool is that of another executor, once that one has gone.
    """

    platform: Platform
    link: KeeperLink
    kind: PoolKind
    geometry: KVGeometry
    ranks: RankGroup
    is_standby: bool

    @staticmethod
    def on(
        platform: Platform,
        link: KeeperLink | None,
        kind: PoolKind,
        geometry: KVGeometry,
        ranks: RankGroup,
        *,
        standby: str,
    ) -> "KeptCache | None":
        """None, with the reason in the log, if memory of this device cannot be kept, or there is no keeper.

        Args:
            kind: of the pool; its device and ranks are those of the other arguments.
            standby: as `ExecutorOptions` has it.

        Raises:
            BatonError: it is for a standby, which would wait for ever.
            KeeperError: the keeper has gone.
        """
        must_wait = standby == "always"
        device = _all_have(ranks, lambda: "" if link is None else platform.kept_device(), is_standby=must_wait)
        if not device or link is None:
            return None
        kind = msgspec.structs.replace(kind, rank=ranks.rank, num_ranks=ranks.size, device=device)
        is_standby = must_wait or (standby == "auto" and _is_wanted_as_standby(ranks, link, kind))
        return KeptCache(platform, link, kind, geometry, ranks, is_standby)

    def find(self, num_blocks: int) -> int:
        """Number of blocks of the pool to go on with; 0 if there is none.

        Args:
            num_blocks: only one of so many; 0 for any.

        Raises:
            KeeperError: the keeper has gone.
        """
        found = find_pool_size(self.link, self.kind, self.ranks, num_blocks, is_awaited=self.is_standby)
        if not found:
            self.link.make_room(self.kind.device)
        return found

    def memory(self, num_blocks: int) -> KeptMemory | None:
        """Memory of a pool of so many blocks, and one for padding rows, which this executor holds from now on.

        A standby gets scratch memory, in which nothing but the padding block may be touched. None, with the reason in
        the log, if no pool can be had.

        Raises:
            BatonError: a standby cannot have it.
        """
        cache = _all_have(self.ranks, lambda: self._addresses(num_blocks), is_standby=self.is_standby)
        if cache is None or self.is_standby or cache.pool.take():
            return cache
        return None

    def _addresses(self, num_blocks: int) -> KeptMemory:
        memory = self.platform.pool_memory((num_blocks + 1) * self.geometry.block_bytes)
        pool = KeptPool(self.link, self.kind, num_blocks, memory, self.ranks)
        cache = KeptMemory(pool, memory, self.geometry, num_blocks)
        if self.is_standby:
            cache.map_scratch()
        return cache


def room_was_made(platform: Platform, link: KeeperLink) -> bool:
    """Give back what no executor uses of the device's memory; False if that is nothing."""
    with contextlib.suppress(BatonError):
        return link.make_room(platform.kept_device()) > 0
    return False


def _is_wanted_as_standby(ranks: RankGroup, link: KeeperLink, kind: PoolKind) -> bool:
    """Whether the keeper has told every rank that it had better wait."""
    waits = False
    with contextlib.suppress(KeeperError):
        waits = link.ask_role(kind)
    return all(row[0] for row in ranks.gather([waits]))


def _all_have(ranks: RankGroup, get: Callable[[], Had], *, is_standby: bool) -> Had | None:
    """What `get` gives, if it gives something on every rank."""
    had, problem = None, None
    try:
        had = get()
    except BatonError as error:
        problem = error
    flags = [row[0] for row in ranks.gather([bool(had)])]
    if all(flags):
        return had
    reason = str(problem) if problem is not None else f"{without(flags)} cannot keep it"
    if is_standby:
        raise BatonError(f"a standby needs KV memory that outlives its process: {reason}") from problem
    if problem is not None or any(flags):  # that there is no keeper has been said
        log.warning("KV memory is not kept", reason=reason)
    return None
