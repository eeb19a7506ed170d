"""Pools whose executor is gone, with what is known of their content, until a successor continues them. Pure.

The index of a pool lives here and not in the executor, so it outlives the executor if the pool's memory does (a keeper
sees to that). `docs/failure.md` has the whole road.
"""

from collections import OrderedDict
from dataclasses import dataclass

from common.messages import Pool
from common.plan import ExecutorLimits
from scheduler_svc.core.executor.executor_state import EarlierIndex, ExecutorState
from scheduler_svc.core.fleet.membership import Membership

KEPT_S = 600.0  # as long as a keeper keeps a pool without a holder
MAX_KEPT = 256
STANDBY_WAIT_S = 0.5
LONGEST_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class VacantPool:
    """A pool between two executors.

    Attributes:
        layout, model, limits: of the executor that had it last.
        index: of what is in it.
        last_epoch: the one that ended.
        since: when.
        awaited_until: sequences that ran there wait for its next executor until then.
    """

    layout: str
    model: str
    limits: ExecutorLimits
    index: EarlierIndex
    last_epoch: int
    since: float
    awaited_until: float


class Pools:
    """All vacant pools, by name.

    Attributes:
        last_gap_s: how long the last pool was vacant that was continued; None before the first.
    """

    def __init__(self) -> None:
        self.last_gap_s: float | None = None
        self._vacant: OrderedDict[str, VacantPool] = OrderedDict()

    def __len__(self) -> int:
        return len(self._vacant)

    def wait_s(self, executor: ExecutorState, start_s: float, others_tokens_per_s: float, longest_s: float) -> float:
        """How long the sequences of an executor that is gone should wait for the next one of its pool.

        Without a standby they wait if it is expected before others would have computed all anew, and no longer than
        that would take: so waiting in vain costs at most as much again.

        Args:
            start_s: what the executor's own start took.
            others_tokens_per_s: what others of its model compute; 0 if there are none.
            longest_s: the operator's limit.
        """
        if executor.membership.has_standby:
            return min(STANDBY_WAIT_S, longest_s)
        expected_s = start_s if self.last_gap_s is None else self.last_gap_s
        if not others_tokens_per_s:  # one may join that has another pool
            return min(expected_s, longest_s)
        recompute_s = sum(len(sequence.tokens) for sequence in executor.sequences()) / others_tokens_per_s
        return min(recompute_s, longest_s) if expected_s < recompute_s else 0.0

    def vacate(self, executor: ExecutorState, now: float, wait_s: float) -> None:
        """An epoch is over, and its pool waits for a successor; `keep_what_is_known` has been called."""
        pool = executor.membership.pool
        assert pool is not None
        # Before its first answer the epoch may not have written the pool: the pool's tag tells of the one before.
        epochs = (executor.epoch,) if executor.has_answered else (*executor.earlier_epochs, executor.epoch)
        _discard(self._vacant.pop(pool.pool, None))
        self._vacant[pool.pool] = VacantPool(
            layout=pool.layout,
            model=executor.model,
            limits=executor.limits,
            index=EarlierIndex(executor.blocks, executor.origin, epochs),
            last_epoch=executor.epoch,
            since=now,
            awaited_until=now + wait_s,
        )
        if len(self._vacant) > MAX_KEPT:
            _discard(self._vacant.popitem(last=False)[1])

    def take(self, membership: Membership, now: float) -> tuple[VacantPool | None, str]:
        """The vacant pool that an executor brings, which is vacant no more, or why its content does not count.

        Both are empty if the executor brings a pool that no executor of this scheduler has had, or none.
        """
        pool = membership.pool
        if pool is None:
            return None, ""
        if (vacant := self._vacant.pop(pool.pool, None)) is None:
            return None, f"epoch {pool.epoch} is not known here" if pool.epoch else ""
        if reason := _objection(vacant, pool, membership):
            _discard(vacant)
            return None, reason
        self.last_gap_s = now - vacant.since
        return vacant, ""

    def expire(self, now: float) -> None:
        """Drop pools that no successor has continued for so long that none will."""
        while self._vacant and now >= next(iter(self._vacant.values())).since + KEPT_S:
            _discard(self._vacant.popitem(last=False)[1])

    def is_awaited(self, epoch: int, now: float) -> bool:
        """Whether sequences that ran in an epoch may still wait for its pool's next executor."""
        return any(pool.last_epoch == epoch and now < pool.awaited_until for pool in self._vacant.values())


def _objection(vacant: VacantPool, pool: Pool, membership: Membership) -> str:
    """Why what is known of a pool does not count; empty if it does."""
    limits = membership.limits
    for what, is_now, was in (
        ("layout", pool.layout, vacant.layout),
        ("model", membership.model, vacant.model),
        ("block_size", limits.block_size, vacant.limits.block_size),
        ("num_blocks", limits.num_blocks, vacant.limits.num_blocks),
    ):
        if is_now != was:
            return f"its {what} is {is_now}, and was {was}"
    if pool.epoch not in vacant.index.epochs:
        writer = f"epoch {pool.epoch}" if pool.epoch else "no epoch, or one whose step failed,"
        return f"{writer} wrote it last, not {vacant.last_epoch}"
    return ""


def _discard(vacant: VacantPool | None) -> None:
    """Nothing that is known of this pool will count any more."""
    if vacant is not None:
        vacant.index.blocks.discard()
