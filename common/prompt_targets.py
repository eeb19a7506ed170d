"""Which log-probabilities of prompts a plan asks for, as checked columns."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from common import messages as m
from common.errors import WireError
from common.wire import IntArray, check_range, int32_array


@dataclass(frozen=True, slots=True)
class PromptTargets:
    """Prompt tokens of which a plan asks how likely they are, each after the tokens before it.

    Attributes:
        tokens: int32 [targets], ascending; entries of the plan's `token_ids` whose logits say it.
        targets: int32 [targets], the prompts' tokens that come next.
        counts: int32 [targets], log-probabilities of each: its own, and those of the likeliest tokens; at least 1.
    """

    tokens: IntArray
    targets: IntArray
    counts: IntArray

    @property
    def num_top(self) -> int:
        """Likeliest tokens of a target at most."""
        return int(self.counts.max()) - 1

    @classmethod
    def of_plan(cls, plan: m.Plan, token_ids: IntArray, vocab_size: int) -> Self | None:
        """A plan's, checked against its tokens; None if it asks for none.

        Raises:
            WireError: columns of different lengths, entries that are out of range or not known, or too many of them.
        """
        if not (plan.prompt_logprob_tokens or plan.prompt_logprob_targets or plan.prompt_logprob_counts):
            return None
        tokens = int32_array("prompt_logprob_tokens", plan.prompt_logprob_tokens)
        targets = int32_array("prompt_logprob_targets", plan.prompt_logprob_targets)
        counts = int32_array("prompt_logprob_counts", plan.prompt_logprob_counts)
        if not len(tokens) == len(targets) == len(counts):
            raise WireError(
                f"prompt_logprob_tokens, _targets and _counts have {len(tokens)}, {len(targets)} and {len(counts)} "
                f"entries"
            )
        check_range("prompt_logprob_tokens", tokens, 0, len(token_ids) - 1)
        if (np.diff(tokens) <= 0).any():
            raise WireError("prompt_logprob_tokens are not strictly ascending")
        if (token_ids[tokens] < 0).any():
            raise WireError("prompt_logprob_tokens has a token that is no prompt's")
        check_range("prompt_logprob_targets", targets, 0, vocab_size - 1)
        check_range("prompt_logprob_counts", counts, 1, m.MAX_LOGPROBS)
        if (num_values := len(tokens) * int(counts.max())) > m.MAX_PLAN_PROMPT_LOGPROBS:
            limit = m.MAX_PLAN_PROMPT_LOGPROBS
            raise WireError(f"the plan asks for {num_values} log-probabilities of prompts, the limit is {limit}")
        return cls(tokens, targets, counts)
