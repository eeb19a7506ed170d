"""Lanes with grammars, as the masks of a plan's rows are asked for and what is drawn is told."""

import random
from collections.abc import Sequence

import numpy as np
from llguidance import LLTokenizer

from common import messages as m
from common.constraints import StartedLane
from common.model_files import DEMO_MODEL_DIR
from common.wire import IntArray
from executor_svc.runner.grammar_masks import GrammarMasks
from executor_svc.staging.constrained_lanes import ConstrainedLane

VOCAB, EOS = 2048, 2045
TOKENIZER = LLTokenizer(str(DEMO_MODEL_DIR / "tokenizer.json"), n_vocab=VOCAB)


def bits(mask: IntArray) -> list[int]:
    """Tokens that a mask allows."""
    allowed: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return allowed


class Drawn:
    """A step that has drawn these tokens."""

    def __init__(self, *tokens: int) -> None:
        self._tokens = tokens

    def token_ids(self) -> IntArray:
        return np.array(self._tokens, np.int32)


class Lane:
    """A lane that draws among the tokens that its mask allows."""

    def __init__(
        self,
        masks: GrammarMasks,
        number: int,
        grammar: str,
        of: Sequence[int] = (),
        generated: Sequence[int] = (),
    ) -> None:
        start = m.LaneStart(
            lane=number,
            num_prompt=1,
            tokens=np.array([1, *generated], "<i4").tobytes(),
            constraints=m.Constraints(grammar=grammar, allowed_token_ids=np.array(of, "<i4").tobytes()),
            stop_token_ids=np.array([EOS], "<i4").tobytes(),
        )
        self.lane = ConstrainedLane.started(StartedLane.of(start), VOCAB)
        self._masks = masks
        self._rng = random.Random(number)
        self._is_new = True
        self.tokens: list[int] = []

    def allowed(self) -> list[int]:
        """Tokens that may come next."""
        number = self.lane.start.message.lane
        pending = self._masks.begin([self.lane], {number} if self._is_new else set())
        assert pending is not None
        self._is_new = False
        result = pending.result()
        mask = result.masks[result.rows[number]]
        return bits(mask)

    def draw(self, count: int, among: set[int] | None = None) -> None:
        """Draw so many tokens, of these where one of them is allowed."""
        for _ in range(count):
            allowed = self.allowed()
            assert allowed, f"no token is allowed after {len(self.tokens)}"
            wanted = [token for token in allowed if among and token in among] or allowed
            token = self._rng.choice([token for token in wanted if token != EOS] or wanted)
            self.tokens.append(token)
            self._masks.launched([self.lane], [0], Drawn(token))
