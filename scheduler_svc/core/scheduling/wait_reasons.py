"""Why a sequence waits, in one word for people. Pure, and nothing is decided by it."""

from collections.abc import Iterator

from common.messages import WaitReason
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.scheduling.sequences import Sequences
from scheduler_svc.core.scheduling.suspects import is_suspect
from scheduler_svc.core.sequence import Sequence


def wait_reasons(sequences: Sequences) -> Iterator[tuple[Sequence, WaitReason]]:
    """Each waiting sequence, by rank, and what it waits for."""
    latest = -1
    for sequence in sequences.waiting:
        yield sequence, wait_reason(sequence, sequences, is_overtaken=latest > sequence.arrival)
        latest = max(latest, sequence.arrival)


def wait_reason(sequence: Sequence, sequences: Sequences, *, is_overtaken: bool = False) -> WaitReason:
    """What a waiting sequence waits for, among all others.

    Args:
        is_overtaken: whether one that came later goes first.
    """
    sequences.regroup()
    able = sequences.waiting.executors_for(sequence)
    with_lanes = [executor for executor in able if executor.running.has_free_lane]
    reasons: dict[WaitReason, bool] = {  # the first one that holds
        "pool": sequence.awaited > 0,
        "landing": sequence.num_inflight > 0,
        "no_executor": not able,
        "alone": is_suspect(sequence) or all(executor.is_emptying for executor in able),
        "share": is_overtaken,
        "lanes": not with_lanes,
        "memory": all(executor.is_full for executor in with_lanes),
        "yields": sequence.yields and all(_has_prompts_of_others(executor) for executor in with_lanes),
    }
    return next((reason for reason, holds in reasons.items() if holds), "turn")


def _has_prompts_of_others(executor: ExecutorState) -> bool:
    return any(not sequence.yields for sequence in executor.running.prompts())
