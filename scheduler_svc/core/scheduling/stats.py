"""What the scheduler counts since its start. Nothing is decided by these counts."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from scheduler_svc.core.executor.plan_builder import PromptRow
from scheduler_svc.core.sequence import Sequence


class Move(NamedTuple):
    """What a plan did to a sequence, as `Mark` says it."""

    what: Literal["admitted", "prefill", "preempted"]
    sequence: Sequence
    epoch: int
    tokens: int = 0
    cached: int = 0


@dataclass(slots=True)
class Moves:
    """Sequences that moved since they were last asked for.

    Attributes:
        admitted: to an executor for the first time.
        interrupted: with tokens, that lost their lane and wait again; and the epoch where they ran.
        moves: all that plans did, in its order.
    """

    admitted: list[Sequence] = field(default_factory=list)
    interrupted: list[tuple[Sequence, int]] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    def prefilled(self, rows: Iterable[PromptRow], epoch: int) -> None:
        """A plan computes these rows."""
        self.moves += [Move("prefill", row.sequence, epoch, row.grant.count) for row in rows]


@dataclass(slots=True)
class SchedulerStats:
    """Counts since the start.

    Attributes:
        resumed: sequences that lost their executor and waited for another.
        strikes: given to sequences.
        numberless: rows whose scores, or results, were no numbers.
        late_rows: rows whose grammars' masks were not there in time.
        struck_out: sequences that ended by them.
        model_changes: sequences with an answer, be it log-probabilities of the prompt only, that went on with another
            model, because no executor had theirs any more.
        recomputed_tokens: positions that an answered plan had written and that are computed again, because their
            sequence lost its blocks, or the scheduler was restarted.
        pools_adopted: pools that another epoch continued with what was in them.
        queried_prompt_tokens: prompt tokens of sequences at their first admission, which asks the prefix cache.
        cached_prompt_tokens: prompt tokens that the prefix cache held at a sequence's first admission.
        cached_resumed_tokens: tokens that it held when a preempted or resumed sequence came back.
        prefill_tokens: computed in rows of prompts, again after a preemption or a loss too.
        decode_tokens: computed in rows of one token that was sampled before.
        accepted: sequences that came, not counting those of the journal.
        restored: requests that the journal brought back.
        answers, answer_tokens: sequences that ended with at least one token, and their tokens.
    """

    preemptions: int = 0
    resumed: int = 0
    strikes: int = 0
    numberless: int = 0
    late_rows: int = 0
    struck_out: int = 0
    model_changes: int = 0
    recomputed_tokens: int = 0
    pools_adopted: int = 0
    prompt_tokens: int = 0
    queried_prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    cached_resumed_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    output_tokens: int = 0
    accepted: int = 0
    restored: int = 0
    answers: int = 0
    answer_tokens: int = 0

    def accept(self, num_sequences: int, num_prompt: int) -> None:
        """A request was accepted."""
        self.accepted += num_sequences
        self.prompt_tokens += num_sequences * num_prompt

    def answered(self, num_output: int) -> None:
        """A sequence has ended with so many tokens."""
        self.answers += num_output > 0
        self.answer_tokens += num_output

    def planned_prompts(self, rows: Iterable[PromptRow]) -> None:
        """A plan computes these rows."""
        for row in rows:
            self.prefill_tokens += row.grant.count
            self.recomputed_tokens += row.num_recomputed
