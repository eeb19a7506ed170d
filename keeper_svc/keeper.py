"""The keeper: what each message of an executor or an operator does, and what time does.

A pure state machine: its methods are the events, and each returns the actions to carry out. Descriptors are handles;
each handle that comes in is named by one CloseHandle in the end. Sockets, files, signals, the clock and the log are in
`keeper_svc.server`. Times are seconds of any monotonic clock.
"""

from collections.abc import Callable
from dataclasses import dataclass

from common import messages as m
from keeper_svc.actions import (
    CloseHandle,
    Connection,
    Descriptor,
    Disconnect,
    Handle,
    KeeperAction,
    MemoryHandle,
    ProcessHandle,
    Send,
)
from keeper_svc.deposits import Deposits, dropped
from keeper_svc.executor import Executor
from keeper_svc.leases import Leases
from keeper_svc.readers import Readers
from keeper_svc.registry import Registry
from keeper_svc.report import kept_pool, kept_weights
from keeper_svc.roles import Roles
from keeper_svc.shelf import Pool, Shelf

TICK_INTERVAL_S = 0.2
PAUSE_S = 1.0  # between two events: the keeper's process did not run
DEFAULT_KEEP_FOR_S = 600.0

_BESIDE: dict[type[m.Message], tuple[type[ProcessHandle] | type[MemoryHandle], ...]] = {
    m.Register: (ProcessHandle,),
    m.DepositPool: (MemoryHandle, MemoryHandle),
    m.DepositWeights: (MemoryHandle,),
}  # what has to come beside a message; beside every other one, nothing


@dataclass(frozen=True)
class KeeperConfig:
    """What an operator decides.

    Attributes:
        max_bytes: of all pools and weights.
        keep_for_s: how long a pool without a holder, or weights without a user, are kept.
    """

    max_bytes: int
    keep_for_s: float = DEFAULT_KEEP_FOR_S


class Keeper:
    """The state machine.

    Args:
        config: limits.
        name: random, another one in each life of a keeper.
        pid: of its process, for operators.
        new_name: makes 32 characters that nobody can guess.
        now: the current time.
    """

    def __init__(self, config: KeeperConfig, name: str, pid: int, new_name: Callable[[], str], now: float) -> None:
        self.shelf = Shelf(config.max_bytes)
        self._config = config
        self._name = name
        self._pid = pid
        self._started_at = self._last_call = now
        self._registry = Registry(self.shelf, name)
        self._leases = Leases(self.shelf, self._registry.executors, new_name)
        self._roles = Roles(self.shelf, self._registry.executors)
        self._readers = Readers(self.shelf, self._registry.executors)
        self._deposits = Deposits(self.shelf, self._leases, self._readers)

    @property
    def executors(self) -> list[Executor]:
        """Those that are known, in the order in which they registered."""
        return list(self._registry.executors.values())

    # --- events ---

    def connected(self, connection: Connection, now: float) -> None:
        """Somebody has connected."""
        self._notice_pause(now)
        self._registry.connected(connection, now)

    def received(
        self, connection: Connection, message: m.ToKeeper, beside: tuple[Descriptor, ...], now: float
    ) -> list[KeeperAction]:
        """A message has come, and these descriptors beside it."""
        self._notice_pause(now)
        unused: list[KeeperAction] = [CloseHandle(descriptor.handle) for descriptor in beside]
        if connection not in self._registry:  # it was turned away with this message on the way
            return unused
        outcome = self._handle(connection, message, beside, now)
        if isinstance(outcome, str):
            return [*self._turn_away(connection, outcome, now), *unused]
        return [*outcome, *self._leases.tell_standbys(now)]

    def connection_closed(self, connection: Connection, now: float) -> list[KeeperAction]:
        """A connection has ended. No lease ends with it."""
        self._notice_pause(now)
        return [*self._registry.closed(connection), *self._leases.tell_standbys(now)]

    def process_ended(self, process: Handle, now: float) -> list[KeeperAction]:
        """The process of a pidfd has provably ended."""
        self._notice_pause(now)
        executor = self._registry.executor_of(process)
        if executor is None:
            return []
        actions = self._registry.forget(executor)
        self.shelf.end_use(executor, now)
        return [*actions, *self._leases.free(executor, now), *self._leases.tell_standbys(now)]

    def kill_failed(self, process: Handle, now: float) -> list[KeeperAction]:
        """A process may not be killed by this keeper after all."""
        self._notice_pause(now)
        executor = self._registry.executor_of(process)
        if executor is not None:
            executor.can_kill = executor.is_condemned = False
        return self._leases.end_hung_holders(now)

    def tick(self, now: float) -> list[KeeperAction]:
        """Time has passed. Call it every `TICK_INTERVAL_S`."""
        self._notice_pause(now)
        actions = self._leases.end_hung_holders(now)
        for kept in self.shelf.take_expired(now - self._config.keep_for_s):
            actions += dropped(kept, f"unused for {self._config.keep_for_s:.0f} s")
        for connection in self._registry.late_strangers(now):
            actions += self._turn_away(connection, "it has not said for too long who it is", now)
        return [*actions, *self._leases.tell_standbys(now)]

    # --- messages; a text says why the peer is turned away ---

    def _handle(
        self, connection: Connection, message: m.ToKeeper, beside: tuple[Descriptor, ...], now: float
    ) -> list[KeeperAction] | str:
        kinds = tuple(type(descriptor) for descriptor in beside)
        outcome: list[KeeperAction] | str
        if kinds != _BESIDE.get(type(message), ()):
            names = ", ".join(kind.__name__ for kind in kinds) or "nothing"
            return f"{names} came beside {type(message).__name__}"
        match message, beside:
            case m.Register(), (ProcessHandle() as process,):
                outcome = self._registry.register(connection, message, process, now)
            case m.Watch(), _:
                outcome = self._registry.watch(connection, message)
            case m.KeeperQuery(), _:
                outcome = [Send(connection, self._report(now))]
            case m.DropKept(), _:
                outcome = self._drop(connection, message)
            case _:
                outcome = self._from_executor(connection, message, beside, now)
        return outcome

    def _from_executor(
        self, connection: Connection, message: m.ToKeeper, beside: tuple[Descriptor, ...], now: float
    ) -> list[KeeperAction] | str:
        executor = self._registry.executor_at(connection)
        if executor is None:
            return f"{type(message).__name__} came before Register"
        outcome: list[KeeperAction] = []
        match message, beside:
            case m.Alive(state=state), _:
                outcome = self._leases.alive(executor, state, now)
            case m.FindPool(), _:
                outcome = [Send(connection, m.PoolFound(num_blocks=self._leases.find(executor, message, now)))]
            case m.AskRole(kind=kind), _:
                outcome = self._roles.ask(executor, kind, now)
            case m.LeasePool(), _:
                outcome = self._leases.lease(executor, message, now)
            case m.DepositPool(), (MemoryHandle() as memory, MemoryHandle() as tag):
                outcome = self._deposits.pool(executor, message, memory, tag, now)
            case m.GivePoolUp(), _:
                outcome = self._deposits.give_up_pool(executor)
            case m.ReleaseLease(), _:
                outcome = self._leases.release(executor, now)
            case m.FindWeights(), _:
                outcome = self._deposits.find_weights(executor, message, now)
            case m.DepositWeights(), (MemoryHandle() as memory,):
                outcome = self._deposits.weights(executor, message, memory)
        if not isinstance(message, m.FindWeights):
            self._readers.end(executor)
        return outcome

    def _drop(self, connection: Connection, message: m.DropKept) -> list[KeeperAction]:
        actions: list[KeeperAction] = []
        taken = self.shelf.take_wanted(message)
        executor = self._registry.executor_at(connection)
        for kept in taken:
            actions += dropped(kept, f"{'an operator' if executor is None else executor.name} wanted it gone")
        num_pools = sum(isinstance(kept, Pool) for kept in taken)
        num_bytes = sum(kept.num_bytes for kept in taken)
        answer = m.Dropped(num_pools=num_pools, num_weights=len(taken) - num_pools, num_bytes=num_bytes)
        return [*actions, Send(connection, answer)]

    def _report(self, now: float) -> m.KeeperReport:
        return m.KeeperReport(
            keeper=self._name,
            pid=self._pid,
            uptime_s=now - self._started_at,
            max_bytes=self.shelf.max_bytes,
            num_bytes=self.shelf.num_bytes,
            pools=tuple(kept_pool(pool, len(self._leases.standbys(pool, now)), now) for pool in self.shelf.pools),
            weights=tuple(kept_weights(weights, now) for weights in self.shelf.weights),
        )

    # --- inside ---

    def _turn_away(self, connection: Connection, reason: str, now: float) -> list[KeeperAction]:
        """Tell a peer why, and close its connection."""
        told: list[KeeperAction] = [Send(connection, m.Refused(reason=reason)), Disconnect(connection, reason)]
        return [*told, *self._registry.closed(connection), *self._leases.tell_standbys(now)]

    def _notice_pause(self, now: float) -> None:
        """Time in which the keeper did not run does not count as silence of an executor."""
        pause_s = now - self._last_call
        self._last_call = now
        if pause_s > PAUSE_S:
            self._registry.paused(pause_s, now)
