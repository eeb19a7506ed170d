"""This executor's KV memory, where a keeper keeps it: leased or made, mapped, and named for the scheduler."""

import contextlib
import math
import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass

from common import messages as m
from common.errors import BatonError, KeeperError
from common.logging import get_logger
from executor_svc.keeper.link import KeeperLink
from executor_svc.keeper.pool_memory import PoolMemory
from executor_svc.keeper.pool_ranks import Ranks, open_file_of, without
from executor_svc.keeper.tag import PoolTag

FIND_INTERVAL_S = 0.2

NOT_USED = "a kept pool is not used"
NOT_KEPT = "no pool is kept for this executor"


@dataclass(frozen=True)
class Patience:
    """How ranks wait for each other.

    Attributes:
        find_interval_s: between two looks for a pool.
        turn_s: in which a rank of a standby group waits for itself, before it hears of the others.
        others_s: from the first rank's pool to the last one's: a rank that leaves in a step takes 12 s.
    """

    find_interval_s: float = FIND_INTERVAL_S
    turn_s: float = 0.05
    others_s: float = 15.0


PATIENCE = Patience()

Told = tuple[int, int]
"""What a rank tells the others of what it did."""

log = get_logger("executor")


def find_pool_size(link: KeeperLink, kind: m.PoolKind, ranks: Ranks, num_blocks: int = 0, *, is_awaited: bool) -> int:
    """Number of blocks of a pool of this kind that is kept; 0 if there is none, or not for every rank.

    Args:
        link: to the keeper.
        kind: of the pool.
        ranks: of the executor; all of them call this at the same time.
        num_blocks: only a pool of so many; 0 for any.
        is_awaited: wait until there is one.

    Raises:
        KeeperError: the keeper has gone.
    """
    has_said = False
    while True:
        found = {row[0] for row in ranks.gather([link.find_pool(kind, num_blocks)])}
        if len(found) == 1 and found != {0}:
            return found.pop()
        if not is_awaited:
            return 0
        if not has_said:
            log.info("waits for an executor of its kind")
            has_said = True
        time.sleep(FIND_INTERVAL_S)


class KeptPool:
    """The pool that this executor holds, or waits for. Of several ranks each has one, and all make the same calls.

    A group goes on with pools that its ranks' predecessors wrote together, or with none: if one rank's pool is missing,
    or is of another set, each rank makes a new one. Whatever decides is told to all ranks first, so that they decide
    alike.

    Args:
        link: to the keeper.
        kind: of the pool.
        num_blocks: of the pool.
        memory: of the pool, on the kind's device. A standby has put scratch memory there: what it has recorded of the
            addresses holds for the pool that takes the scratch memory's place.
        ranks: of the executor.
        patience: of the ranks with each other.

    Attributes:
        link: to the keeper.
        tag: the pool's; None while this executor holds none.
        is_new: whether this executor has made the pool that it holds.
    """

    def __init__(
        self,
        link: KeeperLink,
        kind: m.PoolKind,
        num_blocks: int,
        memory: PoolMemory,
        ranks: Ranks,
        patience: Patience = PATIENCE,
    ) -> None:
        assert memory.device == kind.device
        assert (ranks.rank, ranks.size) == (kind.rank, kind.num_ranks)
        self.link = link
        self.tag: PoolTag | None = None
        self.is_new = False
        self._kind = kind
        self._num_blocks = num_blocks
        self._memory = memory
        self._ranks = ranks
        self._patience = patience
        self._next_tag: PoolTag | None = None
        self._tag_fd: int | None = None  # while a pool is made

    def take(self) -> bool:
        """Hold a pool: one that an executor of this kind has left, else a new one.

        Returns:
            False if the keeper keeps none. Then the memory is closed.
        """
        if (self._lease() and self._go_on()) or self._renew():
            return True
        self._memory.close()
        with contextlib.suppress(KeeperError):  # on a GPU what one rank has kept in vain would be missing
            self.link.give_pool_up()
        return False

    def wait(self, interrupt_fd: int, waiting: Callable[[bool], None] = lambda _: None) -> bool:
        """Be a standby until another executor's pool is this one's. False if the descriptor is readable before.

        Of a group, each rank waits for the end of the rank whose pool it gets.

        Args:
            interrupt_fd: the descriptor.
            waiting: is told twice a second whether a keeper is there.

        Raises:
            KeeperError: the keeper refuses; or the pool cannot be used, nor a new one be made.
        """
        held_since = None
        while True:
            until = math.inf if self._ranks.size == 1 else time.monotonic() + self._patience.turn_s
            if self.link.pool is None:
                self.link.wait_for_pool(self._kind, self._num_blocks, interrupt_fd, waiting, until)
            else:
                self.link.receive()
                self.link.tick(time.monotonic(), "seeking")
            if self.link.pool is not None and held_since is None:
                held_since = time.monotonic()
            is_late = held_since is not None and time.monotonic() - held_since > self._patience.others_s
            rows = self._ranks.gather([held_since is not None, _is_readable(interrupt_fd), is_late])
            held, interrupted, late = map(list, zip(*rows, strict=True))
            if any(interrupted):
                self.link.stop_waiting()
                return False
            if all(held):
                break
            if any(late):
                log.warning(NOT_USED, reason=f"there is none for {without(held)}")
                self.link.stop_waiting()
                break
        if not (all(held) and self._go_on()) and not self._renew():
            raise KeeperError("no pool can be had")
        return True

    def distrust(self) -> None:
        """Nobody knows what is in the pool: no one goes on with its content, until another epoch is set."""
        if self.tag is not None:
            self.tag.epoch = 0

    def spoil(self) -> None:
        """Likewise, for good: this process ends."""
        if self.tag is not None:
            self.tag.spoil()

    def release(self) -> None:
        """End the lease before this process ends: a GPU's driver may need long to take a process down.

        To be called when the epoch is over, all its steps have been answered, and no thread begins another one. Tensors
        and CUDA graphs over the pool may stay, and are never used again. `PoolMemory.clear` waits for the device and
        unmaps the pool; after that nothing that this process runs reaches the pool's memory, and the keeper is told.
        If a call fails, the lease ends with the process.
        """
        held, begun = self.link.pool, time.monotonic()
        assert held is not None, "no pool is held"
        try:
            self._memory.clear()
            if self.tag is not None:
                self.tag.close()
                self.tag = self._next_tag = None
            self.link.release_lease()
        except BatonError as error:
            log.warning("the lease ends with the process", reason=str(error))
        else:
            ms = round(1000 * (time.monotonic() - begun), 1)
            log.info("lease released", pool=held.pool[:8], lease=held.lease, ms=ms)

    @property
    def named(self) -> m.Pool:
        """What the scheduler is told of it."""
        held, tag = self.link.pool, self.tag
        assert held is not None and tag is not None, "no pool is held"  # noqa: PT018
        return m.Pool(pool=held.pool, lease=held.lease, layout=self._kind.layout, epoch=tag.epoch)

    # --- what all ranks do at the same time; each returns whether all of them could ---

    def _lease(self) -> bool:
        """Lease a pool without a holder. If some ranks have one, the others wait a little: the processes of a group do
        not end at one moment."""
        give_up_at = time.monotonic() + self._patience.others_s
        while True:
            waits = False
            with contextlib.suppress(KeeperError):  # which `_renew` meets again, and says
                if self.link.pool is None and self.link.lease_pool(self._kind, self._num_blocks) is None:
                    waits = self.link.find_pool(self._kind, self._num_blocks) > 0 and time.monotonic() < give_up_at
            rows = self._ranks.gather([self.link.pool is not None, waits])
            held = [row[0] for row in rows]
            if all(held) or not any(held):
                return all(held)
            if not all(map(any, rows)):
                log.warning(NOT_USED, reason=f"there is none for {without(held)}")
                return False
            time.sleep(self._patience.find_interval_s)

    def _go_on(self) -> bool:
        """Use the pools that are held. If that cannot be, new ones take their place: no one else could use them."""
        if not self._share_a_tag(self._map, NOT_USED):
            return False
        if self._ranks.rank == 0 and self._next_tag is not None:
            self._next_tag.begin()
        return self._use()

    def _renew(self) -> bool:
        """Make pools of a new set, and hold them. Those that are held go first: a GPU may have no room for both."""
        try:
            made = self._together(self._make, NOT_KEPT)
            if made is None or not self._share_a_tag(lambda: self._open_tag(*made[0]), NOT_KEPT):
                return False
            if self._together(self._deposit, NOT_KEPT) is None:
                return False
        finally:
            if self._tag_fd is not None:
                os.close(self._tag_fd)
                self._tag_fd = None
        self.is_new = True
        return self._use()

    def _share_a_tag(self, find: Callable[[], Told], otherwise: str) -> bool:
        """Find the tag page of one's pool, and see that all ranks have the same one."""
        rows = self._together(find, otherwise)
        if rows is not None and len({set_id for set_id, _ in rows}) > 1:
            log.warning(otherwise, reason="the pools of the ranks do not belong together")
            return False
        return rows is not None

    def _together(self, do: Callable[[], Told], otherwise: str) -> list[Told] | None:
        """Do something on every rank. Returns what each tells the others; None, with the reason in the log, if one of
        them could not."""
        told, reason = (0, 0), None
        try:
            told = do()
        except BatonError as error:
            reason = str(error)
        rows = self._ranks.gather([reason is None, *told])
        could = [row[0] for row in rows]
        if all(could):
            return [(first, second) for _, first, second in rows]
        log.warning(otherwise, reason=reason or f"it failed on {without(could)}")
        return None

    # --- one rank's part ---

    def _map(self) -> Told:
        held = self.link.pool
        assert held is not None
        if held.num_bytes != self._memory.num_bytes:
            raise KeeperError(f"it has {held.num_bytes} bytes, this executor's has {self._memory.num_bytes}")
        self._next_tag = PoolTag(held.tag_fd, self._ranks.rank)
        self._memory.map(held.memory_fd)
        return self._next_tag.set_id, 0

    def _make(self) -> Told:
        self._memory.clear()
        self.link.give_pool_up()
        self._memory.create()
        if self._ranks.rank > 0:
            return 0, 0
        self._tag_fd = PoolTag.create()
        return os.getpid(), self._tag_fd

    def _open_tag(self, pid: int, fd: int) -> Told:
        if self._tag_fd is None:
            self._tag_fd = open_file_of(pid, fd)
        self._next_tag = PoolTag(self._tag_fd, self._ranks.rank)
        return self._next_tag.set_id, 0

    def _deposit(self) -> Told:
        memory_fd, tag_fd = self._memory.descriptor, self._tag_fd
        assert memory_fd is not None and tag_fd is not None  # noqa: PT018
        self.link.deposit_pool(self._kind, self._num_blocks, self._memory.num_bytes, memory_fd, tag_fd)
        return 0, 0

    def _use(self) -> bool:
        held, tag = self.link.pool, self._next_tag
        assert held is not None and tag is not None  # noqa: PT018
        self.tag = tag
        facts = {"pool": held.pool[:8], "lease": held.lease, "epoch": tag.epoch, "device": held.kind.device}
        log.info("holds a pool", blocks=held.num_blocks, gib=round(held.num_bytes / 2**30, 3), **facts)
        return True


def _is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0.0)[0])
