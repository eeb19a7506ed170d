"""What an executor and its machine's keeper say to each other: over one connection after another, as keepers end and
start again.
"""

import os
import secrets
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from common import messages as m
from common.errors import KeeperError, WireError
from common.heartbeats import HEARTBEAT_INTERVAL_S
from common.keeper_socket import connect_to_keeper
from common.logging import get_logger
from common.packets import PacketConnection
from executor_svc.keeper.watchdog_process import WatchdogProcess

CONNECT_TIMEOUT_S = 0.2
RETRY_INTERVAL_S = 1.0
START_RETRY_S = 0.1
MAX_PACKETS = 16  # in a turn


@dataclass(frozen=True)
class KeeperTimeouts:
    """How long an executor that starts waits for a keeper.

    Attributes:
        answer_s: for an answer.
        start_s: for a keeper that a supervisor may be starting at this moment.
    """

    answer_s: float = 5.0
    start_s: float = 5.0


KEEPER_TIMEOUTS = KeeperTimeouts()

Deposit = tuple[m.ToKeeper, tuple[int, ...]]
"""A message about something that this process holds, and its files."""

log = get_logger("executor")


class Conversation:
    """Registers this process with each keeper that it finds, brings what it holds, and asks.

    Args:
        socket_path: the keeper's.
        executor_name: for operators.
        held: what is brought to a keeper that does not know it.
        timeouts: while the executor starts.

    Attributes:
        num_connections: so far. The keeper behind a later one knows nothing of what was said over an earlier one.

    Raises:
        KeeperError: there is no keeper, or it does not let this process in; the message names the path.
    """

    def __init__(
        self,
        socket_path: Path,
        executor_name: str,
        held: Callable[[], Sequence[Deposit]],
        timeouts: KeeperTimeouts = KEEPER_TIMEOUTS,
    ) -> None:
        self.num_connections = 0
        self._path = socket_path
        self._name = executor_name
        self._held = held
        self._timeouts = timeouts
        self._instance = secrets.token_hex(16)
        self._watchdog = WatchdogProcess(socket_path, self._instance)
        self._connection: PacketConnection[m.FromKeeper] | None = None
        self._alive_at = self._retry_at = 0.0
        self._events: list[m.Standbys] = []
        self._is_lost = False  # and the log says so
        self._refusal = ""  # the last one that the log has
        self._num_unanswered = 0  # of what was sent without waiting; answers come in the order of requests
        self._connect()
        self._num_unanswered = 0
        registered = self._await(m.Registered)
        if registered is None:
            raise self.error("has gone")
        self.background(*registered)

    @property
    def is_connected(self) -> bool:
        """Whether there is a keeper, as far as this process knows."""
        return self._connection is not None

    @property
    def is_up_to_date(self) -> bool:
        """Whether the keeper has answered to all that was brought to it."""
        return self._num_unanswered == 0

    def error(self, what: str) -> KeeperError:
        """An error that names the keeper's path."""
        return KeeperError(f"the keeper at {self._path} {what}")

    # --- while an executor starts ---

    def ask(
        self, message: m.ToKeeper, *answers: type[m.FromKeeper], fds: Sequence[int] = (), retries: bool = True
    ) -> tuple[m.FromKeeper, list[int]]:
        """Send a message, and wait for one of these answers; send it again to the next keeper if this one ends.

        Args:
            retries: whether to ask the next keeper.

        Raises:
            KeeperError: the keeper refuses, has gone, or takes too long.
        """
        until = time.monotonic() + (self._timeouts.start_s if retries else 0.0)
        while True:
            try:
                if self._connection is None:
                    self._connect()
            except KeeperError:
                if time.monotonic() >= until:
                    raise
            else:
                self.send(message, fds)
                answer = self._await(*answers)
                if answer is not None:
                    return answer
                if time.monotonic() >= until:
                    raise self.error("has gone")
            time.sleep(START_RETRY_S)

    def wait(self, interrupt_fd: int | None, until: float) -> bool:
        """Wait for a packet, until a time at the latest. True if the other descriptor is readable."""
        poller = select.poll()
        for fd in (self.fileno(), interrupt_fd):
            if fd is not None and fd >= 0:
                poller.register(fd, select.POLLIN)
        readable = poller.poll(max(0.0, until - time.monotonic()) * 1000)
        return any(fd == interrupt_fd for fd, _ in readable)

    # --- while it serves: nothing waits, nothing is raised ---

    def fileno(self) -> int:
        """To poll for reading; -1 while there is no keeper. It changes when another one is found."""
        return -1 if self._connection is None else self._connection.fileno()

    def next_tick(self) -> float:
        """When `tick` is to be called at the latest."""
        return self._retry_at if self._connection is None else self._alive_at

    def take_events(self) -> list[m.Standbys]:
        """What has come that the executor wants to know."""
        for message, fds in self.take(MAX_PACKETS):
            self.background(message, fds)
        events, self._events = self._events, []
        return events

    def tick(self, now: float, state: m.HolderState) -> None:
        """Say that this process lives when that is due; look for a keeper if there is none."""
        if self._connection is None and now >= self._retry_at:
            self._reconnect(now)
        if self._connection is not None and now >= self._alive_at:
            self._alive_at = now + HEARTBEAT_INTERVAL_S
            self.send(m.Alive(state=state))

    def send(self, message: m.ToKeeper, fds: Sequence[int] = ()) -> None:
        """Send a message; if that fails, or there is no keeper, it is not sent."""
        if self._connection is not None:
            try:
                self._connection.send(message, fds)
            except OSError as error:
                self._lost(str(error))

    def take(self, limit: int) -> list[tuple[m.FromKeeper, list[int]]]:
        """Packets that have come, a bounded number."""
        taken: list[tuple[m.FromKeeper, list[int]]] = []
        while self._connection is not None and len(taken) < limit:
            try:
                packet = self._connection.receive()
            except BlockingIOError:
                break
            except (OSError, WireError) as error:
                self._lost(str(error))
                break
            if packet is None:
                self._lost("it closed the connection")
                break
            taken.append(packet)
        return taken

    def background(self, message: m.FromKeeper, fds: list[int]) -> None:
        """Take a message that no call waits for."""
        for fd in fds:
            os.close(fd)
        if isinstance(message, m.Standbys):
            self._events.append(message)
            return
        self._num_unanswered = max(0, self._num_unanswered - 1)
        if isinstance(message, m.Registered):
            self._registered(message)
        elif isinstance(message, m.Refused) and message.reason != self._refusal:
            self._refusal = message.reason
            log.warning("keeper refuses this executor, or what it holds", reason=message.reason)

    def disconnect(self) -> None:
        """End the connection; the next keeper is looked for in a while."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._events.append(m.Standbys(count=0))  # that any keeper knows of
            self._retry_at = time.monotonic() + RETRY_INTERVAL_S

    def close(self) -> None:
        """End the conversation."""
        self.disconnect()
        self._watchdog.stop()

    # --- inside ---

    def _connect(self) -> None:
        """Connect and register, and bring what is held; the answers come later."""
        connected = connect_to_keeper(self._path, CONNECT_TIMEOUT_S)
        connected.setblocking(False)
        self._connection = PacketConnection(connected, m.FromKeeper, m.MAX_ANSWER_BYTES)
        self.num_connections += 1
        self._alive_at = 0.0
        pidfd = os.pidfd_open(os.getpid())
        try:
            register = m.Register(version=m.KEEPER_VERSION, instance=self._instance, name=self._name, pid=os.getpid())
            self.send(register, (pidfd,))
        finally:
            os.close(pidfd)
        deposits = self._held()
        for message, fds in deposits:
            self.send(message, fds)
        self._num_unanswered = 1 + len(deposits)

    def _reconnect(self, now: float) -> None:
        self._retry_at = now + RETRY_INTERVAL_S
        with suppress(KeeperError, OSError):  # the line that said that it is gone is enough
            self._connect()

    def _lost(self, reason: str) -> None:
        if not self._is_lost:
            log.warning("keeper lost, trying again", socket=str(self._path), reason=reason)
        self._is_lost = True
        self.disconnect()

    def _await(self, *answers: type[m.FromKeeper]) -> tuple[m.FromKeeper, list[int]] | None:
        """None if the keeper has gone."""
        deadline = time.monotonic() + self._timeouts.answer_s
        while self._connection is not None:
            if time.monotonic() >= deadline:
                self.disconnect()  # an answer that came later would be taken for that to another question
                raise self.error(f"did not answer within {self._timeouts.answer_s:.0f} s")
            self.wait(None, deadline)
            for message, fds in self.take(1):
                if isinstance(message, m.Standbys) or self._num_unanswered:
                    self.background(message, fds)
                elif isinstance(message, answers):
                    return message, fds
                elif isinstance(message, m.Refused):
                    raise self.error(f"refuses: {message.reason}")
                else:
                    self.background(message, fds)
                    self._lost(f"it answered with {type(message).__name__}")
        return None

    def _registered(self, message: m.Registered) -> None:
        if self._is_lost:
            log.info("keeper found", socket=str(self._path), keeper=message.keeper)
            self._is_lost = False
        if not message.can_kill:
            try:
                self._watchdog.start(CONNECT_TIMEOUT_S)
            except KeeperError as error:
                log.warning("no watchdog, so the pool is not handed on if this process hangs", reason=str(error))
