"""What became of each sequence and when, while it runs and for a while after. Pure.

A decode step adds nothing to a life, so that a steady batch costs nothing here.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from common.messages import Mark, SequenceLife
from scheduler_svc.core.scheduling.stats import Move
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_output import SequenceEnd

MAX_ENDED = 2048  # requests that have ended and are remembered
MAX_ENDED_SEQUENCES = 4096  # of all of these
MAX_MARKS = 128  # of a sequence; of more, those after the first KEPT_FIRST are let go
KEPT_FIRST = 32


@dataclass(slots=True, eq=False)
class _Life:
    sequence: Sequence | None  # None once it has ended: what it holds is not kept for this
    index: int
    output: int = 0
    marks: list[Mark] = field(default_factory=list)
    num_left_out: int = 0

    def add(self, mark: Mark) -> None:
        if len(self.marks) == MAX_MARKS:
            del self.marks[KEPT_FIRST]
            self.num_left_out += 1
        self.marks.append(mark)


class SequenceLives:
    """The lives of the sequences of open requests, and of the last requests that ended.

    Args:
        max_requests, max_sequences: see MAX_ENDED and MAX_ENDED_SEQUENCES.
    """

    def __init__(self, max_requests: int = MAX_ENDED, max_sequences: int = MAX_ENDED_SEQUENCES) -> None:
        self._max_requests, self._max_sequences = max_requests, max_sequences
        self._lives: dict[Sequence, _Life] = {}  # of those that have not ended
        self._open: dict[str, list[_Life]] = {}
        self._ended: OrderedDict[str, list[_Life]] = OrderedDict()
        self._num_ended = 0  # sequences of these
        self._names: dict[int, str] = {}  # of executors, by epoch

    def since(self, sequence: Sequence) -> float:
        """When what a sequence does now began: waiting, or running where it runs."""
        marks = self._lives[sequence].marks
        begun = (mark.at for mark in reversed(marks) if mark.what not in ("prefill", "first_token", "resumed"))
        return next(begun, marks[0].at)

    def of(self, request_id: str, num_output: Callable[[Sequence], int]) -> tuple[SequenceLife, ...]:
        """The lives of a request's sequences; none if the request is not known, or not any more.

        Args:
            num_output: how many tokens a sequence that has not ended has generated.
        """
        lives = self._open.get(request_id) or self._ended.get(request_id) or []
        return tuple(
            SequenceLife(
                index=life.index,
                marks=list(life.marks),
                num_left_out=life.num_left_out,
                output=life.output if life.sequence is None else num_output(life.sequence),
            )
            for life in lives
        )

    # --- what happens ---

    def executor_joined(self, epoch: int, name: str) -> None:
        """An epoch began."""
        self._names[epoch] = name

    def begun(self, sequences: Iterable[Sequence], now: float, *, is_restored: bool) -> None:
        """The sequences of a request came, or came back from the journal."""
        for sequence in sequences:
            life = self._lives[sequence] = _Life(sequence, sequence.index)
            self._open.setdefault(sequence.request_id, []).append(life)
            tokens = sequence.num_output if is_restored else sequence.num_prompt
            life.add(Mark(at=now, what="restored" if is_restored else "queued", tokens=tokens))

    def moved(self, moves: Iterable[Move], now: float) -> None:
        """What the plans that were just made did to sequences."""
        for what, sequence, epoch, tokens, cached in moves:
            mark = Mark(at=now, what=what, executor=self._names[epoch], epoch=epoch, tokens=tokens, cached=cached)
            self._lives[sequence].add(mark)

    def executor_ended(
        self, epoch: int, cause: str, sequences: Iterable[Sequence], now: float, *, is_failure: bool
    ) -> None:
        """An epoch ended, with these sequences in it."""
        name = self._names.pop(epoch)
        mark = Mark(at=now, what="lost" if is_failure else "left", executor=name, epoch=epoch, cause=cause)
        for sequence in sequences:
            self._lives[sequence].add(mark)

    def got_token(self, sequences: Iterable[Sequence], epoch: int, now: float, *, is_first: bool) -> None:
        """The first token has come, ever or since they waited again."""
        name = self._names[epoch]
        mark = Mark(at=now, what="first_token" if is_first else "resumed", executor=name, epoch=epoch)
        for sequence in sequences:
            if (life := self._lives.get(sequence)) is not None:
                life.add(mark)

    def ended(self, end: SequenceEnd, now: float) -> None:
        """A sequence has ended."""
        sequence = end.sequence
        life = self._lives.pop(sequence)
        life.sequence, life.output = None, sequence.num_output
        life.add(Mark(at=now, what="ended", tokens=life.output, cause=end.code or end.reason))
        if all(life.sequence is None for life in self._open[sequence.request_id]):
            self._remember(sequence.request_id, self._open.pop(sequence.request_id))

    def _remember(self, request_id: str, lives: list[_Life]) -> None:
        """All sequences of a request have ended."""
        self._num_ended += len(lives) - len(self._ended.pop(request_id, []))  # an id may be used again
        self._ended[request_id] = lives
        while len(self._ended) > self._max_requests or self._num_ended > self._max_sequences:
            self._num_ended -= len(self._ended.popitem(last=False)[1])
