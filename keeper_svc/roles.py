"""Which of several executors that were started alike serves, and which one waits as their standby.

A supervisor that starts a killed process again knows one command line for it. So executors may ask, and the keeper sees
to it that one of each kind waits once another one serves. An answer counts from the moment in which it is given: those
that start together are not all told the same.
"""

from common import messages as m
from keeper_svc.actions import KeeperAction, WriteLog
from keeper_svc.executor import Executor, Role
from keeper_svc.leases import answer
from keeper_svc.shelf import Shelf


class Roles:
    """Gives roles to executors.

    Args:
        shelf: where the pools are kept.
        executors: all that are known.
    """

    def __init__(self, shelf: Shelf, executors: dict[str, Executor]) -> None:
        self._shelf = shelf
        self._executors = executors

    def ask(self, executor: Executor, kind: m.PoolKind, now: float) -> list[KeeperAction]:
        """An executor that can do both asks what is wanted of it."""
        others = [other for other in self._executors.values() if other is not executor]
        waits = self._is_served(kind, others) and not self._has_standby(kind, others, now)
        executor.role = Role(kind, waits, now)
        log = WriteLog("info", "role given", {"executor": executor.name, "waits": waits})
        return [*answer(executor, m.RoleGiven(waits=waits)), log]

    def _is_served(self, kind: m.PoolKind, others: list[Executor]) -> bool:
        """Whether others have such a pool, or will. One that is left over does not count: it may be of an executor that
        nobody starts again."""
        return any(
            (other.role is not None and other.role.kind == kind and not other.role.waits)
            or ((held := self._shelf.held_by(other)) is not None and held.kind == kind)
            for other in others
        )

    def _has_standby(self, kind: m.PoolKind, others: list[Executor], now: float) -> bool:
        """Whether another one waits for such a pool, or will."""
        return any(
            (other.role is not None and other.role.kind == kind and other.role.waits)
            or (other.is_standby(now) and other.wish is not None and other.wish.kind == kind)
            for other in others
        )
