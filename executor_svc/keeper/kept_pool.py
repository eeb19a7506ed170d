"""This executor's KV memory, where a keeper keeps it: leased or made, mapped, and named for the scheduler."""

import os
import time
from collections.abc import Callable

from common import messages as m
from common.errors import BatonError, KeeperError
from common.logging import get_logger
from executor_svc.keeper.held import HeldPool
from executor_svc.keeper.link import KeeperLink
from executor_svc.keeper.pool_memory import PoolMemory
from executor_svc.keeper.tag import PoolTag

FIND_INTERVAL_S = 0.2

log = get_logger("executor")


def find_pool_size(link: KeeperLink, kind: m.PoolKind, num_blocks: int = 0, *, is_awaited: bool) -> int:
    """Number of blocks of a pool of this kind that is kept; 0 if there is none.

    Args:
        link: to the keeper.
        kind: of the pool.
        num_blocks: only a pool of so many; 0 for any.
        is_awaited: wait until there is one.

    Raises:
        KeeperError: the keeper has gone.
    """
    found = link.find_pool(kind, num_blocks)
    if is_awaited and not found:
        log.info("waits for an executor of its kind")
        while not (found := link.find_pool(kind, num_blocks)):
            time.sleep(FIND_INTERVAL_S)
    return found


def make_room(link: KeeperLink, device: str) -> int:
    """Give back what pools without a holder have of a GPU's memory. Returns how many bytes these are.

    For the machine's memory the keeper does so by itself: it has a limit there, and memory that nobody touches costs
    nothing. On a GPU a pool takes all of its memory as long as it is kept, though another model has no use for it.
    """
    num_bytes = 0 if device == "cpu" else link.drop_left_pools(device)
    if num_bytes:
        log.info("pools without a holder were dropped", device=device, gib=round(num_bytes / 2**30, 3))
    return num_bytes


class KeptPool:
    """The pool that this executor holds, or waits for.

    Args:
        link: to the keeper.
        kind: of the pool.
        num_blocks: of the pool.
        memory: of the pool, on the kind's device. A standby has put scratch memory there: what it has recorded of the
            addresses holds for the pool that takes the scratch memory's place.

    Attributes:
        link: to the keeper.
        tag: the pool's; None while this executor holds none.
        is_new: whether this executor has made the pool that it holds.
    """

    def __init__(self, link: KeeperLink, kind: m.PoolKind, num_blocks: int, memory: PoolMemory) -> None:
        assert memory.device == kind.device
        self.link = link
        self.tag: PoolTag | None = None
        self.is_new = False
        self._kind = kind
        self._num_blocks = num_blocks
        self._memory = memory

    def take(self) -> bool:
        """Hold a pool: one that an executor of this kind has left, else a new one.

        Returns:
            False if the keeper keeps none. Then the memory is closed.
        """
        try:
            held = self.link.lease_pool(self._kind, self._num_blocks)
            if held is None or not self._map(held):
                self._make()
        except BatonError as error:
            log.warning("no pool is kept for this executor", reason=str(error))
            self._memory.close()
            return False
        return True

    def wait(self, interrupt_fd: int, waiting: Callable[[bool], None] = lambda _: None) -> bool:
        """Be a standby until another executor's pool is this one's. False if the descriptor is readable before.

        Args:
            interrupt_fd: the descriptor.
            waiting: is told twice a second whether a keeper is there.

        Raises:
            BatonError: the keeper refuses, or the pool cannot be used, nor a new one be made.
        """
        held = self.link.wait_for_pool(self._kind, self._num_blocks, interrupt_fd, waiting)
        if held is None:
            return False
        if not self._map(held):
            self._make()
        return True

    def distrust(self) -> None:
        """Nobody knows what is in the pool: no one goes on with its content."""
        if self.tag is not None:
            self.tag.epoch = 0

    @property
    def named(self) -> m.Pool:
        """What the scheduler is told of it."""
        held, tag = self.link.pool, self.tag
        assert held is not None and tag is not None, "no pool is held"  # noqa: PT018
        return m.Pool(pool=held.pool, lease=held.lease, layout=self._kind.layout, epoch=tag.epoch)

    def _map(self, held: HeldPool) -> bool:
        """Use a pool that was leased. If that cannot be, a new one takes its place: nobody else could use it either."""
        try:
            if held.num_bytes != self._memory.num_bytes:
                raise KeeperError(f"it has {held.num_bytes} bytes, this executor's has {self._memory.num_bytes}")
            tag = PoolTag(held.tag_fd)
            self._memory.map(held.memory_fd)
        except BatonError as error:
            log.warning("a kept pool is not used", pool=held.pool[:8], reason=str(error))
            return False
        self._use(held, tag)
        return True

    def _make(self) -> None:
        """Make a pool, and hold it. The keeper drops the one that was held before."""
        self._memory.create()
        memory_fd = self._memory.descriptor
        assert memory_fd is not None
        tag_fd = PoolTag.create()
        try:
            deposited = (self._num_blocks, self._memory.num_bytes, memory_fd, tag_fd)
            held = self.link.deposit_pool(self._kind, *deposited)
        finally:
            os.close(tag_fd)
        self.is_new = True
        self._use(held, PoolTag(held.tag_fd))

    def _use(self, held: HeldPool, tag: PoolTag) -> None:
        self.tag = tag
        facts = {"pool": held.pool[:8], "lease": held.lease, "epoch": tag.epoch, "device": held.kind.device}
        log.info("holds a pool", blocks=held.num_blocks, gib=round(held.num_bytes / 2**30, 3), **facts)
