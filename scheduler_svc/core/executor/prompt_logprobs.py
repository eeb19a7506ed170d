"""Log-probabilities of prompts: what a plan asks for, and what becomes of the answer. Pure.

The logits of position p say how likely the prompt's token p + 1 is. Positions below a sequence's `num_covered` have
said it, and are not asked again.
"""

from collections.abc import Collection
from collections.abc import Sequence as Lists
from typing import NamedTuple

import numpy as np

from common.prompt_targets import PromptTargets
from common.step_result import ResultColumns
from scheduler_svc.core.executor.block_manager import TOKEN_BYTES
from scheduler_svc.core.executor.plan_builder import PromptRow
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.step_output import PromptLogprobs


class AskedPrompts(NamedTuple):
    """What a plan asks of prompts.

    Attributes:
        targets: as the plan has them.
        rows: sequences and their positions, in the order of the targets.
    """

    targets: PromptTargets
    rows: list[tuple[Sequence, range]]

    def columns(self) -> dict[str, bytes]:
        """As a plan has them."""
        return {
            "prompt_logprob_tokens": self.targets.tokens.tobytes(),
            "prompt_logprob_targets": self.targets.targets.tobytes(),
            "prompt_logprob_counts": self.targets.counts.tobytes(),
        }


def ask_prompts(rows: Lists[PromptRow], first_token: int) -> AskedPrompts | None:
    """What a plan asks of prompts; None if nothing.

    Args:
        rows: the plan's prompt rows.
        first_token: entry of the plan's `token_ids` that they begin with.
    """
    tokens, targets, counts, asked = [], [], [], []
    for row in rows:
        if positions := row.wanted:
            first = first_token + positions.start - row.grant.start
            tokens.append(np.arange(first, first + len(positions), dtype=np.int32))
            targets.append(np.frombuffer(row.raw, np.int32, len(positions), (positions.start + 1) * TOKEN_BYTES))
            counts.append(np.full(len(positions), row.sequence.num_prompt_logprobs, np.int32))
            asked.append((row.sequence, positions))
        first_token += row.grant.count
    if not asked:
        return None
    return AskedPrompts(PromptTargets(*map(np.concatenate, (tokens, targets, counts))), asked)


def take_prompt_logprobs(
    asked: AskedPrompts, result: ResultColumns, model: str, numberless: Collection[Sequence] = ()
) -> list[PromptLogprobs]:
    """Give the log-probabilities of an answer to their sequences. Returns what is new.

    A sequence that was preempted, and admitted again before the answer came, has asked for some of them twice: the
    first answer counts. One that has ended gets none, nor one that has gone on with another model than `model`, which
    gave the answer: there it has asked for these positions again, and a prompt's log-probabilities are of one model.
    Nor do those of `numberless`, whose scores were no numbers.
    """
    came, end = [], 0
    for sequence, positions in asked.rows:
        width, covered = sequence.num_prompt_logprobs, sequence.num_covered
        begin, end = end, end + width * len(positions)
        if sequence.state is State.FINISHED or sequence.model != model or covered not in positions:
            continue
        if sequence in numberless:
            continue
        begin += width * (covered - positions.start)
        ids, values = result.prompt_logprob_ids[begin:end].tobytes(), result.prompt_logprobs[begin:end].tobytes()
        sequence.prompt_logprob_ids.frombytes(ids)
        sequence.prompt_logprobs.frombytes(values)
        came.append(PromptLogprobs(sequence, covered, ids, values))
    return came
