"""The keeper's process: one thread, which connects the `Keeper` to sockets, pidfds, the clock and the log."""

import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable

from common import messages as m
from common.errors import WireError
from common.keeper_socket import peer_of
from common.logging import DropLog, Logger, QuietLog
from common.packets import PacketConnection
from keeper_svc.actions import (
    CloseHandle,
    Connection,
    Descriptor,
    Disconnect,
    Handle,
    KeeperAction,
    Kill,
    ProcessHandle,
    Send,
    WriteLog,
)
from keeper_svc.descriptors import Descriptors
from keeper_svc.keeper import TICK_INTERVAL_S, Keeper

MAX_CONNECTIONS = 768  # executors, their watchdogs, and as many others
MAX_PACKETS = 16  # from one connection in a turn, so that no other one waits for long
MAX_ACCEPTS = 16  # in a turn


class Server:
    """Serves until `stop` is called.

    Args:
        keeper: decides.
        listener: where peers connect; it does not block.
        log: gets what the keeper writes.
    """

    def __init__(self, keeper: Keeper, listener: socket.socket, log: Logger) -> None:
        self._keeper = keeper
        self._listener = listener
        self._log = log
        self._drops = DropLog(log, "keeper")
        self._strangers = QuietLog(log, "connection refused")
        self._seldom: dict[str, QuietLog] = {}
        self._selector = selectors.DefaultSelector()
        self._connections: dict[Connection, tuple[PacketConnection[m.ToKeeper], int]] = {}
        self._descriptors = Descriptors()
        self._watched: set[Handle] = set()  # pidfds that the selector has; their order means nothing
        self._next_connection = 1
        self._tick_at = time.monotonic()
        self._stopping = False
        self._poll(listener, self._accept)

    def stop(self) -> None:
        """Return from `run` after this turn."""
        self._stopping = True

    def poll(self, fd: int, when_readable: Callable[[], None]) -> None:
        """Also wait for this descriptor."""
        self._poll(fd, when_readable)

    def run(self) -> None:
        """Serve. What executors have mapped stays theirs when this ends."""
        while not self._stopping:
            self._turn()
        for connection, _ in self._connections.values():
            connection.close()
        self._descriptors.close_all()
        self._selector.close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(max(0.0, self._tick_at - time.monotonic())):
            if self._selector.get_map().get(key.fd) is key:  # an earlier event of this turn may have closed it
                key.data()
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + TICK_INTERVAL_S
            self._do(self._keeper.tick(now))

    def _poll(
        self, file: int | socket.socket | PacketConnection[m.ToKeeper], when_readable: Callable[[], None]
    ) -> None:
        self._selector.register(file, selectors.EVENT_READ, when_readable)

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTS):
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptor is free: try again with the next tick, not at once
                self._strangers.happened(reason=str(error))
                time.sleep(TICK_INTERVAL_S)
                return
            self._meet(accepted)

    def _meet(self, accepted: socket.socket) -> None:
        pid, uid = peer_of(accepted)
        if uid != os.geteuid():
            self._strangers.happened(reason=f"it is of user {uid}")
        elif len(self._connections) >= MAX_CONNECTIONS:
            self._strangers.happened(reason=f"there are {len(self._connections)}, which is the limit")
        else:
            accepted.setblocking(False)
            number = self._next_connection
            self._next_connection += 1
            connection: PacketConnection[m.ToKeeper] = PacketConnection(accepted, m.ToKeeper, m.MAX_REQUEST_BYTES)
            self._connections[number] = (connection, pid)
            self._poll(connection, lambda: self._receive(number))
            self._keeper.connected(number, time.monotonic())
            return
        accepted.close()

    def _receive(self, number: Connection) -> None:
        for _ in range(MAX_PACKETS):
            if number not in self._connections:
                return  # the last message ended it
            connection, pid = self._connections[number]
            try:
                received = connection.receive()
                if received is None:
                    break
                message, fds = received
                beside = self._take(fds, pid)
            except BlockingIOError:
                return
            except WireError as error:
                self._drops.dropped(f"process {pid}", error)
                break
            except OSError:
                break
            self._do(self._keeper.received(number, message, beside, time.monotonic()))
        else:
            return  # there may be more
        self._close(number)
        self._do(self._keeper.connection_closed(number, time.monotonic()))

    def _take(self, fds: list[int], peer_pid: int) -> tuple[Descriptor, ...]:
        beside: list[Descriptor] = []
        for position, fd in enumerate(fds):
            try:
                beside.append(self._descriptors.take(fd, peer_pid))
            except WireError:
                for taken in beside:
                    self._close_handle(taken.handle)
                for later in fds[position + 1 :]:
                    os.close(later)
                raise
            if isinstance(beside[-1], ProcessHandle):
                self._wait_for_end(beside[-1].handle)
        return tuple(beside)

    def _wait_for_end(self, handle: Handle) -> None:
        def ended() -> None:
            self._forget_process(handle)  # it stays readable
            self._do(self._keeper.process_ended(handle, time.monotonic()))

        self._watched.add(handle)
        self._poll(self._descriptors.fd(handle), ended)

    def _do(self, actions: list[KeeperAction]) -> None:
        todo = deque(actions)
        while todo:
            match todo.popleft():
                case Send(number, message, handles):
                    todo += self._send(number, message, handles)
                case Disconnect(number, reason):
                    if reason and number in self._connections:
                        self._drops.dropped(f"process {self._connections[number][1]}", reason)
                    self._close(number)
                case CloseHandle(handle):
                    self._close_handle(handle)
                case Kill(handle):
                    todo += self._kill(handle)
                case WriteLog() as line:
                    self._write_log(line)

    def _send(self, number: Connection, message: m.FromKeeper, handles: tuple[Handle, ...]) -> list[KeeperAction]:
        if number not in self._connections:
            return []
        connection, pid = self._connections[number]
        try:
            connection.send(message, [self._descriptors.fd(handle) for handle in handles])
        except OSError as error:  # also BlockingIOError: nothing is queued for a peer that does not read
            self._drops.dropped(f"process {pid}", f"it takes no message: {error}")
            self._close(number)
            return self._keeper.connection_closed(number, time.monotonic())
        return []

    def _kill(self, handle: Handle) -> list[KeeperAction]:
        try:
            signal.pidfd_send_signal(self._descriptors.fd(handle), signal.SIGKILL)
        except ProcessLookupError:
            return []  # it has ended by itself
        except OSError as error:
            self._log.warning("holder cannot be killed", reason=str(error))
            return self._keeper.kill_failed(handle, time.monotonic())
        return []

    def _write_log(self, line: WriteLog) -> None:
        if line.is_seldom:
            quiet = self._seldom.setdefault(line.event, QuietLog(self._log, line.event))
            quiet.happened(**line.facts)
        elif line.level == "warning":
            self._log.warning(line.event, **line.facts)
        else:
            self._log.info(line.event, **line.facts)

    def _close(self, number: Connection) -> None:
        known = self._connections.pop(number, None)
        if known is not None:
            self._selector.unregister(known[0])
            known[0].close()

    def _forget_process(self, handle: Handle) -> None:
        if handle in self._watched:
            self._watched.remove(handle)
            self._selector.unregister(self._descriptors.fd(handle))

    def _close_handle(self, handle: Handle) -> None:
        self._forget_process(handle)
        self._descriptors.close(handle)
