"""What becomes of the answer to a plan: tokens are appended, ends noticed. Pure."""

from collections.abc import Iterable
from collections.abc import Sequence as Lists
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from common.messages import LATE, NO_NUMBERS, TOO_COMPLEX
from common.step_result import ResultColumns
from common.wire import IntArray
from scheduler_svc.core.executor.inflight_plan import InflightPlan
from scheduler_svc.core.executor.lanes import Lanes
from scheduler_svc.core.executor.pooled_results import take_results
from scheduler_svc.core.executor.prompt_logprobs import take_prompt_logprobs
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.step_output import SequenceEnd, StepLogprobs, StepOutput

Rows = npt.NDArray[np.int64]

NONE_IS_ALLOWED = "no token can be drawn: the request's constraints ban every one"
GRAMMAR_IS_TOO_COMPLEX = "the request's grammar is too complex: what may follow the text so far passes the limits"


def take_answer(plan: InflightPlan, result: ResultColumns, lanes: Lanes, model: str) -> StepOutput:
    """Give sequences their tokens and pooled results, or an end with an error where there is none.

    A sequence that holds no lane any more, or another one, gets its token by itself; one that has ended gets none.
    """
    for sequence, end in plan.unsampled:
        sequence.num_written = max(sequence.num_written, end)
    tokens = result.token_ids
    is_held, has_token = lanes.serial[plan.lanes] == plan.serials, tokens >= 0
    if (is_held & has_token).all():  # as good as always
        rows: Rows | None = None
        output = _appended(plan.lanes, plan.sequences, tokens, lanes, model, plan.num_decodes, plan.returning)
    else:
        rows = np.flatnonzero(is_held & has_token)
        without = np.flatnonzero(is_held & ~has_token)
        num_decoded = int(rows.searchsorted(plan.num_decodes))
        output = _appended(plan.lanes[rows], _chosen(plan.sequences, rows), tokens[rows], lanes, model, num_decoded)
        lanes.inflight[plan.lanes[without]] -= 1
        output = _without_tokens(output, zip(_chosen(plan.sequences, without), tokens[without].tolist(), strict=True))
        alive = [i for i in np.flatnonzero(~is_held).tolist() if _awaits_token(plan.sequences[i])]
        if alive:
            num_decoded = sum(i < plan.num_decodes and bool(tokens[i] >= 0) for i in alive)
            arrived = [(plan.sequences[i], int(tokens[i])) for i in alive]
            without_any = [(sequence, token) for sequence, token in arrived if token < 0]
            for sequence, _ in without_any:
                sequence.num_inflight -= 1
            output = _without_tokens(output, without_any)
            output = _with_tokens(output, [(sequence, token) for sequence, token in arrived if token >= 0], num_decoded)
            rows = np.concatenate([rows, [i for i in alive if tokens[i] >= 0]]).astype(np.int64)
        if plan.returning:
            output = replace(output, returned=[s for s in plan.returning if s in output.sequences])
    if len(plan.logprob_counts):
        output = _with_logprobs(output, plan, result, rows)
    if plan.asked_prompts is not None:
        came = take_prompt_logprobs(plan.asked_prompts, result, model, output.numberless)
        output = replace(output, prompt_logprobs=came)
    if plan.asked_results is not None:
        ends, numberless = take_results(plan.asked_results, result.pooled)
        output = replace(output, ends=[*output.ends, *ends], numberless=[*output.numberless, *numberless])
    return output


def _awaits_token(sequence: Sequence) -> bool:
    """Whether a sequence without this lane takes its row's token; counts the row if it is void."""
    if sequence.num_void:
        sequence.num_void -= 1
        sequence.num_inflight -= 1
        return False
    return sequence.state is not State.FINISHED


def _without_tokens(output: StepOutput, rows: Iterable[tuple[Sequence, int]]) -> StepOutput:
    """The output with what became of rows that brought no token."""
    ends, numberless, unmasked = [*output.ends], [*output.numberless], [*output.unmasked]
    for sequence, why in rows:
        if why == NO_NUMBERS:
            numberless.append(sequence)
        elif why == LATE:
            unmasked.append(sequence)
        elif why == TOO_COMPLEX:
            ends.append(SequenceEnd(sequence, "error", GRAMMAR_IS_TOO_COMPLEX, "grammar_too_complex"))
        else:
            ends.append(SequenceEnd(sequence, "error", NONE_IS_ALLOWED, "no_token"))
    return replace(output, ends=ends, numberless=numberless, unmasked=unmasked)


def _appended(
    held: IntArray,
    sequences: list[Sequence],
    tokens: IntArray,
    lanes: Lanes,
    model: str,
    num_decoded: int,
    returned: Lists[Sequence] = (),
) -> StepOutput:
    positions = lanes.append(held, tokens)
    is_stop = lanes.is_stop(held, tokens)
    return StepOutput(
        sequences=sequences,
        tokens=tokens.tolist(),
        firsts=_chosen(sequences, (positions == 0).nonzero()[0]),
        ends=[SequenceEnd(sequence, "stop") for sequence in _chosen(sequences, is_stop.nonzero()[0])],
        model=model,
        positions=positions,
        num_decoded=num_decoded,
        returned=returned,
    )


def _with_tokens(output: StepOutput, arrived: list[tuple[Sequence, int]], num_decoded: int) -> StepOutput:
    """The output with tokens of sequences that hold no lane any more; so many of the tokens were decoded."""
    sequences, tokens, positions = [*output.sequences], [*output.tokens], []
    firsts, late, stopped, exhausted = [*output.firsts], [], [], []
    for sequence, token in arrived:
        sequence.num_inflight -= 1
        sequences.append(sequence)
        tokens.append(token)
        positions.append(sequence.num_output)
        sequence.num_written = len(sequence.tokens)
        sequence.tokens.append(token)
        if sequence.state is State.WAITING:
            late.append(sequence)
        if sequence.num_output == 1:
            firsts.append(sequence)
        if token in sequence.params.stop_token_ids:
            stopped.append(SequenceEnd(sequence, "stop"))
        elif len(sequence.tokens) >= sequence.max_length:
            exhausted.append(SequenceEnd(sequence, "length"))
    return replace(
        output,
        sequences=sequences,
        tokens=tokens,
        firsts=firsts,
        num_decoded=output.num_decoded + num_decoded,
        late=late,
        ends=[*output.ends, *stopped, *exhausted],
        positions=np.concatenate([output.positions, np.array(positions, np.int32)]),
    )


def _with_logprobs(output: StepOutput, plan: InflightPlan, result: ResultColumns, rows: Rows | None) -> StepOutput:
    """The output with the log-probabilities of its tokens, which are those of the plan's `rows` (None for all)."""
    counts, ids, values = plan.logprob_counts, result.logprob_ids, result.logprobs
    if rows is not None:
        starts = (np.cumsum(counts) - counts)[rows]
        counts = counts[rows]
        places = np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        ids, values = ids[places], values[places]
    ends = np.cumsum(counts).tolist()
    for i in np.flatnonzero(counts).tolist():
        entries = slice(ends[i] - int(counts[i]), ends[i])
        output.sequences[i].logprob_ids.frombytes(ids[entries].tobytes())
        output.sequences[i].logprobs.frombytes(values[entries].tobytes())
    return replace(output, logprobs=StepLogprobs(counts, ids, values))


def _chosen(sequences: list[Sequence], rows: Rows) -> list[Sequence]:
    return [sequences[i] for i in rows.tolist()]
