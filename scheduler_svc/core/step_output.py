"""What the answer to a plan gives: tokens of sequences, and the ends of some."""

from collections.abc import Sequence as Lists
from dataclasses import dataclass, field
from itertools import compress

import numpy as np

from common.messages import FinishReason
from common.sampling_columns import FloatArray
from common.wire import IntArray
from scheduler_svc.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """How a sequence ended; `error` and `code` say why, if it is an error."""

    sequence: Sequence
    reason: FinishReason
    error: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class StepLogprobs:
    """Log-probabilities that came with a step's tokens, ragged by token.

    Attributes:
        counts: int32 [tokens], `SamplingParams.logprobs` of each token's sequence.
        ids, values: int32 and float32 [sum of counts], as in `StepResult`.
    """

    counts: IntArray
    ids: IntArray
    values: FloatArray


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of a prompt that came with a step.

    Attributes:
        first: the first position whose logits told them; the sequence has those of all positions before it.
        ids, values: int32 and float32 [positions, `num_prompt_logprobs` of the sequence], as in `StepResult`.
    """

    sequence: Sequence
    first: int
    ids: bytes
    values: bytes


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What an answer gave.

    Attributes:
        sequences, tokens: those that got a token, and the token; a sequence that had ended gets none.
        positions: how many tokens each of them had generated before, [sequences].
        firsts: those among them whose first token it is.
        ends: those among them that end with it, by a stop token or because they have `max_tokens`; and those that got
            none, because their constraints ban every one, or their grammars are too complex.
        model: what computed the tokens.
        logprobs: what came with the tokens; None if no sequence wants any.
        prompt_logprobs: of prompts, what is new; a sequence that had ended gets none.
        num_decoded: how many of `sequences` were in the plan before too: it computed the token before this one.
        returned: those of `sequences` that waited since their last token.
        late: those of `sequences` that wait already; their tokens were in flight.
        numberless: sequences that got none, because the model's scores are no numbers.
        unmasked: sequences that got none, because their grammars' masks were late.
        convictions: epochs that gave earlier rows of these sequences no numbers, though there are some; each with the
            client whose row it was.
    """

    sequences: list[Sequence] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    firsts: list[Sequence] = field(default_factory=list)
    ends: list[SequenceEnd] = field(default_factory=list)
    model: str = ""
    positions: IntArray = field(default_factory=lambda: np.zeros(0, np.int32))
    logprobs: StepLogprobs | None = None
    prompt_logprobs: Lists[PromptLogprobs] = ()
    num_decoded: int = 0
    returned: Lists[Sequence] = ()
    late: Lists[Sequence] = ()
    numberless: Lists[Sequence] = ()
    unmasked: Lists[Sequence] = ()
    convictions: Lists[tuple[int, str]] = ()

    def split(self) -> tuple["StepOutput | None", "StepOutput | None"]:
        """What goes to sequences that the journal follows, and what to the others, as readers are told it."""
        return self._of(is_journaled=True), self._of(is_journaled=False)

    def _of(self, *, is_journaled: bool) -> "StepOutput | None":
        rows = [sequence.is_journaled is is_journaled for sequence in self.sequences]
        ends = [end for end in self.ends if end.sequence.is_journaled is is_journaled]
        prompts = [came for came in self.prompt_logprobs if came.sequence.is_journaled is is_journaled]
        if not (any(rows) or ends or prompts):
            return None
        logprobs = self.logprobs
        if logprobs is not None:
            chosen = np.repeat(rows, logprobs.counts)
            counts = logprobs.counts[rows]
            logprobs = StepLogprobs(counts, logprobs.ids[chosen], logprobs.values[chosen]) if counts.any() else None
        return StepOutput(
            sequences=[*compress(self.sequences, rows)],
            tokens=[*compress(self.tokens, rows)],
            firsts=[sequence for sequence in self.firsts if sequence.is_journaled is is_journaled],
            ends=ends,
            model=self.model,
            positions=self.positions[rows],
            logprobs=logprobs,
            prompt_logprobs=prompts,
        )
