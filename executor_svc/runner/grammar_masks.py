"""Which tokens a grammar allows next: the masks of a plan's lanes, filled in other threads while the model computes.

A matcher is derived from the lane's start and the tokens since. Where a lane starts with tokens that were generated
elsewhere, they are read again, so a sequence that moves here in the middle of a document goes on to the same document.

A lane whose mask is not there in time is late until it is started again: a step waits for it no more. The mask is
filled meanwhile, and found by the same grammar and tokens when they come back, in whichever lane.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from llguidance import LLTokenizer

from common import messages as m
from common.grammars import read_grammar_tokenizer
from common.wire import IntArray
from executor_svc.runner.grammar_texts import Grammars, GrammarText
from executor_svc.runner.mask_threads import MaskJob, MaskThreads
from executor_svc.staging.constrained_lanes import ConstrainedLane, LaneMasks
from kernels.reference import mask_words

MASK_MAY_TAKE_S = 0.02  # that a step waits for; twice of what is slow, as other threads may have the processor
MAX_LATE = 32  # what else begins was given up, or begins anew
IDLE_PLANS = 256


class DrawnTokens(Protocol):
    """The tokens of a step that was launched."""

    def token_ids(self) -> IntArray:
        """See `executor_svc.runner.asked_steps.PendingStep.token_ids`."""
        ...


def load_grammar_masks(
    folder: Path, vocab_size: int, may_take_s: float | None = MASK_MAY_TAKE_S
) -> "GrammarMasks | None":
    """The masks of a model; None if its folder has no tokenizer.json.

    Args:
        may_take_s: see `GrammarMasks`.

    Raises:
        CheckpointError: the file is malformed, or has more tokens than the model.
    """
    tokenizer = read_grammar_tokenizer(folder, vocab_size)
    return None if tokenizer is None else GrammarMasks(tokenizer, vocab_size, may_take_s)


@dataclass(frozen=True)
class _DrawnToken:
    """The token of a lane that a step draws, as one of its samples."""

    step: DrawnTokens
    sample: int

    def get(self) -> list[int]:
        """Wait for it; none for a row that has none."""
        token = int(self.step.token_ids()[self.sample])
        return [token] if token >= 0 else []


class _Name(NamedTuple):
    """What a text is known by, in whichever lane: stop tokens and tokens are int32."""

    grammar: str
    stops: bytes
    tokens: bytes

    @classmethod
    def of(cls, text: GrammarText) -> "_Name":
        """The name of a text."""
        return cls(text.grammar.text, text.stops.tobytes(), array("i", text.tokens).tobytes())


@dataclass(eq=False)
class _LaneText:
    """A lane's text since its last start.

    Attributes:
        job: the last one; None before the first.
        without: why its rows have no mask; None if they have.
        used: number of the last plan that needed it.
    """

    text: GrammarText
    job: MaskJob | None = None
    without: int | None = None
    used: int = 0


@dataclass(frozen=True)
class _Row:
    """A lane's part of a plan.

    Attributes:
        job: that fills its mask; None if it has none.
        is_resumed: whether the job was begun for an earlier start.
    """

    lane: ConstrainedLane
    state: _LaneText
    job: MaskJob | None
    is_resumed: bool = False


class PendingMasks:
    """The masks of a plan, to come.

    Args:
        owner: whose they are.
        rows: of the plan's lanes that have a grammar.
        masks: int32 [rows, ceil(vocab / 32)], which the jobs fill that were begun for the plan.
        waits_for_resumed: whether they are waited for, too.
    """

    def __init__(
        self, owner: "GrammarMasks", rows: Sequence[_Row], masks: IntArray, *, waits_for_resumed: bool
    ) -> None:
        self._owner = owner
        self._rows = rows
        self._masks = masks
        self._waits_for_resumed = waits_for_resumed

    def result(self) -> LaneMasks:
        """Wait for the tokens that they depend on, and then for the masks, but not for long. Raises RuntimeError if a
        step failed that draws such a token."""
        return self._owner.collect(self._rows, self._masks, waits_for_resumed=self._waits_for_resumed)


class GrammarMasks:
    """The lanes' texts of one executor.

    Its threads start with it, on the CPUs that the calling thread may use then: make it before that thread is bound to
    one of them.

    Args:
        tokenizer: of the model.
        vocab_size: of the model.
        may_take_s: how long a step waits, see `MaskThreads.wait`; None for as long as masks take: ranks of one group
            must not differ in which lanes are late.
        grammars: of the texts; by default those that are asked for lately.
        max_late: late lanes whose masks are found again.
        idle_plans: a lane that so many plans did not need keeps its tokens, and no matcher.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        vocab_size: int,
        may_take_s: float | None = MASK_MAY_TAKE_S,
        grammars: Grammars | None = None,
        max_late: int = MAX_LATE,
        idle_plans: int = IDLE_PLANS,
    ) -> None:
        self._grammars = grammars or Grammars(tokenizer, vocab_size)
        self._max_late = max_late
        self._idle_plans = idle_plans
        self._threads = MaskThreads(self._grammars)
        self._words = mask_words(vocab_size)
        self._may_take_s = may_take_s
        self._lanes: dict[int, _LaneText] = {}
        self._newest: dict[int, _DrawnToken] = {}
        self._late: OrderedDict[_Name, _LaneText] = OrderedDict()
        self._num_plans = 0

    def begin(
        self, lanes: Sequence[ConstrainedLane], started: set[int], *, is_alone: bool = False
    ) -> PendingMasks | None:
        """Begin to fill the masks of the lanes that have a grammar; None if none has.

        Args:
            lanes: of a plan's constrained samples.
            started: those of them that the plan starts.
            is_alone: whether the plan has no other rows. Then masks that were begun for an earlier start are waited
                for, too: a plan that said at once that they are late would come again at once.

        Returns:
            Their masks, to come.
        """
        asking = [lane for lane in lanes if lane.start.message.constraints.grammar]
        if not asking:
            return None
        self._num_plans += 1
        masks = np.zeros((len(asking), self._words), np.int32)
        rows = [
            self._row(lane, mask, starts=lane.start.message.lane in started)
            for lane, mask in zip(asking, masks, strict=True)
        ]
        self._threads.put([row.job for row in rows if row.job is not None and not row.is_resumed])
        if self._num_plans % self._idle_plans == 0:
            self._let_matchers_go()
        return PendingMasks(self, rows, masks, waits_for_resumed=is_alone)

    def launched(self, lanes: Sequence[ConstrainedLane], samples: Sequence[int], step: DrawnTokens) -> None:
        """A step was launched that draws these lanes' tokens, each as one of its samples."""
        for lane, sample in zip(lanes, samples, strict=True):
            if lane.start.message.constraints.grammar:
                self._newest[lane.start.message.lane] = _DrawnToken(step, sample)

    def forget_lanes(self) -> None:
        """An epoch is over: its lanes are started anew before they are needed again."""
        self._newest.clear()
        self._lanes.clear()

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def collect(self, rows: Sequence[_Row], masks: IntArray, *, waits_for_resumed: bool) -> LaneMasks:
        """See `PendingMasks.result`."""
        jobs = [row.job for row in rows if row.job is not None and (waits_for_resumed or not row.is_resumed)]
        if left := [job for job in jobs if not job.is_done]:
            self._threads.wait(left, self._may_take_s)
        without: dict[int, int] = {}
        empty = []
        for place, row in enumerate(rows):
            if row.state.without is None and row.job is not None:
                row.state.without = self._why_without(row.state, row.job)
            if row.state.without is not None:
                without[row.lane.start.message.lane] = row.state.without
                empty.append(place)
                continue
            if row.is_resumed and row.job is not None:
                masks[place] = row.job.mask
            if row.lane.mask is not None:
                masks[place] &= row.lane.mask
        if empty:
            masks = masks.copy()  # threads may write to these yet
            masks[empty] = 0
        return LaneMasks(masks, {row.lane.start.message.lane: i for i, row in enumerate(rows)}, without)

    def _row(self, lane: ConstrainedLane, mask: IntArray, *, starts: bool) -> _Row:
        message = lane.start.message
        if starts:
            generated = lane.start.tokens[message.num_prompt :]
            text = self._grammars.text(message.constraints.grammar, lane.start.stop_token_ids)
            text.append(generated.tolist())
            if (late := self._late.pop(_Name.of(text), None)) is not None:
                state = self._lanes[message.lane] = _LaneText(late.text, late.job, used=self._num_plans)
                return _Row(lane, state, late.job, is_resumed=True)
            self._lanes[message.lane] = _LaneText(text)
        state = self._lanes[message.lane]
        state.used = self._num_plans
        if state.without is not None:
            return _Row(lane, state, None)
        state.job = MaskJob(state.text, mask, None if starts else self._newest[message.lane].get)
        return _Row(lane, state, state.job)

    def _why_without(self, state: _LaneText, job: MaskJob) -> int | None:
        """Why a lane has no mask; None if it has one."""
        if job.error is not None:
            raise job.error
        if job.is_done:
            return m.TOO_COMPLEX if job.outcome == m.TOO_COMPLEX else None
        self._late[_Name.of(state.text)] = state
        if len(self._late) > self._max_late:
            _, dropped = self._late.popitem(last=False)
            assert dropped.job is not None
            dropped.job.is_dropped = True
        return m.LATE

    def _let_matchers_go(self) -> None:
        for state in self._lanes.values():  # its sequence has most likely ended
            if state.used + self._idle_plans < self._num_plans and state.without is None:
                state.text.matcher = state.job = None
