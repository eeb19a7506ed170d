"""This executor's KV memory, where a keeper keeps it: leased or made, mapped, and named for the scheduler."""

import os
import time

from common import messages as m
from common.errors import KeeperError
from common.logging import get_logger
from executor_svc.keeper.link import KeeperLink
from executor_svc.keeper.memory import Mapping, check_memory, create_memory
from executor_svc.keeper.tag import PoolTag

FIND_INTERVAL_S = 0.2

log = get_logger("executor")


def find_pool_size(link: KeeperLink, kind: m.PoolKind, *, is_awaited: bool) -> int:
    """Number of blocks of a pool of this kind that is kept; 0 if there is none.

    Args:
        is_awaited: wait until there is one.

    Raises:
        KeeperError: the keeper has gone.
    """
    num_blocks = link.find_pool(kind)
    if is_awaited and not num_blocks:
        log.info("waits for an executor of its kind")
        while not (num_blocks := link.find_pool(kind)):
            time.sleep(FIND_INTERVAL_S)
    return num_blocks


class KeptPool:
    """The memory of one pool, at addresses that stay.

    Before this executor holds a pool, memory of its own is there: a standby runs its trial steps in it, and what it has
    recorded of the addresses holds for the pool that takes the memory's place.

    Args:
        link: to the keeper.
        kind: of the pool.
        num_blocks: of the pool.
        num_bytes: of its memory.

    Attributes:
        link: to the keeper.
        mapping: the memory.
        tag: the pool's; None while this executor holds none.
    """

    def __init__(self, link: KeeperLink, kind: m.PoolKind, num_blocks: int, num_bytes: int) -> None:
        self.link = link
        self.mapping = Mapping(num_bytes)
        self.mapping.map_scratch()
        self.tag: PoolTag | None = None
        self._kind = kind
        self._num_blocks = num_blocks
        self._num_bytes = num_bytes

    def take(self) -> bool:
        """Hold a pool: one that an executor of this kind has left, else a new one. False if the keeper keeps none."""
        try:
            if self.link.lease_pool(self._kind, self._num_blocks) is None:
                self._make()
            self._map()
        except KeeperError as error:
            log.warning("no pool is kept for this executor", reason=str(error))
            return False
        return True

    def _make(self) -> None:
        memory_fd, tag_fd = create_memory("baton-pool", self._num_bytes), PoolTag.create()
        try:
            self.link.deposit_pool(self._kind, self._num_blocks, self._num_bytes, memory_fd, tag_fd)
        finally:
            os.close(memory_fd)
            os.close(tag_fd)

    def wait(self, interrupt_fd: int) -> bool:
        """Be a standby until another executor's pool is this one's. False if the descriptor is readable before.

        Raises:
            KeeperError: the keeper refuses, or the pool cannot be used.
        """
        if self.link.wait_for_pool(self._kind, self._num_blocks, interrupt_fd) is None:
            return False
        self._map()
        return True

    @property
    def named(self) -> m.Pool:
        """What the scheduler is told of it."""
        held, tag = self.link.pool, self.tag
        assert held is not None and tag is not None, "no pool is held"  # noqa: PT018
        return m.Pool(pool=held.pool, lease=held.lease, layout=self._kind.layout, epoch=tag.epoch)

    def _map(self) -> None:
        held = self.link.pool
        assert held is not None, "no pool is held"
        check_memory(held.memory_fd, self._num_bytes, read_only=False)
        self.tag = PoolTag(held.tag_fd)
        self.mapping.map(held.memory_fd)
        self.mapping.advise_huge_pages()
        facts = {"pool": held.pool[:8], "lease": held.lease, "epoch": self.tag.epoch}
        log.info("holds a pool", blocks=held.num_blocks, gib=round(self._num_bytes / 2**30, 3), **facts)
