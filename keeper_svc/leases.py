"""Who may write which pool. A lease ends when its holder is provably gone, or has released it; then the pool goes to
the standby that has waited longest.

    free --LeasePool--> held --its holder's pidfd is readable, or ReleaseLease--> free
                         |
                         +-- a standby waits, and the holder hangs: the holder is killed, which is no end of the lease
"""

import math
from collections.abc import Callable, Iterable

from common import messages as m
from keeper_svc.actions import Handle, KeeperAction, Kill, MemoryHandle, Send, WriteLog
from keeper_svc.executor import Executor, Wish
from keeper_svc.shelf import Pool, Shelf


class Leases:
    """Gives pools to executors.

    Args:
        shelf: where the pools are kept.
        executors: all that are known, in the order in which they registered.
        new_name: makes 32 characters that nobody can guess.
    """

    def __init__(self, shelf: Shelf, executors: dict[str, Executor], new_name: Callable[[], str]) -> None:
        self._shelf = shelf
        self._executors = executors
        self._new_name = new_name
        self._next_order = 1

    def find(self, executor: Executor, message: m.FindPool, now: float) -> int:
        """Number of blocks of the pool that an executor should ask for: a free one, then one with few standbys."""
        fitting = [
            pool
            for pool in self._shelf.pools
            if pool.fits(message.kind, message.num_blocks) and not pool.is_left_since(executor.freed_since)
        ]
        if not fitting:
            return 0
        best = min(fitting, key=lambda pool: (pool.holder is not None, len(self.standbys(pool, now)), -pool.since))
        return best.num_blocks

    def lease(self, executor: Executor, message: m.LeasePool, now: float) -> list[KeeperAction]:
        """An executor wants a pool."""
        held = self._shelf.held_by(executor)
        if held is not None:
            if held.fits(message.kind, message.num_blocks):
                return [_leased(held, held.handles)]  # the first answer was lost with its connection
            return refuse(executor, f"{executor.name} holds pool {held.shown} already")
        freed_since = executor.freed_since if message.wait else -math.inf
        if (free := self._best_free(message.kind, message.num_blocks, freed_since)) is not None:
            return self._give(free, executor, now)
        if not message.wait:
            executor.wish = None
            return answer(executor, m.PoolAbsent())
        before = executor.wish
        if before is not None and (before.kind, before.num_blocks) == (message.kind, message.num_blocks):
            return []
        executor.waits(Wish(message.kind, message.num_blocks, self._next_order, freed_since), now)
        self._next_order += 1
        return [WriteLog("info", "standby waits", {"executor": executor.name, "num_blocks": message.num_blocks})]

    def alive(self, executor: Executor, state: m.HolderState, now: float) -> list[KeeperAction]:
        """An executor says that it lives. A standby that was silent when its pool became free gets the pool now."""
        executor.alive(state, now)
        if (wish := executor.wish) is None:
            return []
        if (free := self._best_free(wish.kind, wish.num_blocks, wish.freed_since)) is None:
            return []
        return self._give(free, executor, now)

    def new_pool(
        self, executor: Executor, message: m.DepositPool, memory: MemoryHandle, tag: MemoryHandle, now: float
    ) -> Pool:
        """What an executor deposits, before it is known whether there is room."""
        name, lease = (message.pool, message.lease) if message.pool else (self._new_name(), 1)
        num_bytes = message.num_bytes
        return Pool(name, message.kind, message.num_blocks, num_bytes, memory.handle, tag.handle, lease, executor, now)

    def known(self, executor: Executor, message: m.DepositPool) -> Pool | str | None:
        """The pool that an executor deposits once more, or why it may not; None if it is not here."""
        pool = next((pool for pool in self._shelf.pools if pool.name == message.pool), None)
        if pool is None or pool.holder is executor:
            return pool
        holder = "nobody, since its lease has ended" if pool.holder is None else pool.holder.name
        return f"pool {pool.shown} is held by {holder}"

    def told_again(self, pool: Pool) -> list[KeeperAction]:
        """Tell a holder that it holds a pool whose files it has."""
        return [_leased(pool, ())]

    def deposited(self, pool: Pool) -> list[KeeperAction]:
        """A pool has come, with its holder."""
        assert pool.holder is not None
        pool.holder.holds(pool.since)
        facts = {"executor": pool.holder.name, **_facts(pool), "num_bytes": pool.num_bytes}
        return [_leased(pool, ()), WriteLog("info", "pool deposited", facts)]

    def release(self, executor: Executor, now: float) -> list[KeeperAction]:
        """An executor can write its pool no more, and says so; how long its process lives on concerns no one."""
        return [*self.free(executor, now, "its holder has released it"), *answer(executor, m.LeaseReleased())]

    def free(self, executor: Executor, now: float, cause: str = "its holder has ended") -> list[KeeperAction]:
        """An executor can write its pool no more: the pool goes to the next standby."""
        pool = self._shelf.held_by(executor)
        if pool is None:
            return []
        pool.holder, pool.since = None, now
        facts = {"executor": executor.name, **_facts(pool), "cause": cause}
        freed: list[KeeperAction] = [WriteLog("info", "pool freed", facts)]
        waiting = self.standbys(pool, now)
        return freed + (self._give(pool, waiting[0], now) if waiting else [])

    def standbys(self, pool: Pool, now: float) -> list[Executor]:
        """Those that wait for such a pool and live, the one that has waited longest first."""
        waiting = [
            (executor.wish.order, executor)
            for executor in self._executors.values()
            if executor.wish is not None
            and executor.is_standby(now)
            and pool.fits(executor.wish.kind, executor.wish.num_blocks)
        ]
        return [executor for _, executor in sorted(waiting, key=lambda pair: pair[0])]

    def tell_standbys(self, now: float) -> list[KeeperAction]:
        """Tell each holder how many wait for its pool, if that is news."""
        actions: list[KeeperAction] = []
        for holder, pool in self._held():
            count = len(self.standbys(pool, now))
            if holder.connection is not None and count != holder.told_standbys:
                holder.told_standbys = count
                actions += answer(holder, m.Standbys(count=count))
        return actions

    def end_hung_holders(self, now: float) -> list[KeeperAction]:
        """Kill the holders that hang, of pools that a standby waits for."""
        actions: list[KeeperAction] = []
        for holder, pool in self._held():
            if holder.is_condemned or (cause := holder.hangs_because(now)) is None or not self.standbys(pool, now):
                continue
            holder.is_condemned = True
            facts = {"executor": holder.name, **_facts(pool), "cause": cause}
            if holder.can_kill:
                actions += [WriteLog("warning", "holder is killed", facts), Kill(holder.process)]
            elif holder.watchdog is not None:
                told = Send(holder.watchdog, m.KillHolder())
                actions += [WriteLog("warning", "holder is killed by its watchdog", facts), told]
            else:
                why = "the holder is in another PID namespace and has no watchdog"
                actions.append(WriteLog("warning", "pool cannot be handed on", {**facts, "why": why}))
        return actions

    def _held(self) -> Iterable[tuple[Executor, Pool]]:
        return [(pool.holder, pool) for pool in self._shelf.pools if pool.holder is not None]

    def _best_free(self, kind: m.PoolKind, num_blocks: int, freed_since: float) -> Pool | None:
        """The last one used: its content is most likely to be worth something."""
        free = [
            pool
            for pool in self._shelf.pools
            if pool.holder is None and not pool.is_left_since(freed_since) and pool.fits(kind, num_blocks)
        ]
        return max(free, key=lambda pool: pool.since, default=None)

    def _give(self, pool: Pool, executor: Executor, now: float) -> list[KeeperAction]:
        assert pool.holder is None
        pool.lease += 1
        pool.holder, pool.since = executor, now
        executor.holds(now)
        log = WriteLog("info", "pool leased", {"executor": executor.name, **_facts(pool)})
        return [_leased(pool, pool.handles), log]


def answer(executor: Executor, message: m.FromKeeper, handles: tuple[Handle, ...] = ()) -> list[KeeperAction]:
    """Tell an executor something, if it is connected."""
    return [] if executor.connection is None else [Send(executor.connection, message, handles)]


def refuse(executor: Executor, reason: str) -> list[KeeperAction]:
    """Tell an executor that what it asked for is not done."""
    log = WriteLog("warning", "executor refused", {"executor": executor.name, "reason": reason}, is_seldom=True)
    return [*answer(executor, m.Refused(reason=reason)), log]


def _facts(pool: Pool) -> dict[str, object]:
    return {"pool": pool.shown, "lease": pool.lease}


def _leased(pool: Pool, handles: tuple[Handle, ...]) -> Send:
    assert pool.holder is not None
    assert pool.holder.connection is not None, "a pool is given to an executor that is connected"
    message = m.PoolLeased(pool=pool.name, lease=pool.lease, num_blocks=pool.num_blocks, num_bytes=pool.num_bytes)
    return Send(pool.holder.connection, message, handles)
