"""One step: how a client wants tokens to be drawn, the plan that says so to an executor, and the executor's answer."""

from typing import Annotated

from msgspec import Meta

from common.messages.base import Count, Epoch, Message, Pooling, Positive, Step, Task, Text

MAX_LOGPROBS = 21
MAX_PLAN_PROMPT_LOGPROBS = 2**17  # of a plan: its result has 8 bytes for each
MAX_POOLED_TOKEN_IDS = 16
MAX_HIDDEN_SIZE = 2**16
MAX_PLAN_POOLED_FLOATS = 2**19  # of a plan: its result has 4 bytes for each
MAX_BIASES = 300
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 64
MAX_GRAMMAR_CHARS = 2**18

NO_TOKEN = -1
"""In place of a sampled row's token: every token is banned."""
NO_NUMBERS = -2
"""In place of a sampled row's token: the model's scores are no numbers, whatever the row's constraints do to them."""
TOO_COMPLEX = -3
"""In place of a sampled row's token: the row's grammar passes the limits of `common.grammars` after this text."""
LATE = -4
"""In place of a sampled row's token: the mask of the row's grammar was not there in time, or that of a row before it
since the lane's start."""

TASKS: dict[Pooling, Task] = {"none": "generate", "hidden": "embed", "logits": "score"}

Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]


class Constraints(Message, frozen=True):
    """What a request asks of its tokens' scores: a pure function of these fields and of the sequence's tokens so far,
    so that any executor can go on with it. `kernels.reference.adjust_logits` defines it.

    Attributes:
        presence_penalty, frequency_penalty: taken from generated tokens' scores, once and for each time; 0 is off.
        repetition_penalty: divides positive scores of the prompt's tokens and of generated ones, and multiplies
            others; 1 is off.
        bias_token_ids, biases: int32 and float32 [biases, `MAX_BIASES` at most]; distinct tokens, and what is added to
            their scores, -100 to 100.
        min_tokens: the sequence's stop tokens are banned before it has so many generated ones.
        bad_words: each int32 [tokens, 1 to `MAX_BAD_WORD_TOKENS`]; tokens that are not generated in this order.
        allowed_token_ids: int32, distinct; all other tokens are banned. Empty allows all.
        grammar: what the text has to match, in the words of the library that `Hello.grammars` names; empty allows all.
            The sequence's stop tokens are allowed where the text is complete.
    """

    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100.0)] = 1.0
    bias_token_ids: bytes = b""
    biases: bytes = b""
    min_tokens: Count = 0
    bad_words: Annotated[tuple[bytes, ...], Meta(max_length=MAX_BAD_WORDS)] = ()
    allowed_token_ids: bytes = b""
    grammar: Annotated[str, Meta(max_length=MAX_GRAMMAR_CHARS)] = ""


class SamplingParams(Message, frozen=True):
    """How tokens are drawn. Filters apply in the order temperature, top_k, top_p, min_p.

    Attributes:
        max_tokens: tokens to generate at most.
        temperature: 0 is greedy.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the smallest set of likeliest tokens whose probability reaches top_p; 1 keeps all.
        min_p: drop tokens less likely than min_p times the likeliest; 0 keeps all.
        seed: of the draw; sequence i of a request draws with `seed + i` (mod 2**64).
        stop_token_ids: the sequence ends with the first of these (the frontend puts the model's EOS here).
        logprobs: log-probabilities that come with each token: 0 for none, 1 for its own, 1 + n for its own and those of
            the n likeliest. They are of the model's own scores, before constraints, temperature and filters.
        prompt_logprobs: likewise, of each token of the prompt after its first one; they come with sequence 0.
        constraints: what else is asked of the tokens; None for nothing, which costs nothing.
        pooling: what is asked for instead of tokens, one result of the whole prompt: "hidden", the hidden state of its
            last position after the final norm, float32 [hidden_size], not normalized; "logits", the model's own scores
            of `pooled_token_ids` after its last position, float32 [ids]. Then `max_tokens` is 1, and `logprobs`,
            `prompt_logprobs` and `constraints` ask for nothing.
        pooled_token_ids: with "logits" 1 to `MAX_POOLED_TOKEN_IDS`, none otherwise.
    """

    max_tokens: Positive
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    top_k: Count = 0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    stop_token_ids: Annotated[tuple[Count, ...], Meta(max_length=256)] = ()
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] = 0
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] = 0
    constraints: Constraints | None = None
    pooling: Pooling = "none"
    pooled_token_ids: Annotated[tuple[Count, ...], Meta(max_length=MAX_POOLED_TOKEN_IDS)] = ()

    @property
    def task(self) -> Task:
        """What an executor has to take for it."""
        return TASKS[self.pooling]


class LaneStart(Message, frozen=True):
    """What an executor has to know of a lane whose sequence has constraints, from the lane's first sampled row on.

    To these tokens the executor adds those that it samples for the lane, until the lane's next start.

    Attributes:
        lane: of a row that is sampled.
        num_prompt: how many of the tokens are the prompt.
        tokens: int32, as many as the row's context has: all known tokens of the sequence.
        stop_token_ids: int32, the sequence's, if it has a `min_tokens` or a grammar.
    """

    lane: Count
    num_prompt: Count
    tokens: bytes
    constraints: Constraints
    stop_token_ids: bytes = b""


class Plan(Message, frozen=True, tag="plan"):
    """One step for one executor; self-contained, so the executor remembers no sequence between plans, except for what
    starts of lanes said.

    Row `r` computes `query_lens[r]` tokens that end at position `context_lens[r] - 1` and attends to positions
    `0 .. context_lens[r] - 1` of its block table. Rows are ragged in `token_ids`, `slot_mapping` and `block_ids`.

    Attributes:
        lanes: int32 [rows], distinct; index of the row in the executor's last-token buffer.
        query_lens, context_lens: int32 [rows], `1 <= query_lens <= context_lens`.
        token_ids: int32 [tokens]; -1 (only in a row of one token) reads the lane's last sampled token.
        slot_mapping: int32 [tokens], where each token's K and V go, or -1 if that position is cached already.
        block_counts: int32 [rows], entries of each row's table, `ceil(context_len / block_size)`.
        block_ids: int32 [sum(block_counts)].
        sample_rows: int32 [samples], ascending; rows whose last position is sampled. The token goes into the
            result and into the row's lane.
        temperatures, top_ps, min_ps: float32 [samples]; top_ks: int32 [samples], 0 turns it off; seeds: uint64
            [samples]. All five are empty when every sample is greedy (temperature 0).
        constrained: int32, ascending; entries of `sample_rows` whose lanes have constraints.
        lane_starts: of those of these lanes whose sequences are sampled for the first time since they were admitted.
        logprob_counts: int32 [samples], `SamplingParams.logprobs` of each; empty when none wants any.
        prompt_logprob_tokens: int32 [targets], ascending; entries of `token_ids`, none of them -1, whose logits say
            how likely the prompt's next token is.
        prompt_logprob_targets: int32 [targets], that next token.
        prompt_logprob_counts: int32 [targets], `SamplingParams.prompt_logprobs` of each. The greatest of them times the
            number of targets is `MAX_PLAN_PROMPT_LOGPROBS` at most.
        pooled_rows: int32 [pooled], ascending, none of them in `sample_rows`; rows whose last position gives a pooled
            result.
        pooled_counts: int32 [pooled], how many tokens' logits are the row's result; 0 for its hidden state. All results
            together have `MAX_PLAN_POOLED_FLOATS` at most.
        pooled_token_ids: int32 [sum(pooled_counts)], these tokens.
    """

    epoch: Epoch
    step: Step
    lanes: bytes
    query_lens: bytes
    context_lens: bytes
    token_ids: bytes
    slot_mapping: bytes
    block_counts: bytes
    block_ids: bytes
    sample_rows: bytes
    constrained: bytes = b""
    lane_starts: tuple[LaneStart, ...] = ()
    logprob_counts: bytes = b""
    prompt_logprob_tokens: bytes = b""
    prompt_logprob_targets: bytes = b""
    prompt_logprob_counts: bytes = b""
    pooled_rows: bytes = b""
    pooled_counts: bytes = b""
    pooled_token_ids: bytes = b""
    temperatures: bytes = b""
    top_ks: bytes = b""
    top_ps: bytes = b""
    min_ps: bytes = b""
    seeds: bytes = b""


class StepResult(Message, frozen=True, tag="result"):
    """What one plan gave.

    Attributes:
        token_ids: int32, one for each entry of the plan's `sample_rows`, in that order. A row without one has
            `NO_NUMBERS`, if a score of the model is NaN or +inf, or all are -inf and the row has no constraints; else
            `LATE` or `TOO_COMPLEX`, if that is so; else `NO_TOKEN`. Rows of a late lane are `LATE` until it is started
            again.
        compute_us: microseconds from the plan's arrival in the runner to its tokens.
        logprob_ids, logprobs: int32 and float32 [sum of the plan's `logprob_counts`], tokens and their natural
            log-probabilities: for each sample the token that was drawn, then the likeliest ones in descending order.
        prompt_logprob_ids, prompt_logprobs: likewise [sum of the plan's `prompt_logprob_counts`]: for each of its
            targets that one, then the likeliest ones. In the place of the target's id, which the plan has, is minus its
            rank: how many tokens of the vocabulary are as likely or likelier, as vLLM counts.
        pooled: float32, the results of the plan's `pooled_rows`, ragged: hidden_size values, or as many as the row's
            `pooled_counts`. A row has a value that is NaN or infinite, and so no result, if the model's are no numbers.
    """

    epoch: Epoch
    step: Step
    token_ids: bytes
    compute_us: Count
    logprob_ids: bytes = b""
    logprobs: bytes = b""
    prompt_logprob_ids: bytes = b""
    prompt_logprobs: bytes = b""
    pooled: bytes = b""


class StepFailed(Message, frozen=True, tag="failed"):
    """A plan could not be run (out of memory, a kernel error). It ends the epoch; the executor says Hello again."""

    epoch: Epoch
    step: Step
    error: Text
