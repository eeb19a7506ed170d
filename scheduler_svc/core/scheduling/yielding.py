"""Sequences that yield: those of the lowest priority, for which no client waits. Pure.

While a prompt of another sequence is computed, they have no rows: the plan is as short, and its first token as early,
as if they were not there. They keep their lanes and blocks, and go on with the next plan.
"""

from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.executor.plan_builder import PromptRow
from scheduler_svc.core.scheduling.waiting_queue import WaitingQueue
from scheduler_svc.core.sequence import Sequence

MAX_SAT_OUT = 32  # plans in a row: where prompts never end, those that yield have one plan in so many


def sitting_out(executor: ExecutorState, waiting: WaitingQueue) -> list[Sequence]:
    """The running sequences that have no row in the next plan; counts the plan if there are any."""
    running = executor.running
    if not running.num_yielding:
        return []
    if executor.num_sat_out == MAX_SAT_OUT or not _is_prompt_next(executor, waiting):
        executor.num_sat_out = 0
        return []
    executor.num_sat_out += 1
    return [sequence for sequence in running if sequence.yields]


def yields_to(sequence: Sequence, rows: list[PromptRow]) -> bool:
    """Whether a waiting sequence is not to be admitted by a plan that has these rows."""
    return sequence.yields and any(not row.sequence.yields for row in rows)


def _is_prompt_next(executor: ExecutorState, waiting: WaitingQueue) -> bool:
    """Whether a prompt of a sequence that does not yield goes on here, or may begin."""
    if any(not sequence.yields for sequence in executor.running.prompts()):
        return True
    running = executor.running
    has_lane = running.has_free_lane or running.num_yielding > running.num_kept
    if executor.is_leaving or executor.is_emptying or executor.is_full or not has_lane:
        return False
    first = waiting.first(executor.epoch)
    return first is not None and not first.yields
