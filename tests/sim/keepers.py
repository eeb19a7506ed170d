"""A machine's keeper, life after life: the very state machine that `keeper_svc.server` runs, in virtual time.

Behind a handle stands a simulated process, or the memory of a pool, or its tag. Messages of one direction keep their
order, and a process that has ended is noticed by its pidfd, whatever became of its connection.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from common import messages as m
from keeper_svc import actions as a
from keeper_svc.keeper import TICK_INTERVAL_S, Keeper, KeeperConfig
from tests.sim.world import World
from tests.support.oracle import Written

LATENCY_S = (10e-6, 200e-6)
ROOM_FOR_ALL = 2**40  # bytes


class Process(Protocol):
    """What a pidfd is of."""

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended. A frozen process has not."""

    def kill(self) -> None:
        """kill -9."""


@dataclass(eq=False)
class Memory:
    """The memory of a pool."""

    num_bytes: int
    slots: dict[int, Written] = field(default_factory=dict)


@dataclass(eq=False)
class Tag:
    """The page beside it: the epoch that wrote the pool last."""

    epoch: int = 0


File = Process | Memory | Tag
Receive = Callable[[m.FromKeeper | None, tuple[File, ...]], None]


class Wire:
    """A connection to one life of the keeper.

    Args:
        receive: takes what the keeper says, and None when it has closed the connection.
    """

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
        self.is_open = True
        self.number = 0


class KeeperHost:
    """The keeper's process.

    Args:
        machine: its number.
        max_bytes: that it keeps at most.
        moments: what happened, and how often.

    Attributes:
        keeper: of the present life; None while the process is dead.
    """

    def __init__(self, world: World, machine: int, max_bytes: int, moments: Counter[str]) -> None:
        self.keeper: Keeper | None = None
        self._machine = machine
        self._max_bytes = max_bytes
        self._moments = moments
        self._world = world
        self._rng = world.stream(f"keeper {machine}")
        self._frozen_until = 0.0
        self._num_lives = 0
        self._num_names = 0
        self._num_handles = 0
        self._files: dict[a.Handle, File] = {}
        self._wires: dict[a.Connection, Wire] = {}
        self._inbox: deque[tuple[int, Callable[[], list[a.KeeperAction]]]] = deque()
        self._last_up = self._last_down = 0.0
        self.start()

    def start(self) -> None:
        """Begin a life, in which nothing is known of the ones before."""
        if self.keeper is None:
            self._num_lives += 1
            config, name = KeeperConfig(self._max_bytes), f"life {self._num_lives}"
            self.keeper = Keeper(config, name, self._num_lives, self._new_name, self._world.now)
            self._world.say(f"keeper {self._machine}", "starts")
            self._tick(self._num_lives)

    def kill(self) -> None:
        """kill -9: what only it had open is gone, and every connection ends."""
        if self.keeper is None:
            return
        self._world.say(f"keeper {self._machine}", "is killed")
        self.keeper, self._frozen_until = None, 0.0
        wires, self._wires, self._files = list(self._wires.values()), {}, {}
        self._inbox.clear()
        for wire in wires:
            self._close(wire)

    def freeze(self, until: float) -> None:
        """SIGSTOP, and SIGCONT at a time."""
        if self.keeper is not None:
            self._frozen_until = max(self._frozen_until, until)

    def drop_unused(self) -> None:
        """`baton keeper drop`: an operator wants all back that no process uses."""
        if (wire := self.connect(lambda message, files: None)) is not None:
            self.send(wire, m.KeeperQuery())
            self.send(wire, m.DropKept(name=""))
            self.hang_up(wire)

    # --- what processes do ---

    def connect(self, receive: Receive) -> Wire | None:
        """A process connects; None if no keeper listens."""
        if (keeper := self.keeper) is None:
            return None
        wire = Wire(receive)
        self._num_handles += 1
        wire.number = self._num_handles
        self._wires[wire.number] = wire

        def connected() -> list[a.KeeperAction]:
            keeper.connected(wire.number, self._world.now)
            return []

        self._put(connected)
        return wire

    def send(self, wire: Wire, message: m.ToKeeper, *files: File) -> None:
        """A process says something, with files beside it."""
        if not wire.is_open or (keeper := self.keeper) is None:
            return
        self._world.digest.update(msgspec.msgpack.encode(message))

        def received() -> list[a.KeeperAction]:
            beside = tuple(map(self._take, files))
            return keeper.received(wire.number, message, beside, self._world.now)

        self._put(received)

    def hang_up(self, wire: Wire) -> None:
        """A process closes its connection, or has ended."""
        if not wire.is_open:
            return
        wire.is_open = False

        def closed() -> list[a.KeeperAction]:
            if self.keeper is None or self._wires.pop(wire.number, None) is None:
                return []
            return self.keeper.connection_closed(wire.number, self._world.now)

        self._put(closed)

    def ended(self, process: Process) -> None:
        """A process has ended: its pidfds become readable."""
        for handle in [handle for handle, file in self._files.items() if file is process]:
            self._put(lambda handle=handle: self._ended(handle))  # type: ignore[misc]  # mypy: a lambda with a default

    # --- inside ---

    def _ended(self, handle: a.Handle) -> list[a.KeeperAction]:
        if self.keeper is None or handle not in self._files:
            return []
        return self.keeper.process_ended(handle, self._world.now)

    def _new_name(self) -> str:
        self._num_names += 1
        return f"{self._machine:016}{self._num_names:016}"

    def _take(self, file: File) -> a.Descriptor:
        self._num_handles += 1
        handle = self._num_handles
        self._files[handle] = file
        if isinstance(file, Memory):
            return a.MemoryHandle(handle, file.num_bytes)
        if isinstance(file, Tag):
            return a.MemoryHandle(handle, 4096)
        if not file.is_alive:
            self._put(lambda: self._ended(handle))
        return a.ProcessHandle(handle, can_signal=True)

    def _tick(self, life: int) -> None:
        if self.keeper is not None and life == self._num_lives:
            if self._world.now >= self._frozen_until:
                self._do(self.keeper.tick(self._world.now))
            self._world.at(max(self._world.now + TICK_INTERVAL_S, self._frozen_until), self._tick, life)

    def _put(self, event: Callable[[], list[a.KeeperAction]]) -> None:
        """Something is on its way to the keeper."""
        self._inbox.append((self._num_lives, event))
        self._last_up = max(self._last_up, self._world.now + self._rng.uniform(*LATENCY_S))
        self._world.at(self._last_up, self._turn)

    def _turn(self) -> None:
        if self._world.now < self._frozen_until:
            self._world.at(self._frozen_until, self._turn)
            return
        if self._inbox:
            life, event = self._inbox.popleft()
            if self.keeper is not None and life == self._num_lives:
                self._do(event())

    def _do(self, actions: list[a.KeeperAction]) -> None:
        self._carry_out(actions)
        if (keeper := self.keeper) is not None:
            executors = keeper._registry.executors.values()
            kept = [handle for each in keeper.shelf for handle in each.handles] + [each.process for each in executors]
            assert sorted(kept) == list(self._files), "a file stays open that the keeper does not keep, or is closed"

    def _carry_out(self, actions: list[a.KeeperAction]) -> None:
        for action in actions:
            match action:
                case a.Send(connection, message, handles):
                    assert all(handle in self._files for handle in handles), "a closed file is sent"
                    if (wire := self._wires.get(connection)) is not None:
                        self._deliver(wire, message, tuple(self._files[handle] for handle in handles))
                case a.Disconnect(connection):
                    if (wire := self._wires.pop(connection, None)) is not None:
                        self._close(wire)
                case a.CloseHandle(handle):
                    assert self._files.pop(handle, None) is not None, "a file is closed twice"
                case a.Kill(handle):
                    process = self._files[handle]
                    assert not isinstance(process, Memory | Tag), "memory cannot be killed"
                    process.kill()
                case a.WriteLog(_, event, facts):
                    self._moments[f"keeper: {facts['cause'] if event == 'pool freed' else event}"] += 1
                    self._world.say(f"keeper {self._machine}", event, facts)

    def _close(self, wire: Wire) -> None:
        self._deliver(wire, None, ())

    def _deliver(self, wire: Wire, message: m.FromKeeper | None, files: tuple[File, ...]) -> None:
        def arrive() -> None:
            if wire.is_open:
                wire.is_open = message is not None
                wire.receive(message, files)

        self._last_down = max(self._last_down, self._world.now + self._rng.uniform(*LATENCY_S))
        self._world.at(self._last_down, arrive)
