"""Which executor a waiting sequence is for. Pure."""

from collections.abc import Callable

from scheduler_svc.core.executor.executor_state import ExecutorState, Intake
from scheduler_svc.core.scheduling.suspects import SUSPICIOUS_STRIKES
from scheduler_svc.core.sequence import Sequence

PlacementRule = Callable[[Sequence, list[ExecutorState]], ExecutorState | None]


def place(sequence: Sequence, executors: list[ExecutorState]) -> ExecutorState | None:
    """On which of the executors that may run it a waiting sequence should run, None if none of them has a free lane.

    A suspect (see `suspects.py`) goes to another executor than where it failed last, if one can take it. Among those
    that are left, and whose answers are not late if there are such, it goes where most of its prefix is cached, unless
    that executor is much busier than another (more than twice its sequences, and four) or has just refused a sequence
    for lack of memory while another has not; then where fewest run. Once chosen it stays (`sequence.placed`), as long
    as that holds.
    """
    candidates = [e for e in executors if e.running.has_free_lane]
    candidates = [e for e in candidates if e.intake is not Intake.FULL] or candidates
    if sequence.strikes >= SUSPICIOUS_STRIKES:
        candidates = [e for e in candidates if e.name != sequence.failed_on] or candidates
    candidates = [e for e in candidates if not e.membership.is_late] or candidates
    if len(candidates) <= 1:
        return candidates[0] if candidates else None
    fewest = min(e.num_running for e in candidates)
    candidates = [e for e in candidates if e.num_running <= 2 * fewest + 4]
    chosen = next((e for e in candidates if e.epoch == sequence.placed), None)
    if chosen is None:
        cached = {e.epoch: e.cached_tokens(sequence) for e in candidates}
        chosen = min(candidates, key=lambda e: (-cached[e.epoch], e.num_running, e.epoch))
        sequence.placed = chosen.epoch
    return chosen
