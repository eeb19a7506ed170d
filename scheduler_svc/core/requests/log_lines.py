"""Lines that tell the operator what became of sequences and executors. Pure."""

from collections.abc import Iterable, Mapping

from common import messages as m
from common.plan import ExecutorLimits
from scheduler_svc.core.actions import Action, WriteLog, log_line
from scheduler_svc.core.executor.executor_state import ExecutorState
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import SequenceEnd


def failures(ends: Iterable[SequenceEnd]) -> list[Action]:
    """Which of these ends are errors, and why."""
    return [
        log_line("warning", "request failed", request=end.sequence.request_id, reason=end.error)
        for end in ends
        if end.reason == "error"
    ]


def numberless(executor: str, result: m.StepResult, sequences: Iterable[Sequence]) -> list[Action]:
    """Which rows of a step had no numbers; they are computed once more."""
    return _rows("scores are no numbers", executor, result, sequences)


def unmasked(executor: str, result: m.StepResult, sequences: Iterable[Sequence]) -> list[Action]:
    """Which rows of a step had no mask in time; they are computed once more."""
    return _rows("a grammar's mask was late", executor, result, sequences)


def relaxed(sequences: Iterable[Sequence], library: str) -> list[Action]:
    """Which sequences may be masked by another library than their grammar was compiled with."""
    return [
        log_line("warning", "grammar goes on with any library", request=sequence.request_id, compiled_with=library)
        for sequence in sequences
    ]


def joined(hello: m.Hello, executor: ExecutorState) -> WriteLog:
    """An executor joins. Of its pool's name, which is a secret, the first characters."""
    facts: dict[str, object] = {
        "executor": hello.executor,
        "epoch": executor.epoch,
        "device": hello.device,
        "dtype": hello.dtype,
        "blocks": hello.num_blocks,
        "block_size": hello.block_size,
        "room": ExecutorLimits.of(hello).room,
        "build": hello.build,
        "fingerprint": hello.fingerprint,
        "tasks": ",".join(hello.tasks),
        "pid": hello.pid,
    }
    if hello.pool is not None:
        facts |= {"pool": hello.pool.pool[:8], "lease": hello.pool.lease, "adopted": bool(executor.earlier_epochs)}
    if executor.earlier_epochs:
        facts["blocks_cached"] = executor.blocks.num_cached
    if executor.not_adopted:
        facts["not_adopted"] = executor.not_adopted
    return log_line("info", "executor joined", **facts)


def rejected(executor: str, reason: str) -> WriteLog:
    """An executor may not join; it tries again and again."""
    return WriteLog("warning", "executor rejected", {"executor": executor, "reason": reason}, is_seldom=True)


def ended(facts: Mapping[str, object], sequences_moved: int, *, is_failure: bool) -> WriteLog:
    """An epoch has ended."""
    if is_failure:
        return log_line("warning", "executor lost", **facts, sequences_moved=sequences_moved)
    return log_line("info", "executor left", **facts, sequences_moved=sequences_moved)


def _rows(event: str, executor: str, result: m.StepResult, sequences: Iterable[Sequence]) -> list[Action]:
    where = {"executor": executor, "epoch": result.epoch, "step": result.step}
    return [WriteLog("warning", event, {**where, "request": each.request_id}, is_seldom=True) for each in sequences]
