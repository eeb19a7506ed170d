"""The link to this machine's keeper: what an executor asks it, and what it holds for this executor.

While an executor starts, each call waits for its answer, and asks the next keeper if the first one ends. While it
serves, nothing here waits: the link is polled and ticked by the thread that owns the scheduler's socket. A keeper that
dies is found again, and brought what it had. At the end the lease of the pool can be released.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from common import messages as m
from common.logging import get_logger
from executor_svc.keeper.conversation import KEEPER_TIMEOUTS, Conversation, Deposit, KeeperTimeouts
from executor_svc.keeper.held import HeldPool, HeldWeights

LONGEST_WAIT_S = 500.0  # for weights; ranks wait 600 s for each other
ASK_AGAIN_S = 0.1

log = get_logger("executor")


class KeeperLink:
    """This process's link. One thread uses it at a time.

    Args:
        socket_path: the keeper's.
        executor_name: for operators.
        timeouts: while the executor starts.

    Attributes:
        pool: what this process holds; None before it holds one.

    Raises:
        KeeperError: there is no keeper, or it does not let this process in; the message names the path.
    """

    def __init__(self, socket_path: Path, executor_name: str, timeouts: KeeperTimeouts = KEEPER_TIMEOUTS) -> None:
        self.pool: HeldPool | None = None
        self._weights: list[HeldWeights] = []
        self._waits_at = 0  # over the connection of this number the keeper was told that this is a standby
        self._talk = Conversation(socket_path, executor_name, self._held, timeouts)

    # --- at the start; each raises KeeperError if the keeper refuses, has gone or does not answer ---

    def ask(
        self, message: m.ToKeeper, *answers: type[m.FromKeeper], fds: Sequence[int] = ()
    ) -> tuple[m.FromKeeper, list[int]]:
        """See `Conversation.ask`."""
        return self._talk.ask(message, *answers, fds=fds)

    def find_pool(self, kind: m.PoolKind, num_blocks: int = 0) -> int:
        """Number of blocks of a pool that could be leased, now or once its holder is gone; 0 if there is none.

        Args:
            num_blocks: only a pool of so many; 0 for any.
        """
        found, _ = self.ask(m.FindPool(kind=kind, num_blocks=num_blocks), m.PoolFound)
        assert isinstance(found, m.PoolFound)
        return found.num_blocks

    def ask_role(self, kind: m.PoolKind) -> bool:
        """Whether this executor had better wait for the pool of another one: some serve, and none waits."""
        role, _ = self.ask(m.AskRole(kind=kind), m.RoleGiven)
        assert isinstance(role, m.RoleGiven)
        return role.waits

    def lease_pool(self, kind: m.PoolKind, num_blocks: int) -> HeldPool | None:
        """A pool that has no holder, if there is one: this process holds it from now on, until it ends."""
        leased, fds = self.ask(m.LeasePool(kind=kind, num_blocks=num_blocks), m.PoolLeased, m.PoolAbsent)
        return self._hold(kind, leased, fds) if isinstance(leased, m.PoolLeased) else None

    def wait_for_pool(
        self,
        kind: m.PoolKind,
        num_blocks: int,
        interrupt_fd: int | None = None,
        waiting: Callable[[bool], None] = lambda _: None,
        until: float = math.inf,
    ) -> HeldPool | None:
        """Be a standby until a pool's holder is provably gone, through any number of lives of the keeper.

        Args:
            interrupt_fd: returns None when this descriptor is readable.
            waiting: is told twice a second whether a keeper is there.
            until: returns None at this time, too. The process stays a standby until `stop_waiting`.
        """
        wish = m.LeasePool(kind=kind, num_blocks=num_blocks, wait=True)
        talk = self._talk
        while not talk.wait(interrupt_fd, min(until, talk.next_tick())):
            for message, fds in talk.take(1):
                if isinstance(message, m.PoolLeased) and fds:
                    return self._hold(kind, message, fds)
                if isinstance(message, m.Refused) and talk.is_up_to_date:
                    raise talk.error(f"refuses: {message.reason}")
                talk.background(message, fds)
            self.tick(time.monotonic(), "seeking")
            if talk.is_connected and talk.num_connections != self._waits_at:  # a keeper that does not know
                self._waits_at = talk.num_connections
                talk.send(wish)
            waiting(talk.is_connected)
            if time.monotonic() >= until:
                break
        return None

    def stop_waiting(self) -> None:
        """Be no standby any more: one is one as long as it is connected."""
        self._talk.disconnect()

    def deposit_pool(self, kind: m.PoolKind, num_blocks: int, num_bytes: int, memory_fd: int, tag_fd: int) -> HeldPool:
        """Have a new pool kept. This process holds it until it ends; one that it held before is dropped."""
        message = m.DepositPool(kind=kind, num_blocks=num_blocks, num_bytes=num_bytes)
        leased, _ = self.ask(message, m.PoolLeased, fds=(memory_fd, tag_fd))
        assert isinstance(leased, m.PoolLeased)
        return self._hold(kind, leased, [os.dup(memory_fd), os.dup(tag_fd)])

    def give_pool_up(self) -> None:
        """Have the pool dropped that this process holds, if it does; it has unmapped the pool."""
        if self.pool is not None:
            self._close_pool()
            self.ask(m.GivePoolUp(), m.PoolGivenUp)

    def make_room(self, device: str, *, pools: bool = True) -> int:
        """Give back what no executor uses of a GPU's memory. Returns how many bytes these are.

        For the machine's memory the keeper does so by itself: it has a limit there, and a pool's memory that nobody
        touches costs nothing. On a GPU a pool takes all of its memory as long as it is kept.

        Args:
            pools: whether pools, too, and not only weights.
        """
        if device == "cpu":
            return 0
        dropped, _ = self.ask(m.DropKept(device=device, pools=pools), m.Dropped)
        assert isinstance(dropped, m.Dropped)
        if dropped.num_bytes:
            facts = {"pools": dropped.num_pools, "weights": dropped.num_weights}
            log.info("unused memory was dropped", device=device, **facts, gib=round(dropped.num_bytes / 2**30, 3))
        return dropped.num_bytes

    def find_weights(
        self,
        kind: m.WeightsKind,
        *,
        fingerprint: str = "",
        source: str = "",
        reads: bool = False,
        wait_s: float = 0.0,
    ) -> HeldWeights | None:
        """Weights of this fingerprint, or read from this source, if they are kept.

        Args:
            reads: if they are not, this process reads the source. So this call waits for another process that does so
                already, as long as the keeper says that one does: the source is read once, and no memory is taken
                twice.
            wait_s: for weights that another process is about to bring.
        """
        wish = m.FindWeights(kind=kind, fingerprint=fingerprint, source=source, reads=reads)
        begun, has_said = time.monotonic(), False
        while True:
            found, fds = self.ask(wish, m.WeightsFound, m.WeightsAbsent)
            if isinstance(found, m.WeightsFound):
                break
            assert isinstance(found, m.WeightsAbsent)
            if time.monotonic() >= begun + (LONGEST_WAIT_S if found.is_read else wait_s):
                return None
            if found.is_read and not has_said:
                log.info("waits for weights that another executor reads")
                has_said = True
            time.sleep(ASK_AGAIN_S)
        if len(fds) != 1:
            raise self._talk.error(f"sent {len(fds)} files of weights, which have 1")
        return self._use(HeldWeights(kind, found.fingerprint, source, found.num_bytes, fds[0]))

    def reads_for_itself(self) -> None:
        """Others need not wait for the weights that this process reads: it cannot bring them."""
        self._talk.send(m.Alive(state="seeking"))  # the keeper takes any other message than FindWeights for that

    def deposit_weights(
        self, kind: m.WeightsKind, fingerprint: str, num_bytes: int, memory_fd: int, source: str = ""
    ) -> HeldWeights:
        """Have weights kept for every executor of their kind. Seal them before: see `seal_read_only`."""
        weights = HeldWeights(kind, fingerprint, source, num_bytes, memory_fd)
        self.ask(weights.deposit(), m.WeightsKept, fds=(memory_fd,))
        return self._use(HeldWeights(kind, fingerprint, source, num_bytes, os.dup(memory_fd)))

    # --- while it serves: nothing waits, nothing is raised ---

    def fileno(self) -> int:
        """To poll for reading; -1 while there is no keeper. It changes when another one is found."""
        return self._talk.fileno()

    def next_tick(self) -> float:
        """When `tick` is to be called at the latest."""
        return self._talk.next_tick()

    def receive(self) -> list[m.Standbys]:
        """What has come that the executor wants to know."""
        return self._talk.take_events()

    def tick(self, now: float, state: m.HolderState) -> None:
        """Say that this process lives when that is due; look for a keeper if there is none."""
        self._talk.tick(now, state)

    # --- at the end ---

    def release_lease(self) -> None:
        """Let the next executor have the pool that this process holds, if it does; it has unmapped the pool.

        Raises:
            KeeperError: there is no keeper, or it has not answered; then the lease ends with this process, if not
                before.
        """
        if self.pool is None:
            return
        # Before: a keeper that is found now may have been brought the pool by its next holder.
        self._close_pool()
        if not self._talk.is_connected:
            raise self._talk.error("is not there")
        self._talk.ask(m.ReleaseLease(), m.LeaseReleased, retries=False)

    def close(self) -> None:
        """End the link, not the lease: that ends with the process, or with `release_lease`."""
        self._talk.close()
        self._close_pool()
        for weights in self._weights:
            os.close(weights.memory_fd)
        self._weights = []

    # --- what is held ---

    def _held(self) -> list[Deposit]:
        """What a keeper that does not know it is brought."""
        pools = [] if self.pool is None else [self.pool]
        deposits: list[Deposit] = [(pool.deposit(), (pool.memory_fd, pool.tag_fd)) for pool in pools]
        return deposits + [(weights.deposit(), (weights.memory_fd,)) for weights in self._weights]

    def _hold(self, kind: m.PoolKind, leased: m.PoolLeased, fds: list[int]) -> HeldPool:
        if len(fds) != 2:
            raise self._talk.error(f"sent {len(fds)} files of a pool, which has 2")
        self._close_pool()
        self.pool = HeldPool(kind, leased.pool, leased.lease, leased.num_blocks, leased.num_bytes, *fds)
        return self.pool

    def _close_pool(self) -> None:
        if self.pool is not None:
            os.close(self.pool.memory_fd)
            os.close(self.pool.tag_fd)
            self.pool = None

    def _use(self, weights: HeldWeights) -> HeldWeights:
        self._weights.append(weights)
        return weights
