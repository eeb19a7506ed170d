"""What the scheduler gives back to its caller."""

from dataclasses import dataclass, field

from common.messages import FinishReason
from scheduler_svc.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """How a sequence ended; `error` and `code` say why, if it is an error."""

    sequence: Sequence
    reason: FinishReason
    error: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a commit gave.

    Attributes:
        sequences, tokens: those that got a token, and the token.
        firsts: those among them whose first token it is.
        ends: those among them that ended with it.
        model: what computed the tokens.
    """

    sequences: list[Sequence] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    firsts: list[Sequence] = field(default_factory=list)
    ends: list[SequenceEnd] = field(default_factory=list)
    model: str = ""


@dataclass(slots=True)
class SchedulerStats:
    """Counts since the start.

    Attributes:
        resumed: sequences that lost their executor and waited for another.
        strikes: given to sequences.
        struck_out: sequences that ended by them.
        model_changes: sequences that went on with another model, because no executor had theirs any more.
        recomputed_tokens: computed once more, after a preemption or the loss of an executor.
        cached_prompt_tokens: prompt tokens that the prefix cache held at a sequence's first admission.
        cached_resumed_tokens: tokens that it held when a preempted or resumed sequence came back.
        prefill_tokens: computed in rows of prompts, again after a preemption or a loss too.
        decode_tokens: computed in rows of one token that was sampled before.
    """

    preemptions: int = 0
    resumed: int = 0
    strikes: int = 0
    struck_out: int = 0
    model_changes: int = 0
    recomputed_tokens: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    cached_resumed_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    output_tokens: int = 0
