"""Which executor is missed least. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

MOVE_UNIT = 4096  # tokens: executors that differ by less of what has to move are equal


@dataclass(frozen=True, slots=True)
class Usefulness:
    """What is lost with an executor.

    Attributes:
        executor: its name.
        epoch: which one is younger is told by it.
        is_late: its answer to a plan is late, so it may be about to go by itself.
        moving_tokens: of sequences that run there, and would be computed again elsewhere.
        hit_tokens: that its prefix cache gave to sequences lately.
    """

    executor: str
    epoch: int
    is_late: bool
    moving_tokens: int
    hit_tokens: float


def least_useful_first(executors: Iterable[Usefulness]) -> list[str]:
    """The names in the order in which to drain them: one that may be going anyway, then the one with the least to move,
    then the one whose cache is asked for least, then the youngest."""

    def rank(executor: Usefulness) -> tuple[bool, int, float, int]:
        moving = -(-executor.moving_tokens // MOVE_UNIT)  # none at all is less than a few
        return not executor.is_late, moving, executor.hit_tokens, -executor.epoch

    return [executor.executor for executor in sorted(executors, key=rank)]
