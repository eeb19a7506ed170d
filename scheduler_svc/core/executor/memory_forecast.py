"""How much KV memory the running sequences will take at their worst moment, if nothing joins them. Pure.

Admission that looks only at the blocks that are free now fills memory with sequences that all still have to grow,
and then takes blocks away from some of them again. Looking at the future peak is the idea of the Past-Future
scheduler (Gong et al., ASPLOS 2025, LightLLM); ours has chances instead of one predicted length for each answer
(`answer_lengths.py`), and is exact where answers always use up their `max_tokens`.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.executor.answer_lengths import AnswerLengths, FloatArray, Survival

BoolArray = npt.NDArray[np.bool_]

EXACT_MOMENTS = 24  # ends of sequences of a certain length that are looked at
GRID: FloatArray = 2.0 ** np.arange(20, dtype=np.float64)  # steps from now at which uncertain ones are looked at
MARGIN = 2.0  # standard deviations of the blocks held, on top of what is expected
MAX_MARGIN = 0.2  # of what is expected: few sequences would leave most of a small pool empty for it
PRESENT = 0.25  # a newcomer counts as there while its chance to be there is at least this


class LengthHistory:
    """The lengths of answers that can stop by themselves, and of the others."""

    def __init__(self) -> None:
        self._kinds = {can_stop: AnswerLengths(can_stop=can_stop) for can_stop in (False, True)}

    def ended(self, num_output: int, *, can_stop: bool, by_itself: bool) -> None:
        """See `AnswerLengths.ended`."""
        self._kinds[can_stop].ended(num_output, by_itself=by_itself)

    def of(self, *, can_stop: bool) -> AnswerLengths:
        """Lengths of one kind."""
        return self._kinds[can_stop]


class Growing(NamedTuple):
    """Sequences that grow by one token a step; a column for each fact, [sequences].

    Attributes:
        sizes: tokens now, but for those in blocks that are counted for other sequences.
        outputs: tokens of their answers so far.
        remaining: tokens until `max_tokens`, at least 1.
        can_stop: bool, whether they have a stop token.
    """

    sizes: FloatArray
    outputs: FloatArray
    remaining: FloatArray
    can_stop: BoolArray

    def chosen(self, which: BoolArray) -> "Growing":
        """Those that are `which`."""
        return Growing(self.sizes[which], self.outputs[which], self.remaining[which], self.can_stop[which])


class Forecast:
    """The blocks that will be held, as sequences are added to those that run.

    A sequence holds blocks until it ends, and its last token is never stored. Those whose length is certain are
    counted just before each of their ends, because the most blocks are held at one of those moments; those whose length
    is not are counted by their chances, at moments further and further ahead.

    Args:
        running: the sequences that run.
        history: what is known of lengths.
        block_size: positions in a block.
    """

    def __init__(self, running: Growing, history: LengthHistory, block_size: int) -> None:
        self._history = history
        self._block_size = block_size
        self._bound = self._bound_of(running)
        self._running: Growing | None = running  # until they are counted below
        self._new: list[Growing] = []  # that have joined and are not counted
        self._survivals: dict[bool, Survival] = {}
        self._sizes, self._remaining = np.zeros(0), np.zeros(0)  # of those whose length is certain
        self._certain, self._expected, self._variance = (np.zeros(len(GRID)) for _ in range(3))
        self._until = np.inf  # steps at which the newcomer counts as there, and memory must be enough

    def add(self, size: float, output: float, remaining: float, *, can_stop: bool) -> None:
        """Let another sequence join: the newcomer, which `exceeds` asks about."""
        columns = np.array([[size], [output], [remaining]], np.float64)
        self._new.append(Growing(columns[0], columns[1], columns[2], np.array([can_stop])))
        self._bound += self._bound_of(self._new[-1])

    def exceeds(self, num_blocks: int) -> bool:
        """Whether more than so many blocks are to be expected while the newcomer is there. What comes after its end is
        not its fault. Where all would fit at their full lengths, that is known without looking further."""
        return self._bound > num_blocks and self.peak_blocks() > num_blocks

    def peak_blocks(self) -> float:
        """Blocks at the worst moment to come, while the newcomer is there if one was added."""
        self._count()
        uncertain = self._expected + np.minimum(MARGIN * np.sqrt(self._variance), MAX_MARGIN * self._expected)
        peak = 0.0
        if self._expected[0] > 0:
            peak = float((uncertain + self._certain)[self._until >= GRID].max(initial=0.0))
        if len(self._sizes):
            moments, held = self._at_ends()
            held += np.interp(moments, GRID, uncertain)
            peak = max(peak, float(held[moments <= self._until].max(initial=0.0)))
        return peak

    def _bound_of(self, some: Growing) -> float:
        """Blocks that they cannot exceed."""
        return float((some.sizes + some.remaining).sum()) / self._block_size + len(some.sizes)

    def _count(self) -> None:
        """Count those that have joined since the last call, and at the first call those that run."""
        if (running := self._running) is not None:
            for can_stop in (False, True):
                kind, some = self._history.of(can_stop=can_stop), running.chosen(running.can_stop == can_stop)
                if not kind.is_certain:
                    self._survivals[can_stop] = kind.survival(some.outputs)
                self._add(some, self._survivals.get(can_stop))
            self._running = None
        for newcomer in self._new:
            survival = self._survivals.get(bool(newcomer.can_stop[0]))
            self._until = self._presence(newcomer, survival)
            self._add(newcomer, survival)
        self._new.clear()

    @staticmethod
    def _presence(newcomer: Growing, survival: Survival | None) -> float:
        """The last step at which it counts as there."""
        remaining = float(newcomer.remaining[0])
        if survival is None:
            return remaining
        is_there = survival.chance(newcomer.outputs, GRID)[0] >= PRESENT
        return min(remaining, float(GRID[is_there].max(initial=1.0)))

    def _add(self, some: Growing, survival: Survival | None) -> None:
        held = self._held(some.sizes, some.remaining, GRID)
        if survival is None:
            self._sizes = np.concatenate([self._sizes, some.sizes])
            self._remaining = np.concatenate([self._remaining, some.remaining])
            self._certain += held.sum(axis=0)
        else:
            expected = survival.chance(some.outputs, GRID - 1) * held
            self._expected += expected.sum(axis=0)
            self._variance += (expected * (held - expected)).sum(axis=0)

    def _at_ends(self) -> tuple[FloatArray, FloatArray]:
        """The ends of certain sequences at which most is held by them, and what they hold then, in blocks."""
        order = np.argsort(-self._remaining, kind="stable")
        sizes, remaining = self._sizes[order], self._remaining[order]
        counts = np.arange(1, len(order) + 1)
        tokens = np.cumsum(sizes) + counts * remaining
        # What last blocks leave empty differs from moment to moment; count it where the peak can be.
        half_empty = np.where(remaining <= self._until, tokens + counts * (self._block_size / 2), 0.0)
        moments = remaining[np.argsort(-half_empty)[:EXACT_MOMENTS]]
        return moments, self._held(sizes, remaining, moments).sum(axis=0)

    def _held(self, sizes: FloatArray, remaining: FloatArray, steps: FloatArray) -> FloatArray:
        """Blocks that sequences hold in so many steps if they are there then, [sequences, steps]."""
        held: FloatArray = np.ceil((sizes[:, None] + (steps - 1)) / self._block_size)
        held[remaining[:, None] < steps] = 0
        return held
