"""Sequences that were being computed when an executor failed, and may be why. Pure.

A sequence gets a *strike* for each failure it had a part in, of a step or of the whole executor, and loses them all
with the next token it gets. One strike means little: the executor may have been killed from outside, and with it all
that it computed. From the second strike on the sequence is a suspect: it runs alone, with no other sequence in any
plan in flight, until it gets a token, and on another executor if one can take it. So suspects prove themselves one by
one; one that fails alone, and for the third time in a row, ends. A request that always kills ends, and no other does.
"""

from collections.abc import Iterable

from scheduler_svc.core.sequence import Sequence, State

SUSPICIOUS_STRIKES = 2
MAX_STRIKES = 3


class Suspects:
    """All sequences with strikes."""

    def __init__(self) -> None:
        self._struck: dict[Sequence, None] = {}
        self._suspects: dict[Sequence, None] = {}  # those that have to run alone

    def strike(self, involved: list[Sequence], executor: str) -> list[Sequence]:
        """An executor failed while it computed these sequences. Returns those that have to end."""
        for sequence in involved:
            sequence.strikes += 1
            sequence.failed_on = executor
            self._struck[sequence] = None
            if is_suspect(sequence):
                self._suspects[sequence] = None
        is_proof = len(involved) == 1
        return [sequence for sequence in involved if is_proof and sequence.strikes >= MAX_STRIKES]

    def acquit(self, sequences: Iterable[Sequence]) -> None:
        """These got a token, so they are not to blame."""
        if not self._struck:
            return
        for sequence in [sequence for sequence in sequences if sequence in self._struck]:
            sequence.strikes, sequence.failed_on = 0, ""
            self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        """It has ended."""
        self._struck.pop(sequence, None)
        self._suspects.pop(sequence, None)

    def on(self, epoch: int) -> Sequence | None:
        """The suspect that has an executor to itself now."""
        for sequence in self._suspects:
            if sequence.epoch == epoch and sequence.state is not State.WAITING:
                return sequence
        return None


def is_suspect(sequence: Sequence) -> bool:
    """Whether it has to run alone."""
    return sequence.strikes >= SUSPICIOUS_STRIKES
