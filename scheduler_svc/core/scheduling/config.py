"""What an operator can choose about scheduling."""

from dataclasses import dataclass

from scheduler_svc.core.executor.capacity import POOL_GRACE_S
from scheduler_svc.core.scheduling.pools import LONGEST_WAIT_S


@dataclass(frozen=True)
class SchedulerConfig:
    """How the scheduler works.

    Attributes:
        window: plans in flight to one executor.
        max_waiting: sequences of each task that may wait; a request beyond is refused (`queue_full`).
        look_ahead: whether admission asks what memory running sequences will still take, and not only what is free.
        pool_grace_s: how long a sequence waits for an executor that fits it (its length, its grammar's library), while
            others are there.
        task_grace_s: how long after the first executor of all one may come that takes a task which none has taken; then
            requests of that task are refused.
        grammars: the library that frontends compile grammars with; empty for none.
        adoption_wait_s: how long sequences wait at most for the next executor of a pool that holds their K and V, while
            others could compute these anew.
        announced_salt: routers are told which blocks of requests with this `cache_salt` are cached; None tells nothing.
        address_key: secret of this life (`FairShares`).
    """

    window: int = 2
    max_waiting: int = 4096
    look_ahead: bool = True
    pool_grace_s: float = POOL_GRACE_S
    task_grace_s: float = POOL_GRACE_S
    grammars: str = ""
    adoption_wait_s: float = LONGEST_WAIT_S
    announced_salt: str | None = None
    address_key: bytes = b""
