"""Who is at the other end of each connection: an executor, the watchdog of one, or as yet neither.

An executor is known from its first message until its process has provably ended; without a connection, a pool and
weights it is forgotten earlier, since nothing depends on its end.
"""

from dataclasses import dataclass

from common import messages as m
from common.printable import name_fault
from keeper_svc.actions import (
    CloseHandle,
    Connection,
    Disconnect,
    Handle,
    KeeperAction,
    ProcessHandle,
    Send,
    WriteLog,
)
from keeper_svc.executor import Executor
from keeper_svc.shelf import Shelf

MAX_EXECUTORS = 256
STRANGER_TIMEOUT_S = 10.0  # for a connection to say what it is


@dataclass
class _Peer:
    """The other end of a connection."""

    since: float
    executor: Executor | None = None
    watched: Executor | None = None


class Registry:
    """Connections and executors.

    Args:
        shelf: says what is kept for an executor.
        keeper: name of this life of the keeper.

    Attributes:
        executors: by instance, in the order in which they registered.
    """

    def __init__(self, shelf: Shelf, keeper: str) -> None:
        self.executors: dict[str, Executor] = {}
        self._shelf = shelf
        self._keeper = keeper
        self._peers: dict[Connection, _Peer] = {}

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._peers

    def connected(self, connection: Connection, now: float) -> None:
        """Somebody has connected."""
        self._peers[connection] = _Peer(now)

    def executor_at(self, connection: Connection) -> Executor | None:
        """The executor at the other end."""
        return self._peers[connection].executor

    def executor_of(self, process: Handle) -> Executor | None:
        """The executor whose pidfd this is."""
        return next((executor for executor in self.executors.values() if executor.process == process), None)

    def register(
        self, connection: Connection, message: m.Register, process: ProcessHandle, now: float
    ) -> list[KeeperAction] | str:
        """An executor says who it is. Returns why it is not let in, if it is not."""
        if (reason := self._no_entry(connection, message.version)) is not None:
            return reason
        if (reason := name_fault("name", message.name)) is not None:
            return reason
        executor = self.executors.get(message.instance)
        actions: list[KeeperAction] = []
        if executor is not None:
            actions += self._leave_old_connection(executor)
            actions.append(CloseHandle(process.handle))  # the one that it sent first stays
        elif len(self.executors) >= MAX_EXECUTORS:
            return f"{len(self.executors)} executors are registered, the limit is {MAX_EXECUTORS}"
        else:
            executor = Executor(message.instance, message.name, message.pid, process.handle, process.can_signal)
            self.executors[message.instance] = executor
            facts = {"executor": executor.name, "pid": executor.pid, "can_kill": executor.can_kill}
            actions.append(WriteLog("info", "executor registered", facts))
        self._peers[connection].executor = executor
        executor.connection = connection
        if executor.heard_at is not None:
            executor.heard_at = now
        return [*actions, Send(connection, m.Registered(keeper=self._keeper, can_kill=executor.can_kill))]

    def watch(self, connection: Connection, message: m.Watch) -> list[KeeperAction] | str:
        """A watchdog says whom it can kill. Returns why it is not let in, if it is not."""
        if (reason := self._no_entry(connection, message.version)) is not None:
            return reason
        executor = self.executors.get(message.instance)
        if executor is None:
            return "no executor of this instance is registered"
        actions: list[KeeperAction] = []
        if executor.watchdog is not None:  # which the executor has ended
            actions.append(Disconnect(executor.watchdog))
            del self._peers[executor.watchdog]
        self._peers[connection].watched = executor
        executor.watchdog = connection
        executor.is_condemned = False  # what could not be done without a watchdog can be done now
        log = WriteLog("info", "watchdog registered", {"executor": executor.name})
        return [*actions, Send(connection, m.Watching()), log]

    def closed(self, connection: Connection) -> list[KeeperAction]:
        """A connection has ended."""
        peer = self._peers.pop(connection, None)
        if peer is None:
            return []
        if peer.watched is not None:
            peer.watched.watchdog = None
            peer.watched.is_condemned = False  # if it was to be killed, that may have to be asked for again
        if (executor := peer.executor) is None:
            return []
        executor.loses_connection()
        return [] if self._shelf.is_used_by(executor) else self.forget(executor)

    def forget(self, executor: Executor) -> list[KeeperAction]:
        """Nothing is kept for this executor any more, or its process has ended."""
        actions: list[KeeperAction] = []
        for connection in (executor.connection, executor.watchdog):
            if connection is not None:
                del self._peers[connection]
                actions.append(Disconnect(connection))
        executor.loses_connection()
        executor.watchdog = None
        del self.executors[executor.instance]
        facts = {"executor": executor.name, "pid": executor.pid}
        return [*actions, CloseHandle(executor.process), WriteLog("info", "executor gone", facts)]

    def late_strangers(self, now: float) -> list[Connection]:
        """Connections that have not said for too long what they are."""
        return [
            connection
            for connection, peer in self._peers.items()
            if peer.executor is None and peer.watched is None and now - peer.since > STRANGER_TIMEOUT_S
        ]

    def paused(self, seconds: float, now: float) -> None:
        """The keeper has not run for so long: all may have spoken in that time."""
        for peer in self._peers.values():
            peer.since = min(peer.since + seconds, now)
        for executor in self.executors.values():
            executor.paused(seconds, now)

    def _leave_old_connection(self, executor: Executor) -> list[KeeperAction]:
        if executor.connection is None:
            return []
        left = Disconnect(executor.connection)
        del self._peers[executor.connection]
        executor.loses_connection()
        return [left]

    def _no_entry(self, connection: Connection, version: int) -> str | None:
        if not m.OLDEST_KEEPER_VERSION <= version <= m.KEEPER_VERSION:
            spoken = f"{m.OLDEST_KEEPER_VERSION} to {m.KEEPER_VERSION}"
            return f"it speaks version {version} of the keeper's protocol, this keeper {spoken}"
        peer = self._peers[connection]
        return None if peer.executor is None and peer.watched is None else "it registered twice"
