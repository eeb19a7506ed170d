"""Which executors may run a sequence. Pure."""

from collections.abc import Iterable
from itertools import compress

from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.sequence import Sequence


def able_executors(sequence: Sequence, executors: Iterable[ExecutorState], grammars: str) -> list[ExecutorState]:
    """Those that take new sequences, this one's task, and as many positions as it needs.

    A sequence with a grammar goes where it is masked by the library that it was compiled with. One with an answer goes
    on with the model that computed it, if any executor has it. One that is pooled goes to the newest model: results of
    two models cannot be compared, so all inputs of a request had better get the same one.

    Args:
        executors: in the order in which they joined.
        grammars: the library that grammars are compiled with.
    """
    able = [e for e in executors if not e.intake.is_leaving and e.can_hold(sequence)]
    if sequence.has_grammar:
        libraries = [e.membership.grammars for e in able]
        fit = [bool(name) and (name == grammars or sequence.takes_any_library) for name in libraries]
        able = list(compress(able, fit))
    if sequence.has_answer:
        able = [e for e in able if e.model == sequence.model] or able
    return _of_newest_model(able) if sequence.is_pooled else able


def _of_newest_model(able: list[ExecutorState]) -> list[ExecutorState]:
    """Those of the model whose first executor among them came last: one of an older model may have been restarted."""
    models = list(dict.fromkeys(e.model for e in able))
    return able if len(models) < 2 else [e for e in able if e.model == models[-1]]
