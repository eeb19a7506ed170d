"""One step: how a client wants tokens to be drawn, the plan that says so to an executor, and the executor's answer."""

from typing import Annotated

from msgspec import Meta

from common.messages.base import Count, Epoch, Message, Positive, Step, Text


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
    """

    max_tokens: Positive
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    top_k: Count = 0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    stop_token_ids: Annotated[tuple[Count, ...], Meta(max_length=256)] = ()


class Plan(Message, frozen=True, tag="plan"):
    """One step for one executor; self-contained, so the executor remembers no sequence between plans.

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
    temperatures: bytes = b""
    top_ks: bytes = b""
    top_ps: bytes = b""
    min_ps: bytes = b""
    seeds: bytes = b""


class StepResult(Message, frozen=True, tag="result"):
    """What one plan gave.

    Attributes:
        token_ids: int32, one for each entry of the plan's `sample_rows`, in that order.
        compute_us: microseconds from the plan's arrival in the runner to its tokens.
    """

    epoch: Epoch
    step: Step
    token_ids: bytes
    compute_us: Count


class StepFailed(Message, frozen=True, tag="failed"):
    """A plan could not be run (out of memory, a kernel error). It ends the epoch; the executor says Hello again."""

    epoch: Epoch
    step: Step
    error: Text
