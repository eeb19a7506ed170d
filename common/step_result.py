"""What a plan gave, as numpy arrays, checked against the plan."""

from typing import NamedTuple

import numpy as np

from common import messages as m
from common.errors import WireError
from common.pooled_rows import PooledRows
from common.prompt_targets import PromptTargets
from common.sampling_columns import FloatArray
from common.wire import IntArray, array_from, check_range, int32_array

MAX_LOGPROB = 1.0  # rounding may take a certain token's above 0

_NO_TOKENS: IntArray = np.zeros(0, np.int32)
_NO_FLOATS: FloatArray = np.zeros(0, np.float32)


class ResultColumns(NamedTuple):
    """A checked result: int32 [samples], int32 and float32 [log-probabilities] twice, and float32 [sum of the pooled
    rows' sizes]; see `common.messages.StepResult`."""

    token_ids: IntArray
    logprob_ids: IntArray
    logprobs: FloatArray
    prompt_logprob_ids: IntArray = _NO_TOKENS
    prompt_logprobs: FloatArray = _NO_FLOATS
    pooled: FloatArray = _NO_FLOATS

    @classmethod
    def of_tokens(cls, token_ids: IntArray) -> "ResultColumns":
        """Tokens without log-probabilities."""
        return cls(token_ids, _NO_TOKENS, _NO_FLOATS)

    def message(self, epoch: int, step: int, compute_us: int) -> m.StepResult:
        """The result as it is sent."""
        return m.StepResult(
            epoch=epoch,
            step=step,
            token_ids=self.token_ids.astype("<i4").tobytes(),
            compute_us=compute_us,
            logprob_ids=self.logprob_ids.astype("<i4").tobytes(),
            logprobs=self.logprobs.astype("<f4").tobytes(),
            prompt_logprob_ids=self.prompt_logprob_ids.astype("<i4").tobytes(),
            prompt_logprobs=self.prompt_logprobs.astype("<f4").tobytes(),
            pooled=self.pooled.astype("<f4").tobytes(),
        )


def parse_result(
    result: m.StepResult,
    num_samples: int,
    vocab_size: int,
    logprob_counts: IntArray = _NO_TOKENS,
    prompt_targets: PromptTargets | None = None,
    pooled: PooledRows | None = None,
) -> ResultColumns:
    """Check a result against the plan it answers.

    Args:
        num_samples, logprob_counts, prompt_targets, pooled: of the plan.

    Raises:
        WireError: another number of tokens than the plan sampled, or of log-probabilities or pooled values than it
            asked for, an id that is neither of the vocabulary nor says why there is no token (`NO_TOKEN` to `LATE`), or
            a log-probability that is no number.
    """
    token_ids = int32_array("token_ids", result.token_ids)
    if len(token_ids) != num_samples:
        raise WireError(f"result of step {result.step} has {len(token_ids)} tokens, its plan samples {num_samples}")
    check_range("token_ids", token_ids, m.LATE, vocab_size - 1)
    asks_nothing = not len(logprob_counts) and prompt_targets is None
    came = result.logprob_ids or result.logprobs or result.prompt_logprob_ids or result.prompt_logprobs
    if pooled is None and asks_nothing and not (came or result.pooled):  # as good as always
        return ResultColumns.of_tokens(token_ids)
    values_of_pooled = _pooled_values(result.pooled, pooled)
    ids, values = _logprobs("logprob", result.logprob_ids, result.logprobs, logprob_counts, token_ids, vocab_size)
    prompt_counts = _NO_TOKENS if prompt_targets is None else prompt_targets.counts
    prompt_ids, prompt_values = _prompt_logprobs(result, prompt_counts, vocab_size)
    return ResultColumns(token_ids, ids, values, prompt_ids, prompt_values, values_of_pooled)


def _pooled_values(raw: bytes, pooled: PooledRows | None) -> FloatArray:
    values = array_from("pooled", raw, "<f4")
    num_asked = 0 if pooled is None else int(pooled.sizes.sum(dtype=np.int64))
    if len(values) != num_asked:
        raise WireError(f"the result has {len(values)} pooled values, its plan asks for {num_asked}")
    return values


def _logprobs(
    name: str, raw_ids: bytes, raw_values: bytes, counts: IntArray, firsts: IntArray, vocab_size: int
) -> tuple[IntArray, FloatArray]:
    """Log-probabilities and the tokens that they are of.

    Args:
        counts: of each entry.
        firsts: the token that each entry begins with; a negative one for none, then its values say nothing.
    """
    ids, values = _columns(name, raw_ids, raw_values, counts)
    if len(ids):
        check_range(f"{name}_ids", ids, 0, vocab_size - 1)
        check_range(f"{name}s", values[np.repeat(firsts >= 0, counts)], -np.inf, MAX_LOGPROB)
        told = (counts > 0) & (firsts >= 0)
        if (ids[(np.cumsum(counts) - counts)[told]] != firsts[told]).any():
            raise WireError(f"the first {name} of an entry is not that of its token")
    return ids, values


def _prompt_logprobs(result: m.StepResult, counts: IntArray, vocab_size: int) -> tuple[IntArray, FloatArray]:
    """Log-probabilities of targets, and minus their ranks among the tokens that the others are of."""
    ids, values = _columns("prompt_logprob", result.prompt_logprob_ids, result.prompt_logprobs, counts)
    if len(ids):
        firsts = np.cumsum(counts) - counts
        check_range("ranks of prompt tokens", -ids[firsts], 0, vocab_size)  # 0 where scores are no numbers
        check_range("prompt_logprob_ids", np.delete(ids, firsts), 0, vocab_size - 1)
        check_range("prompt_logprobs", values, -np.inf, MAX_LOGPROB)
    return ids, values


def _columns(name: str, raw_ids: bytes, raw_values: bytes, counts: IntArray) -> tuple[IntArray, FloatArray]:
    """As many ids and values as the entries have together."""
    ids, values = int32_array(f"{name}_ids", raw_ids), array_from(f"{name}s", raw_values, "<f4")
    expected = int(counts.sum(dtype=np.int64))
    if len(ids) != expected or len(values) != expected:
        raise WireError(f"the result has {len(values)} {name}s of {len(ids)} tokens, its plan asks for {expected}")
    return ids, values
