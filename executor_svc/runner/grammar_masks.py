"""Which tokens a grammar allows next: a matcher for each lane, and a thread that fills masks while the model computes.

A matcher is derived from the lane's start and the tokens since. Where a lane starts with tokens that were generated
elsewhere, they are replayed, so a sequence that moves here in the middle of a document goes on to the same document.
Masks are computed one after the other: matchers of one grammar share what its lexer has built, and wait for each other.
"""

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from common.errors import CheckpointError
from common.grammars import parser_limits
from common.logging import get_logger
from common.tokenizer_file import read_tokenizer_file
from common.wire import IntArray
from executor_svc.staging.constrained_lanes import ConstrainedLane, LaneMasks, allow, packed_mask
from kernels.reference import mask_words

_NO_TOKENS: IntArray = np.zeros(0, np.int32)
_COMPILED = 64  # grammars that are kept: requests with one schema compile it once
_IDLE_PLANS = 256  # a lane that so many plans did not need keeps its tokens, and no matcher

log = get_logger("executor")


class DrawnTokens(Protocol):
    """The tokens of a step that was launched."""

    def token_ids(self) -> IntArray:
        """See `executor_svc.runner.asked_steps.PendingStep.token_ids`."""
        ...


def load_grammar_masks(folder: Path, vocab_size: int) -> "GrammarMasks | None":
    """The masks of a model; None if its folder has no tokenizer.json.

    Raises:
        CheckpointError: the file is malformed, or has more tokens than the model.
    """
    path = folder / "tokenizer.json"
    if read_tokenizer_file(folder) is None:  # which checks it
        return None
    try:
        return GrammarMasks(LLTokenizer(str(path), n_vocab=vocab_size), vocab_size)
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be used for grammars: {error}") from error


@dataclass(frozen=True)
class _NewTokens:
    """What a lane's matcher has to consume before its mask: tokens that were said, or one that a step draws."""

    said: IntArray
    drawn: DrawnTokens | None = None
    sample: int = 0

    def get(self) -> list[int]:
        """The tokens, as soon as they are known; none for a row that has none."""
        if self.drawn is None:
            return [int(token) for token in self.said]
        token = int(self.drawn.token_ids()[self.sample])
        return [token] if token >= 0 else []


@dataclass
class _LaneText:
    """What a lane's sequence has generated, and the matcher that has read it.

    Attributes:
        matcher: None where it has to be made anew.
        used: number of the last plan that needed it.
    """

    grammar: str
    tokens: list[int]
    matcher: LLMatcher | None = None
    used: int = 0


class GrammarMasks:
    """The matchers of one executor.

    Its thread starts with it, on the CPUs that the calling thread may use then: make it before that thread is bound to
    one of them.

    Args:
        tokenizer: of the model.
        vocab_size: of the model.
    """

    def __init__(self, tokenizer: LLTokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._not_eos = ~packed_mask(np.array(tokenizer.eos_tokens, np.int32), vocab_size)
        self._newest: dict[int, _NewTokens] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._thread.submit(lambda: None).result()
        # Of the thread:
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._texts: dict[int, _LaneText] = {}
        self._num_plans = 0

    def begin(self, lanes: Sequence[ConstrainedLane], started: set[int]) -> "Future[LaneMasks] | None":
        """Begin to fill the masks of the lanes that have a grammar; None if none has.

        Args:
            lanes: of a plan's constrained samples.
            started: those of them that the plan starts.

        Returns:
            Their masks, to come.
        """
        jobs = []
        for lane in lanes:
            number, constraints = lane.start.message.lane, lane.start.message.constraints
            if not constraints.grammar:
                continue
            generated = lane.start.tokens[lane.start.message.num_prompt :]
            news = _NewTokens(generated) if number in started else self._newest[number]
            jobs.append((lane, number in started, news))
        return self._thread.submit(self._fill, jobs) if jobs else None

    def launched(self, lanes: Sequence[ConstrainedLane], samples: Sequence[int], step: DrawnTokens) -> None:
        """A step was launched that draws these lanes' tokens, each as one of its samples."""
        for lane, sample in zip(lanes, samples, strict=True):
            if lane.start.message.constraints.grammar:
                self._newest[lane.start.message.lane] = _NewTokens(_NO_TOKENS, step, sample)

    def forget_lanes(self) -> None:
        """An epoch is over: its lanes are started anew before they are needed again."""
        if self._newest:
            self._newest.clear()
            self._thread.submit(self._texts.clear)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    # --- in the thread ---

    def _fill(self, jobs: list[tuple[ConstrainedLane, bool, _NewTokens]]) -> LaneMasks:
        self._num_plans += 1
        masks = np.zeros((len(jobs), mask_words(self._vocab_size)), np.int32)
        for (lane, starts, news), mask in zip(jobs, masks, strict=True):
            self._mask(lane, news, mask, starts=starts)
        for text in self._texts.values():
            if text.used + _IDLE_PLANS < self._num_plans:  # its sequence has most likely ended
                text.matcher = None
        return LaneMasks(masks, {lane.start.message.lane: row for row, (lane, *_) in enumerate(jobs)})

    def _mask(self, lane: ConstrainedLane, news: _NewTokens, mask: IntArray, *, starts: bool) -> None:
        """Fill a lane's mask, which is all zeros and stays so where the text cannot go on."""
        number, stops = lane.start.message.lane, lane.start.stop_token_ids
        if starts:
            self._texts[number] = _LaneText(lane.start.message.constraints.grammar, [])
        text = self._texts[number]
        text.used = self._num_plans
        tokens = [token for token in news.get() if token not in stops]  # a sequence with a stop token has ended
        text.tokens += tokens
        if text.matcher is None:
            self._replay(text)
        elif tokens:
            text.matcher.consume_tokens(tokens)
        if not self._allows(text, stops, mask):
            # Matchers of a grammar share what its lexer has built, which has a limit: other texts may have used it up.
            self._compiled.pop(text.grammar, None)
            self._replay(text)
            if not self._allows(text, stops, mask):
                assert text.matcher is not None
                log.warning("grammar failed", lane=number, reason=text.matcher.get_error().splitlines()[0][:200])
                mask[:] = 0
        if lane.mask is not None:
            mask &= lane.mask

    def _replay(self, text: _LaneText) -> None:
        text.matcher = self._compile(text.grammar).deep_copy()
        if text.tokens:
            text.matcher.consume_tokens(text.tokens)

    def _allows(self, text: _LaneText, stops: IntArray, mask: IntArray) -> bool:
        """Fill the mask of the token after a text. False if the matcher has given up."""
        matcher = text.matcher
        assert matcher is not None
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            return False
        mask &= self._not_eos
        if matcher.is_accepting():
            allow(mask, stops, self._vocab_size)
        return True

    def _compile(self, grammar: str) -> LLMatcher:
        matcher = self._compiled.pop(grammar, None)
        if matcher is None:
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=parser_limits())
        self._compiled[grammar] = matcher
        if len(self._compiled) > _COMPILED:
            self._compiled.popitem(last=False)
        return matcher
