"""One executor in one epoch, as every room of the core reads it. Pure.

The fleet makes a membership when an executor joins and alone changes it; the scheduler reads it. So where an executor
stands is written in one place.
"""

from dataclasses import dataclass
from enum import Enum

from common.messages import Pool
from common.plan import ExecutorLimits


class Standing(Enum):
    """Where a member stands; the values are what `baton status` shows."""

    READY = "ready"
    FINISHING = "finishing"  # its sequences end there, new ones go elsewhere
    DRAINING = "draining"  # it gets no more plans, and its epoch ends when those it has are answered


@dataclass(slots=True, eq=False)
class Membership:
    """An executor in one epoch of its life.

    Attributes:
        executor: its name.
        model: what it computes with: executors of one model give a sequence the same tokens.
        limits: what it said in its Hello.
        grammars: the library that it masks tokens by, likewise; empty for none.
        pool: its KV memory; None if that ends with the process.
        has_standby: whether another process waits to continue its pool.
        is_doubted: whether a row had no numbers here a moment ago that another computation gave some.
        slowness: how long its steps take, over how long steps of their sizes take on average.
        is_late: whether its answer to a plan is late, though not so late that it counts as hung.
    """

    epoch: int
    executor: str
    model: str
    limits: ExecutorLimits
    standing: Standing = Standing.READY
    slowness: float = 1.0
    is_late: bool = False
    is_doubted: bool = False
    grammars: str = ""
    pool: Pool | None = None
    has_standby: bool = False
