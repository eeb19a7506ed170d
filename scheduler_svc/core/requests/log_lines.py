"""Lines that tell the operator what became of sequences. Pure."""

from collections.abc import Iterable

from scheduler_svc.core.actions import Action, log_line
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import SequenceEnd


def failures(ends: Iterable[SequenceEnd]) -> list[Action]:
    """Which of these ends are errors, and why."""
    return [
        log_line("warning", "request failed", request=end.sequence.request_id, reason=end.error)
        for end in ends
        if end.reason == "error"
    ]


def relaxed(sequences: Iterable[Sequence], library: str) -> list[Action]:
    """Which sequences may be masked by another library than their grammar was compiled with."""
    return [
        log_line("warning", "grammar goes on with any library", request=sequence.request_id, compiled_with=library)
        for sequence in sequences
    ]
