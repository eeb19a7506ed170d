"""Which executors may mask tokens by which grammars: a book that the core does not write."""

from collections import Counter

from scheduler_svc.core.actions import Action, WriteLog
from scheduler_svc.core.core import Core
from scheduler_svc.core.sequence import Sequence

RELAXED = "grammar goes on with any library"  # as the operator is told


class LibraryBook:
    """Follows the libraries of a fleet, and which sequences may do without their own.

    Args:
        compiled_with: the library that the frontends' grammars are for.

    Attributes:
        lost: sequences that ended because no library was left.
        moments: what happened, and how often.
    """

    def __init__(self, compiled_with: str, moments: Counter[str]) -> None:
        self.lost: set[tuple[str, int]] = set()
        self.moments = moments
        self._compiled_with = compiled_with
        self.started()

    def started(self) -> None:
        """A scheduler begins to live: each grammar waits for its own library again."""
        self._libraries: dict[int, str] = {}  # of each epoch
        self._relaxed: dict[Sequence, None] = {}
        self._untold: list[str] = []  # requests of which the operator has to hear

    def follow(self, core: Core) -> None:
        """Something has happened in the fleet."""
        self._libraries = {member.epoch: member.hello.grammars for member in core.fleet}

    def fits(self, sequence: Sequence, epoch: int) -> bool:
        """Whether an executor masks tokens as a sequence needs it."""
        if not _has_grammar(sequence):
            return True
        library = self._libraries[epoch]
        return library == self._compiled_with or (self.masks(epoch) and self.is_relaxed(sequence))

    def masks(self, epoch: int) -> bool:
        """Whether an executor has any library."""
        return self._libraries[epoch] != ""

    def is_relaxed(self, sequence: Sequence) -> bool:
        """Whether any library will do for a sequence."""
        return sequence in self._relaxed

    def planned(self, sequence: Sequence, epoch: int) -> None:
        """A plan for an executor has a row of a sequence."""
        if not _has_grammar(sequence):
            self.moments["rows without a library"] += not self.masks(epoch)
            return
        library = self._libraries[epoch]
        assert self.fits(sequence, epoch), f"{_name(sequence)} is masked by {library or 'nothing'}, and should wait"
        self.moments["rows of grammars"] += 1
        self.moments["rows of grammars in another library"] += library != self._compiled_with

    def was_relaxed(self, sequence: Sequence) -> None:
        """Any library will do for a sequence from now on."""
        assert _has_grammar(sequence), f"{_name(sequence)} has no grammar"
        self._relaxed[sequence] = None
        self._untold.append(sequence.request_id)
        self.moments["grammars relaxed"] += 1

    def was_given_up(self, sequence: Sequence) -> None:
        """A sequence ended because no library was left."""
        assert _has_grammar(sequence), f"{_name(sequence)} has no grammar"
        assert self.is_relaxed(sequence), f"{_name(sequence)} is given up, and could have another library"
        self.lost.add((sequence.request_id, sequence.index))
        self.moments["grammars lost"] += 1

    def ticked(self, actions: list[Action]) -> None:
        """The core has done what was due."""
        lines = [each.facts for each in actions if isinstance(each, WriteLog) and each.event == RELAXED]
        told, self._untold = self._untold, []
        named = Counter(facts["request"] for facts in lines)
        assert named == Counter(told), f"the operator hears of {named}, not of {told}"
        assert all(facts["compiled_with"] == self._compiled_with for facts in lines)


def _has_grammar(sequence: Sequence) -> bool:
    constraints = sequence.params.constraints
    return constraints is not None and constraints.grammar != ""


def _name(sequence: Sequence) -> str:
    return f"{sequence.request_id}[{sequence.index}]"
