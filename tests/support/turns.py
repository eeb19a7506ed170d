"""The invariant of turns: the first in rank of an executor always goes on, and so do the others beside a suspect."""

from common.messages import Plan
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.scheduling.suspects import is_suspect


def plan_in_turn(scheduler: Scheduler, epoch: int) -> Plan | None:
    """The next plan, of which is checked whose turn it is.

    The first in rank of those that run has a row in every plan but a suspect's, with which it may leave its lane, or
    waits with its prompt only for decodes of others to end. No two plans of suspects follow each other while others
    have rows.
    """
    executor = scheduler.executor(epoch)
    ranks = [sequence.rank for sequence in scheduler]
    was_suspects = executor.is_suspects
    plan = scheduler.plan(epoch)
    assert [sequence.rank for sequence in scheduler] == ranks, "a rank has changed"
    assert len(set(ranks)) == len(ranks), "two sequences have one rank"
    if plan is None:
        return None
    running, planned = list(executor.running), executor.inflight[-1]
    first = min({*running, *planned.everyone}, key=lambda sequence: sequence.rank, default=None)
    if executor.is_suspects:
        assert len(planned.everyone) == len(executor.inflight) == 1, "a suspect is not alone"
        others = [sequence for sequence in running if not is_suspect(sequence) and sequence not in planned.everyone]
        assert not was_suspects or not others or first is None or is_suspect(first), "a suspect goes twice"
        return plan
    assert not (was_suspects and len(executor.inflight) > 1), "a suspect is not alone"
    if first is not None and not (is_suspect(first) or first.yields):
        waits_for_decodes = executor.running.has_prompt(first) and len(planned.everyone) == planned.num_decodes
        assert first in planned.everyone or waits_for_decodes, "the first in rank has no row"
    return plan
