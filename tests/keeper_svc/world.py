"""A keeper, and executors that are a few numbers: what the keeper wants done is done here, and checked."""

from collections import deque
from itertools import count

from common import messages as m
from keeper_svc import actions as a
from keeper_svc.keeper import Keeper, KeeperConfig

POOL = m.PoolKind(fingerprint="f", dtype="bfloat16", layout="paged 1")
OTHER_POOL = m.PoolKind(fingerprint="g", dtype="bfloat16", layout="paged 1")
WEIGHTS = m.WeightsKind(dtype="bfloat16", quantization="none", packing="plain 1")
NUM_BLOCKS = 8
POOL_BYTES = 100


class World:
    """The keeper's surroundings: connections, descriptors and the clock.

    Attributes:
        open: handles that are open.
        inboxes: what each open connection has been sent, with the handles beside it.
        ended: connections that the keeper closed, and why.
        killed: handles of processes.
        log: events, in order.
    """

    def __init__(self, max_bytes: int = 1000, keep_for_s: float = 600.0) -> None:
        self.now = 0.0
        names = (f"{number:032}" for number in count(1))
        self.keeper = Keeper(KeeperConfig(max_bytes, keep_for_s), "life-1", 1, lambda: next(names), self.now)
        self.open: set[int] = set()
        self.inboxes: dict[int, list[tuple[m.FromKeeper, tuple[int, ...]]]] = {}
        self.ended: dict[int, str] = {}
        self.killed: list[int] = []
        self.log: list[tuple[str, dict]] = []
        self._numbers = count(1)

    def connect(self) -> int:
        connection = next(self._numbers)
        self.inboxes[connection] = []
        self.keeper.connected(connection, self.now)
        return connection

    def process(self, *, can_signal: bool = True) -> a.ProcessHandle:
        return a.ProcessHandle(self._opened(), can_signal)

    def memory(self, num_bytes: int | None = POOL_BYTES) -> a.MemoryHandle:
        return a.MemoryHandle(self._opened(), num_bytes)

    def send(self, connection: int, message: m.ToKeeper, *beside: a.Descriptor) -> None:
        self.do(self.keeper.received(connection, message, beside, self.now))

    def close(self, connection: int) -> None:
        del self.inboxes[connection]
        self.do(self.keeper.connection_closed(connection, self.now))

    def tick(self) -> None:
        self.do(self.keeper.tick(self.now))

    def pass_time(self, seconds: float, *alive: "Executor", state: m.HolderState = "serving") -> None:
        """Time passes in ticks; some executors say that they live."""
        for _ in range(round(seconds / 0.2)):
            self.now += 0.2
            for executor in alive:
                executor.send(m.Alive(state=state))
            self.tick()

    def do(self, actions: list[a.KeeperAction]) -> None:
        todo = deque(actions)
        while todo:
            match todo.popleft():
                case a.Send(connection, message, handles):
                    assert set(handles) <= self.open, "a closed file was sent"
                    if connection in self.inboxes:
                        self.inboxes[connection].append((message, handles))
                case a.Disconnect(connection, reason):
                    if self.inboxes.pop(connection, None) is not None:
                        self.ended[connection] = reason
                case a.CloseHandle(handle):
                    assert handle in self.open, "a file was closed twice"
                    self.open.remove(handle)
                case a.Kill(handle):
                    assert handle in self.open
                    self.killed.append(handle)
                case a.WriteLog(_, event, facts):
                    self.log.append((event, facts))

    def kept_handles(self) -> list[int]:
        """Handles that the keeper has a use for."""
        shelf = self.keeper.shelf
        kept = [handle for kept in shelf for handle in kept.handles]
        return kept + [executor.process for executor in self.keeper.executors]

    def _opened(self) -> int:
        handle = next(self._numbers)
        self.open.add(handle)
        return handle


class Executor:
    """A process that registered. It writes no memory and starts no thread: what it holds are numbers."""

    def __init__(self, world: World, name: str = "", *, can_signal: bool = True) -> None:
        self.world = world
        self.number = next(world._numbers)
        self.name = name or f"executor {self.number}"
        self.instance = f"{self.number:032}"
        self.can_signal = can_signal
        self.processes: list[a.ProcessHandle] = []  # pidfds that it has sent
        self.register_again()

    @property
    def received(self) -> list[m.FromKeeper]:
        """All that this connection has brought."""
        return [message for message, _ in self.world.inboxes[self.connection]]

    @property
    def last(self) -> m.FromKeeper:
        return self.received[-1]

    @property
    def process(self) -> a.ProcessHandle:
        """The first that it sent."""
        return self.processes[0]

    def register_again(self) -> None:
        """Connect, and say who it is."""
        self.connection = self.world.connect()
        self.processes.append(self.world.process(can_signal=self.can_signal))
        hello = m.Register(version=m.KEEPER_VERSION, instance=self.instance, name=self.name, pid=self.number)
        self.world.send(self.connection, hello, self.processes[-1])

    def send(self, message: m.ToKeeper, *beside: a.Descriptor) -> m.FromKeeper:
        """Returns what the last packet says."""
        self.world.send(self.connection, message, *beside)
        return self.last

    def deposit(
        self, pool: str = "", lease: int = 0, kind: m.PoolKind = POOL, num_bytes: int = POOL_BYTES
    ) -> m.FromKeeper:
        message = m.DepositPool(kind=kind, num_blocks=NUM_BLOCKS, num_bytes=num_bytes, pool=pool, lease=lease)
        return self.send(message, self.world.memory(num_bytes), self.world.memory(4096))

    def lease(self, *, wait: bool = False, kind: m.PoolKind = POOL) -> m.FromKeeper:
        return self.send(m.LeasePool(kind=kind, num_blocks=NUM_BLOCKS, wait=wait))

    def deposit_weights(
        self, fingerprint: str = "f", source: str = "", num_bytes: int = POOL_BYTES, kind: m.WeightsKind = WEIGHTS
    ) -> m.FromKeeper:
        message = m.DepositWeights(kind=kind, fingerprint=fingerprint, num_bytes=num_bytes, source=source)
        return self.send(message, self.world.memory(num_bytes))

    def find_weights(
        self, fingerprint: str = "", source: str = "", *, reads: bool = False, kind: m.WeightsKind = WEIGHTS
    ) -> m.FromKeeper:
        return self.send(m.FindWeights(kind=kind, fingerprint=fingerprint, source=source, reads=reads))

    def disconnect(self) -> None:
        self.world.close(self.connection)

    def end(self) -> None:
        """The process is gone; its connection breaks a little later, if it has one."""
        for process in self.processes:
            if process.handle in self.world.open:
                self.world.do(self.world.keeper.process_ended(process.handle, self.world.now))


def holding(world: World, num_standbys: int = 1, *, is_serving: bool = False, **holder: bool) -> list[Executor]:
    """An executor that has deposited a pool, and standbys that wait for it.

    Args:
        is_serving: whether the holder has said so.
    """
    first, *standbys = Executor(world, **holder), *(Executor(world) for _ in range(num_standbys))
    first.deposit()
    if is_serving:
        first.send(m.Alive(state="serving"))
    for standby in standbys:
        standby.lease(wait=True)
    return [first, *standbys]
