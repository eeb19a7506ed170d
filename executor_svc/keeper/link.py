"""The link to this machine's keeper.

While an executor starts, each call waits for its answer. While it serves, nothing here waits: the link is polled and
ticked by the thread that owns the scheduler's socket. A keeper that dies is found again, and brought what it had.
"""

import math
import os
import secrets
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from common import messages as m
from common.errors import KeeperError, WireError
from common.heartbeats import HEARTBEAT_INTERVAL_S
from common.keeper_socket import connect_to_keeper
from common.logging import get_logger
from common.packets import PacketConnection
from executor_svc.keeper.held import HeldPool, HeldWeights
from executor_svc.keeper.watchdog_process import WatchdogProcess

ANSWER_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 0.2
RETRY_INTERVAL_S = 1.0
MAX_PACKETS = 16  # in a turn

log = get_logger("executor")


class KeeperLink:
    """This process's link. One thread uses it at a time.

    Args:
        socket_path: the keeper's.
        executor_name: for operators.

    Attributes:
        pool: what this process holds; None before it holds one.

    Raises:
        KeeperError: there is no keeper, or it does not let this process in; the message names the path.
    """

    def __init__(self, socket_path: Path, executor_name: str) -> None:
        self.pool: HeldPool | None = None
        self._weights: list[HeldWeights] = []
        self._path = socket_path
        self._name = executor_name
        self._instance = secrets.token_hex(16)
        self._watchdog = WatchdogProcess(socket_path, self._instance)
        self._connection: PacketConnection[m.FromKeeper] | None = None
        self._waits_at: PacketConnection[m.FromKeeper] | None = None  # the keeper there knows this standby
        self._alive_at = self._retry_at = 0.0
        self._events: list[m.Standbys] = []
        self._is_lost = False  # and the log says so
        self._refusal = ""  # the last one that the log has
        self._num_unanswered = 0  # of what was sent without waiting; answers come in the order of requests
        self._connect()
        self._num_unanswered = 0
        self._background(*self._await(m.Registered))

    # --- at the start; each raises KeeperError if the keeper refuses, ends or takes ANSWER_TIMEOUT_S ---

    def find_pool(self, kind: m.PoolKind, num_blocks: int = 0) -> int:
        """Number of blocks of a pool that could be leased, now or once its holder is gone; 0 if there is none.

        Args:
            num_blocks: only a pool of so many; 0 for any.
        """
        found, _ = self.ask(m.FindPool(kind=kind, num_blocks=num_blocks), m.PoolFound)
        assert isinstance(found, m.PoolFound)
        return found.num_blocks

    def lease_pool(self, kind: m.PoolKind, num_blocks: int) -> HeldPool | None:
        """A pool that has no holder, if there is one: this process holds it from now on, until it ends."""
        leased, fds = self.ask(m.LeasePool(kind=kind, num_blocks=num_blocks), m.PoolLeased, m.PoolAbsent)
        return self._hold(kind, leased, fds) if isinstance(leased, m.PoolLeased) else None

    def wait_for_pool(
        self, kind: m.PoolKind, num_blocks: int, interrupt_fd: int | None = None, until: float = math.inf
    ) -> HeldPool | None:
        """Be a standby until a pool's holder is provably gone, through any number of lives of the keeper.

        Args:
            interrupt_fd: returns None when this descriptor is readable.
            until: returns None at this time, too. The process is a standby all the same, until `stop_waiting`.
        """
        wish = m.LeasePool(kind=kind, num_blocks=num_blocks, wait=True)
        while not self._wait(interrupt_fd, min(until, self.next_tick())):
            for message, fds in self._take_packets(1):
                if isinstance(message, m.PoolLeased) and fds:
                    return self._hold(kind, message, fds)
                if isinstance(message, m.Refused) and not self._num_unanswered:
                    raise KeeperError(f"the keeper at {self._path} refuses: {message.reason}")
                self._background(message, fds)
            self.tick(time.monotonic(), "seeking")
            if self._connection is not None and self._connection is not self._waits_at:  # a keeper that does not know
                self._waits_at = self._connection
                self._send(wish)
            if time.monotonic() >= until:
                break
        return None

    def stop_waiting(self) -> None:
        """Be no standby any more: one is one as long as it is connected."""
        self._disconnect()

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

    def find_weights(self, kind: m.WeightsKind, *, fingerprint: str = "", source: str = "") -> HeldWeights | None:
        """Weights of this fingerprint, or read from this source, if they are kept."""
        found, fds = self.ask(
            m.FindWeights(kind=kind, fingerprint=fingerprint, source=source), m.WeightsFound, m.WeightsAbsent
        )
        if not isinstance(found, m.WeightsFound):
            return None
        if len(fds) != 1:
            raise KeeperError(f"the keeper at {self._path} sent {len(fds)} files of weights, which have 1")
        return self._use(HeldWeights(kind, found.fingerprint, source, found.num_bytes, fds[0]))

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
        return -1 if self._connection is None else self._connection.fileno()

    def next_tick(self) -> float:
        """When `tick` is to be called at the latest."""
        return self._retry_at if self._connection is None else self._alive_at

    def receive(self) -> list[m.Standbys]:
        """What has come that the executor wants to know."""
        for message, fds in self._take_packets():
            self._background(message, fds)
        events, self._events = self._events, []
        return events

    def tick(self, now: float, state: m.HolderState) -> None:
        """Say that this process lives when that is due; look for a keeper if there is none."""
        if self._connection is None and now >= self._retry_at:
            self._reconnect(now)
        if self._connection is not None and now >= self._alive_at:
            self._alive_at = now + HEARTBEAT_INTERVAL_S
            self._send(m.Alive(state=state))

    def close(self) -> None:
        """End the link, not the lease: that ends with the process."""
        self._disconnect()
        self._watchdog.stop()
        self._close_pool()
        for weights in self._weights:
            os.close(weights.memory_fd)
        self._weights = []

    # --- connection ---

    def _connect(self) -> None:
        """Connect and register, and bring what is held; the answers come later."""
        connected = connect_to_keeper(self._path, CONNECT_TIMEOUT_S)
        connected.setblocking(False)
        self._connection = PacketConnection(connected, m.FromKeeper, m.MAX_ANSWER_BYTES)
        self._alive_at = 0.0
        pidfd = os.pidfd_open(os.getpid())
        try:
            register = m.Register(version=m.KEEPER_VERSION, instance=self._instance, name=self._name, pid=os.getpid())
            self._send(register, (pidfd,))
        finally:
            os.close(pidfd)
        if self.pool is not None:
            self._send(self.pool.deposit(), (self.pool.memory_fd, self.pool.tag_fd))
        for weights in self._weights:
            self._send(weights.deposit(), (weights.memory_fd,))
        self._num_unanswered = 1 + (self.pool is not None) + len(self._weights)

    def _reconnect(self, now: float) -> None:
        self._retry_at = now + RETRY_INTERVAL_S
        with suppress(KeeperError, OSError):  # the line that said that it is gone is enough
            self._connect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._events.append(m.Standbys(count=0))  # that any keeper knows of
            self._retry_at = time.monotonic() + RETRY_INTERVAL_S

    def _lost(self, reason: str) -> None:
        if not self._is_lost:
            log.warning("keeper lost, trying again", socket=str(self._path), reason=reason)
        self._is_lost = True
        self._disconnect()

    def _send(self, message: m.ToKeeper, fds: Sequence[int] = ()) -> None:
        if self._connection is not None:
            try:
                self._connection.send(message, fds)
            except OSError as error:
                self._lost(str(error))

    def ask(
        self, message: m.ToKeeper, *answers: type[m.FromKeeper], fds: Sequence[int] = ()
    ) -> tuple[m.FromKeeper, list[int]]:
        """Send a message, and wait for one of these answers."""
        if self._connection is None:
            self._connect()
        self._send(message, fds)
        return self._await(*answers)

    def _await(self, *answers: type[m.FromKeeper]) -> tuple[m.FromKeeper, list[int]]:
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while self._connection is not None:
            if time.monotonic() >= deadline:
                self._disconnect()  # an answer that came later would be taken for that to another question
                raise KeeperError(f"the keeper at {self._path} did not answer within {ANSWER_TIMEOUT_S:.0f} s")
            self._wait(None, deadline)
            for message, fds in self._take_packets(1):
                if isinstance(message, m.Standbys) or self._num_unanswered:
                    self._background(message, fds)
                elif isinstance(message, answers):
                    return message, fds
                elif isinstance(message, m.Refused):
                    raise KeeperError(f"the keeper at {self._path} refuses: {message.reason}")
                else:
                    self._background(message, fds)
                    self._lost(f"it answered with {type(message).__name__}")
        raise KeeperError(f"the keeper at {self._path} has gone")

    def _wait(self, interrupt_fd: int | None, until: float) -> bool:
        """Wait for a packet, until a time at the latest. True if the other descriptor is readable."""
        poller = select.poll()
        for fd in (self.fileno(), interrupt_fd):
            if fd is not None and fd >= 0:
                poller.register(fd, select.POLLIN)
        readable = poller.poll(max(0.0, until - time.monotonic()) * 1000)
        return any(fd == interrupt_fd for fd, _ in readable)

    def _take_packets(self, limit: int = MAX_PACKETS) -> list[tuple[m.FromKeeper, list[int]]]:
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

    def _background(self, message: m.FromKeeper, fds: list[int]) -> None:
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

    def _registered(self, message: m.Registered) -> None:
        if self._is_lost:
            log.info("keeper found", socket=str(self._path), keeper=message.keeper)
            self._is_lost = False
        if not message.can_kill:
            try:
                self._watchdog.start(CONNECT_TIMEOUT_S)
            except KeeperError as error:
                log.warning("no watchdog, so the pool is not handed on if this process hangs", reason=str(error))

    # --- what is held ---

    def _hold(self, kind: m.PoolKind, leased: m.PoolLeased, fds: list[int]) -> HeldPool:
        if len(fds) != 2:
            raise KeeperError(f"the keeper at {self._path} sent {len(fds)} files of a pool, which has 2")
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
