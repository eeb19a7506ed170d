"""Pools and weights come in and are found; what has to go for them goes."""

from common import messages as m
from keeper_svc.actions import CloseHandle, KeeperAction, MemoryHandle, WriteLog
from keeper_svc.executor import Executor
from keeper_svc.leases import Leases, answer, refuse
from keeper_svc.readers import Readers
from keeper_svc.shelf import NAME_CHARS, Kept, Pool, Shelf, Weights


class Deposits:
    """What executors bring and look for.

    Args:
        shelf: where all of it is kept.
        leases: makes the depositor of a pool its holder.
        readers: tell which executor reads weights that are not there.
    """

    def __init__(self, shelf: Shelf, leases: Leases, readers: Readers) -> None:
        self._shelf = shelf
        self._leases = leases
        self._readers = readers

    def pool(
        self, executor: Executor, message: m.DepositPool, memory: MemoryHandle, tag: MemoryHandle, now: float
    ) -> list[KeeperAction]:
        """An executor brings a pool, new or one that an earlier keeper kept, and holds it from now on."""
        unused = [CloseHandle(memory.handle), CloseHandle(tag.handle)]
        if (reason := _misdescribed(message, memory)) is not None:
            return [*refuse(executor, reason), *unused]
        known = self._leases.known(executor, message)
        if isinstance(known, str):
            return [*refuse(executor, known), *unused]
        if known is not None:  # only the connection was lost
            return [*self._leases.told_again(known), *unused]
        actions = self._drop_held(executor, "its holder has another one")
        pool = self._leases.new_pool(executor, message, memory, tag, now)
        if isinstance(removed := self._shelf.put(pool), str):
            return [*actions, *refuse(executor, removed), *unused]
        return [*actions, *_made_room(removed), *self._leases.deposited(pool)]

    def give_up_pool(self, executor: Executor) -> list[KeeperAction]:
        """An executor can make nothing of the pool that it holds."""
        return [*self._drop_held(executor, "its holder cannot use it"), *answer(executor, m.PoolGivenUp())]

    def find_weights(self, executor: Executor, message: m.FindWeights, now: float) -> list[KeeperAction]:
        """An executor looks for weights, and uses those that it gets."""
        if bool(message.fingerprint) == bool(message.source):
            return refuse(executor, "weights are found either by a fingerprint or by a source")
        weights = self._shelf.find_weights(message.kind, message.fingerprint, message.source)
        if weights is None:
            return answer(executor, m.WeightsAbsent(is_read=self._readers.must_wait(executor, message, now)))
        is_new = executor not in weights.users
        weights.used_by(executor)
        found = m.WeightsFound(fingerprint=weights.fingerprint, num_bytes=weights.num_bytes)
        facts = {"executor": executor.name, "fingerprint": weights.fingerprint}
        log = [WriteLog("info", "weights found", facts)] if is_new else []
        return [*answer(executor, found, weights.handles), *log]

    def weights(self, executor: Executor, message: m.DepositWeights, memory: MemoryHandle) -> list[KeeperAction]:
        """An executor brings weights. The first ones stay: later ones are equal, and only add their source."""
        unused = CloseHandle(memory.handle)
        if (reason := _misdescribed(message, memory)) is not None:
            return [*refuse(executor, reason), unused]
        known = self._shelf.find_weights(message.kind, message.fingerprint, "")
        actions: list[KeeperAction] = [unused]
        if known is None:
            known = Weights(message.kind, message.fingerprint, message.num_bytes, memory.handle)
            if isinstance(removed := self._shelf.put(known), str):
                return [*refuse(executor, removed), unused]
            facts = {"executor": executor.name, "fingerprint": known.fingerprint, "num_bytes": known.num_bytes}
            actions = [*_made_room(removed), WriteLog("info", "weights deposited", facts)]
        self._shelf.read_from(known, message.source)
        known.used_by(executor)
        return [*actions, *answer(executor, m.WeightsKept())]

    def _drop_held(self, executor: Executor, cause: str) -> list[KeeperAction]:
        """An executor does not want what it holds: nobody else may have it."""
        if (held := self._shelf.held_by(executor)) is None:
            return []
        self._shelf.remove(held)
        return dropped(held, cause)


def _made_room(removed: list[Kept]) -> list[KeeperAction]:
    return [action for kept in removed for action in dropped(kept, "room was needed")]


def _misdescribed(message: m.DepositPool | m.DepositWeights, memory: MemoryHandle) -> str | None:
    """What is wrong with a deposit in itself."""
    if memory.num_bytes not in (None, message.num_bytes):
        return f"the memory has {memory.num_bytes} bytes, the message says {message.num_bytes}"
    if isinstance(message, m.DepositPool):
        is_new = not message.pool and not message.lease
        if not is_new and not (len(message.pool) == NAME_CHARS and message.lease):
            return f"a name of {len(message.pool)} characters and lease {message.lease} are those of no pool"
    return None


def dropped(kept: Kept, cause: str) -> list[KeeperAction]:
    """It is kept no longer: close its files and say so."""
    what = "pool dropped" if isinstance(kept, Pool) else "weights dropped"
    log = WriteLog("info", what, {"name": kept.shown, "num_bytes": kept.num_bytes, "cause": cause})
    return [*map(CloseHandle, kept.handles), log]
