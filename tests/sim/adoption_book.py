"""Which pools may be continued, and what sequences have in them: a book that the core does not write."""

from array import array
from collections import Counter, deque
from dataclasses import dataclass, field

from common import messages as m
from scheduler_svc.core.core import Core
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.sequence import Sequence

HARMFUL = ("step_failed", "untrusted", "no_numbers")  # ends of an epoch after which nobody knows what is in its pool
Row = tuple[Sequence, int, int]  # the positions of a row: the first, and that after the last


@dataclass(eq=False)
class Life:
    """An epoch of an executor that has a pool.

    Attributes:
        kind: all that has to stay the same.
        content: number of the index that it goes on with; an epoch that adopts nothing begins another one.
        tags: epochs of which one must be in the pool's tag when the pool is continued.
        rows: of its plans in flight.
    """

    epoch: int
    pool: m.Pool
    kind: tuple[object, ...]
    content: int
    tags: tuple[int, ...]
    rows: deque[list[Row]] = field(default_factory=deque)
    has_answered: bool = False
    cause: str = ""


class AdoptionBook:
    """Of one life of the scheduler.

    Args:
        is_roomy: no pool is ever full, so that nothing has to be computed again.
        moments: what happened, and how often.
    """

    def __init__(self, moments: Counter[str], *, is_roomy: bool) -> None:
        self.moments = moments
        self._is_roomy = is_roomy
        self._num_contents = 0
        self.started()

    def started(self) -> None:
        """A scheduler begins to live: it knows of no pool."""
        self._last: dict[str, Life] = {}  # of each pool
        self._lives: dict[int, Life] = {}  # of the epochs that live
        self._pools: dict[int, str] = {}  # of all epochs
        self._written: dict[Sequence, tuple[int, int]] = {}  # content, and positions in it that answered plans wrote
        self._interrupted: dict[Sequence, int] = {}  # sequences that wait for what they have in a content
        self._sharing: dict[Sequence, None] = {}  # those that may have lost a block to another sequence

    def joined(self, executor: ExecutorState) -> None:
        """An epoch begins."""
        membership = executor.membership
        if (pool := membership.pool) is None:
            return
        before, is_adopted = self._last.get(pool.pool), bool(executor.earlier_epochs)
        limits = membership.limits
        kind = (membership.model, pool.layout, limits.block_size, limits.num_blocks)
        reason = _why_not(before, kind, pool.epoch)
        assert is_adopted == (reason == ""), f"epoch {executor.epoch} adopts: {is_adopted}; against it: {reason!r}"
        self.moments["adopted" if is_adopted else f"not adopted: {reason}"] += 1
        tags: tuple[int, ...] = (executor.epoch,)
        if before is not None and is_adopted:
            content, tags = before.content, (*before.tags, executor.epoch)
        else:
            self._num_contents += 1
            content = self._num_contents
        life = Life(executor.epoch, pool, kind, content, tags)
        self._last[pool.pool] = self._lives[executor.epoch] = life
        self._pools[executor.epoch] = pool.pool

    def follow(self, core: Core) -> None:
        """Something has happened in the fleet."""
        pools = Counter(member.hello.pool.pool for member in core.fleet if member.hello.pool is not None)
        assert all(count == 1 for count in pools.values()), "a pool has two members"
        for sequence in core.scheduler:
            is_back = sequence.awaited and self._pools[sequence.awaited] in pools
            assert not is_back, f"{sequence.request_id} waits for a pool that is back"

    def planned(self, executor: ExecutorState, plan: m.Plan) -> None:
        """A plan was made."""
        life = self._lives.get(executor.epoch)
        rows = _rows(executor, plan)
        for sequence, start, end in rows:
            content, is_sharing = self._interrupted.pop(sequence, None), sequence in self._sharing
            self._sharing.pop(sequence, None)
            if life is None:
                continue
            written_in, num_written = self._written.get(sequence, (0, 0))
            num_again = min(num_written, end) - start if written_in == life.content else 0
            if content == life.content:
                self.moments["resumed where they were"] += 1
                if num_again > 0:
                    self.moments["positions computed again after an adoption"] += num_again
                    name = f"{sequence.request_id}[{sequence.index}]"
                    told = f"{name} computes {num_again} positions again from {start} on"
                    assert is_sharing or not self._is_roomy, told
            if num_again > 0:  # it has given its blocks away, here or when it was computed elsewhere for a while
                self._written[sequence] = (life.content, start)
        if life is not None:
            life.rows.append(rows)

    def answered(self, epoch: int) -> None:
        """The oldest plan in flight was answered."""
        if (life := self._lives.get(epoch)) is None:
            return
        life.has_answered = True
        for sequence, _, end in life.rows.popleft():
            content, num_written = self._written.get(sequence, (0, 0))
            self._written[sequence] = (life.content, max(end, num_written if content == life.content else 0))

    def ended(self, executor: ExecutorState, cause: str) -> None:
        """An epoch is over."""
        if (life := self._lives.pop(executor.epoch, None)) is None:
            return
        life.cause = cause
        if life.has_answered:
            life.tags = (life.epoch,)
        for sequence in executor.sequences():
            if self._written.get(sequence, (0, 0))[0] == life.content:
                self._interrupted[sequence] = life.content
        self._sharing |= dict.fromkeys(_sharing(executor))


def _why_not(before: Life | None, kind: tuple[object, ...], tag: int) -> str:
    """Why a pool must not be continued; empty if it has to be."""
    if before is None:
        return "never seen"
    if before.cause in HARMFUL:
        return before.cause
    if before.kind != kind:
        return "another kind"
    return "" if tag in before.tags else "another writer"


def _sharing(executor: ExecutorState) -> list[Sequence]:
    """Sequences with a block that a plan without an answer writes, and that another one has, too: of two sequences in
    one unfinished block, one keeps it."""
    tables = [(sequence, set(executor.running.table_of(sequence).ids)) for sequence in executor.running]
    tables += [(each.sequence, set(each.ids)) for plan in executor.inflight for each in plan.completed]
    slots = memoryview(b"".join([plan.slot_mapping for plan in executor.inflight])).cast("i")
    written = {slot // executor.limits.block_size for slot in slots if slot >= 0}
    held = Counter(block for _, table in tables for block in table & written)
    return [sequence for sequence, table in tables if any(held[block] > 1 for block in table)]


def _rows(executor: ExecutorState, plan: m.Plan) -> list[Row]:
    """The rows of a plan."""
    inflight = next(each for each in executor.inflight if each.step == plan.step)
    sampled, unsampled = iter(inflight.sequences), iter(inflight.unsampled)
    samples = set(array("i", plan.sample_rows))  # the executor that gets the plan checks all of its columns
    results = inflight.asked_results
    pooled = {} if results is None else dict(zip(results.pooled.rows.tolist(), results.sequences, strict=True))
    rows: list[Row] = []
    for row, (count, end) in enumerate(zip(array("i", plan.query_lens), array("i", plan.context_lens), strict=True)):
        sequence = next(sampled) if row in samples else pooled.get(row) or next(unsampled)[0]
        rows.append((sequence, end - count, end))
    return rows
