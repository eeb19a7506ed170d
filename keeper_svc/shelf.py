"""What is kept: pools and weights, within a limit of bytes and counts. The one unused for longest goes first."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from common import messages as m
from keeper_svc.actions import Handle
from keeper_svc.executor import Executor

MAX_POOLS = 64
MAX_WEIGHTS = 32
MAX_SOURCES = 16  # of the same weights
NAME_CHARS = 32  # of the name of a pool
SHOWN_CHARS = 8  # of these, which are a secret: its holder proves by it that it was the holder


@dataclass(eq=False)
class Pool:
    """A pool: its bytes, and who may write them.

    Attributes:
        name: NAME_CHARS characters that nobody can guess.
        memory, tag: the two files of it.
        lease: number of the last lease.
        holder: of this lease; None once the holder is provably gone, or has released the lease.
        since: when it was leased, or freed.
    """

    name: str
    kind: m.PoolKind
    num_blocks: int
    num_bytes: int
    memory: Handle
    tag: Handle
    lease: int
    holder: Executor | None
    since: float

    @property
    def handles(self) -> tuple[Handle, ...]:
        """Of its files."""
        return (self.memory, self.tag)

    @property
    def shown(self) -> str:
        """What logs and reports call it."""
        return self.name[:SHOWN_CHARS]

    @property
    def idle_since(self) -> float | None:
        """Since when it has no holder; None if it has one."""
        return self.since if self.holder is None else None

    def is_left_since(self, time: float) -> bool:
        """Whether it had no holder then, and has none yet."""
        return self.holder is None and self.since < time

    def fits(self, kind: m.PoolKind, num_blocks: int) -> bool:
        """Whether an executor that wants such a pool can go on with this one; 0 blocks stand for any number."""
        return self.kind == kind and num_blocks in (0, self.num_blocks)


@dataclass(eq=False)
class Weights:
    """Weights of one model in one form.

    Attributes:
        memory: the file.
        sources: hashes over the files that they were read from, in the order in which they came.
        users: executors that deposited or found them, and live.
        unused_since: when the last user went; means nothing while there is one.
    """

    kind: m.WeightsKind
    fingerprint: str
    num_bytes: int
    memory: Handle
    sources: list[str] = field(default_factory=list)
    users: list[Executor] = field(default_factory=list)
    unused_since: float = 0.0

    @property
    def handles(self) -> tuple[Handle, ...]:
        """Of its file."""
        return (self.memory,)

    @property
    def shown(self) -> str:
        """What logs call them."""
        return self.fingerprint

    @property
    def idle_since(self) -> float | None:
        """Since when they have no user; None if they have one."""
        return None if self.users else self.unused_since

    def read_from(self, source: str) -> None:
        """They were read from these files, too."""
        if source and source not in self.sources:
            self.sources.append(source)
            del self.sources[:-MAX_SOURCES]

    def used_by(self, executor: Executor) -> None:
        """An executor uses them from now on."""
        if executor not in self.users:
            self.users.append(executor)


Kept = Pool | Weights


class Shelf:
    """All pools and weights, in the order in which they came.

    Args:
        max_bytes: of all that is in the machine's memory; what is on a GPU takes none of it, and the GPU itself
            is its limit. Files of pools are counted in full, though memory is only taken for what is used.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.pools: list[Pool] = []
        self.weights: list[Weights] = []

    def __iter__(self) -> Iterator[Kept]:
        yield from self.pools
        yield from self.weights

    @property
    def num_bytes(self) -> int:
        """Of all together that is in the machine's memory."""
        return sum(map(_taken, self))

    def held_by(self, executor: Executor) -> Pool | None:
        """The pool that an executor holds."""
        return next((pool for pool in self.pools if pool.holder is executor), None)

    def find_weights(self, kind: m.WeightsKind, fingerprint: str, source: str) -> Weights | None:
        """Weights of this kind, by their fingerprint, or by what they were read from if it is empty."""
        for weights in self.weights:
            if weights.kind == kind and (weights.fingerprint == fingerprint or (source and source in weights.sources)):
                return weights
        return None

    def read_from(self, weights: Weights, source: str) -> None:
        """Weights were read from these files, too. What is known as read from them, and differs, was other content."""
        for other in self.weights:
            if other is not weights and other.kind == weights.kind and source in other.sources:
                other.sources.remove(source)
        weights.read_from(source)

    def end_use(self, executor: Executor, now: float) -> None:
        """An executor, which has ended, uses no weights any more."""
        for weights in self.weights:
            if executor in weights.users:
                weights.users.remove(executor)
                weights.unused_since = now

    def is_used_by(self, executor: Executor) -> bool:
        """Whether an executor holds a pool or uses weights."""
        return self.held_by(executor) is not None or any(executor in weights.users for weights in self.weights)

    def put(self, kept: Kept) -> list[Kept] | str:
        """Keep this too. Returns what had to go for it, or why it cannot be kept; then nothing has changed."""
        idle = self._idle()
        same: list[Pool] | list[Weights] = self.pools if isinstance(kept, Pool) else self.weights
        limit = MAX_POOLS if isinstance(kept, Pool) else MAX_WEIGHTS
        gone: list[Kept] = []
        if len(same) >= limit:
            gone = [other for other in idle if type(other) is type(kept)][:1]
            if not gone:
                return f"{len(same)} of them are in use, the limit is {limit}"
        excess = self.num_bytes + _taken(kept) - sum(map(_taken, gone)) - self.max_bytes
        for other in idle:
            if excess > 0 and other not in gone and _taken(other):
                gone.append(other)
                excess -= _taken(other)
        if excess > 0:
            used = self.num_bytes - sum(map(_taken, idle))
            return f"it has {kept.num_bytes} bytes, {used} are in use, the limit is {self.max_bytes}"
        for other in gone:
            self.remove(other)
        self._add(kept)
        return gone

    def remove(self, kept: Kept) -> None:
        """Keep it no longer."""
        if isinstance(kept, Pool):
            self.pools.remove(kept)
        else:
            self.weights.remove(kept)

    def take_expired(self, idle_before: float) -> list[Kept]:
        """Keep no longer, and return, what nobody has used since then."""
        return self._take([kept for kept in self._idle() if (kept.idle_since or 0.0) <= idle_before])

    def take_wanted(self, message: m.DropKept) -> list[Kept]:
        """Keep no longer, and return, what somebody wants gone."""
        gone = idle = self._idle()
        if message.name:
            pools: list[Kept] = [pool for pool in self.pools if pool in idle and pool.name.startswith(message.name)]
            gone = [*pools, *(each for each in self.weights if each.fingerprint.startswith(message.name))]
        on_device = [kept for kept in gone if message.device in ("", kept.kind.device)]
        return self._take([kept for kept in on_device if message.pools or isinstance(kept, Weights)])

    def _add(self, kept: Kept) -> None:
        if isinstance(kept, Pool):
            self.pools.append(kept)
        else:
            self.weights.append(kept)

    def _idle(self) -> list[Kept]:
        """What may go, the one unused for longest first."""
        idle = [(since, kept) for kept in self if (since := kept.idle_since) is not None]
        return [kept for _, kept in sorted(idle, key=lambda pair: pair[0])]

    def _take(self, kept: list[Kept]) -> list[Kept]:
        for one in kept:
            self.remove(one)
        return kept


def _taken(kept: Kept) -> int:
    """Bytes of the machine's memory."""
    return kept.num_bytes if kept.kind.device == "cpu" else 0
