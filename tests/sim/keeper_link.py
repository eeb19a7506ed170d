"""A process's link to its keeper: what `KeeperLink` and `KeptPool` do, without a socket."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from common import messages as m
from common.heartbeats import HEARTBEAT_INTERVAL_S
from tests.sim.keepers import File, KeeperHost, Memory, Process, Tag, Wire
from tests.sim.models import Build
from tests.sim.world import World

RETRY_INTERVAL_S = 1.0
ANSWER_TIMEOUT_S = 5.0
FIRST_WORD_S = 0.001  # from the start of a process


@dataclass(frozen=True)
class Keeping:
    """How a process's pool is kept.

    Attributes:
        host: the keeper of its machine.
        name: of the executor, for operators.
        number: of the process, which no other one has.
        kept_as: the build whose kind of pool it asks for, which is its own unless something is wrong with it.
        is_standby: whether it waits until another one's pool is free; None to do what the keeper says.
    """

    host: KeeperHost
    name: str
    number: int
    kept_as: Build
    is_standby: bool | None


class SimLink:
    """The link.

    Args:
        when_awake: does something now, or when the process is awake; not at all if it is dead then.
        start: is called once, when the process has a pool, or is to serve without one.
        holder_state: what the keeper is told.
        on_standbys: is told how many wait for the pool.

    Attributes:
        memory, tag: of the pool that this process holds; None before it holds one.
        is_waiting: whether it is a standby.
    """

    def __init__(
        self,
        world: World,
        keeping: Keeping,
        process: Process,
        when_awake: Callable[[Callable[[], object]], None],
        start: Callable[[], None],
        holder_state: Callable[[], m.HolderState],
        on_standbys: Callable[[int], None],
    ) -> None:
        self.memory: Memory | None = None
        self.tag: Tag | None = None
        self.is_waiting = bool(keeping.is_standby)
        self._knows_role = keeping.is_standby is not None
        self._leased: m.PoolLeased | None = None
        self._world = world
        self._host = keeping.host
        self._process = process
        self._name = keeping.name
        self._instance = f"{keeping.number:032}"
        build = keeping.kept_as
        self._layout = f"oracle {build.limits.block_size}"
        self._kind = m.PoolKind(fingerprint=build.fingerprint, dtype=build.dtype, layout=self._layout)
        self._num_blocks = build.limits.num_blocks
        self._new_memory = Memory(pool_bytes(build))
        self._new_tag = Tag()
        self._when_awake = when_awake
        self._start = start
        self._holder_state = holder_state
        self._on_standbys = on_standbys
        self._inbox: deque[tuple[Wire, m.FromKeeper | None, tuple[File, ...]]] = deque()
        self._wire: Wire | None = None
        self._has_started = False
        world.after(FIRST_WORD_S, when_awake, self._connect)
        world.after(ANSWER_TIMEOUT_S, when_awake, self._give_up)
        world.after(HEARTBEAT_INTERVAL_S, self._tick)

    @property
    def pool(self) -> m.Pool | None:
        """What the scheduler is told of the pool."""
        if self._leased is None or self.tag is None:
            return None
        return m.Pool(pool=self._leased.pool, lease=self._leased.lease, layout=self._layout, epoch=self.tag.epoch)

    @property
    def shown(self) -> str:
        """The pool and its lease, for the story."""
        return "" if self._leased is None else f"pool {self._leased.pool}, lease {self._leased.lease}"

    def reset(self) -> None:
        """The connection breaks."""
        if (wire := self._wire) is not None:
            self._host.hang_up(wire)
            self._inbox.append((wire, None, ()))
            self._when_awake(self._take)

    def release(self) -> bool:
        """Release the lease, if there is one; the process does not write the pool any more."""
        if self._leased is None:
            return False
        self._leased = self.memory = self.tag = None
        self._say(m.ReleaseLease())
        return True

    def close(self) -> None:
        """The process has ended."""
        if self._wire is not None:
            self._host.hang_up(self._wire)
        self._host.ended(self._process)

    def _give_up(self) -> None:
        """No answer: serve without a pool. A standby waits on."""
        if not self.is_waiting:
            self._begin()

    def _begin(self) -> None:
        """Serve, with a pool or without one. A standby that is refused has nothing to do."""
        if self._has_started:
            return
        self._has_started = True
        if self.is_waiting and self._leased is None:
            self._process.kill()
        else:
            self.is_waiting = False
            self._start()

    def _connect(self) -> None:
        self._wire = self._host.connect(self._arrived)
        if self._wire is None:
            self._begin()
            return
        self._say(m.Register(version=m.KEEPER_VERSION, instance=self._instance, name=self._name, pid=1), self._process)
        if self._leased is not None and self.memory is not None and self.tag is not None:
            self._deposit(self.memory, self.tag, self._leased.pool, self._leased.lease)
        elif not self._has_started:
            self._seek()

    def _seek(self) -> None:
        """Ask for a pool, once it is known how."""
        if self._knows_role:
            self._say(m.LeasePool(kind=self._kind, num_blocks=self._num_blocks, wait=self.is_waiting))
        else:
            self._say(m.AskRole(kind=self._kind))

    def _deposit(self, memory: Memory, tag: Tag, pool: str = "", lease: int = 0) -> None:
        message = m.DepositPool(
            kind=self._kind, num_blocks=self._num_blocks, num_bytes=memory.num_bytes, pool=pool, lease=lease
        )
        self._say(message, memory, tag)

    def _say(self, message: m.ToKeeper, *files: File) -> None:
        if self._wire is not None:
            self._host.send(self._wire, message, *files)

    def _tick(self) -> None:
        if self._process.is_alive:
            self._when_awake(lambda: self._say(m.Alive(state=self._holder_state())))
            self._world.after(HEARTBEAT_INTERVAL_S, self._tick)

    def _retry(self) -> None:
        if self._host.keeper is not None:
            self._connect()
        else:
            self._world.after(RETRY_INTERVAL_S, self._when_awake, self._retry)

    def _arrived(self, message: m.FromKeeper | None, files: tuple[File, ...]) -> None:
        assert self._wire is not None
        self._inbox.append((self._wire, message, files))
        self._when_awake(self._take)

    def _take(self) -> None:
        wire, message, files = self._inbox.popleft()
        if wire is not self._wire:
            return
        match message, files:
            case None, _:
                self._wire = None
                self._on_standbys(0)  # that any keeper knows of
                self._give_up()
                self._world.after(RETRY_INTERVAL_S, self._when_awake, self._retry)
            case m.Standbys(count=count), _:
                self._on_standbys(count)
            case m.RoleGiven(waits=waits), _ if not self._has_started:
                self.is_waiting, self._knows_role = waits, True
                self._seek()
            case m.PoolAbsent(), _ if not self._has_started:
                self._deposit(self._new_memory, self._new_tag)
            case m.PoolLeased(), (Memory() as memory, Tag() as tag) if not self._has_started:
                self.hold(message, memory, tag)
            case m.PoolLeased(), () if not self._has_started:
                self.hold(message, self._new_memory, self._new_tag)
            case m.Refused(), _ if not self._has_started:
                self._begin()

    def hold(self, leased: m.PoolLeased, memory: Memory, tag: Tag) -> None:
        self._leased, self.memory, self.tag = leased, memory, tag
        self._begin()


def pool_bytes(build: Build) -> int:
    """Size of a build's pool, as a keeper counts it."""
    return build.limits.num_blocks * build.limits.block_size
