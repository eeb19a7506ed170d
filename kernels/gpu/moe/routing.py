"""Which experts compute a token, and the tokens' choices sorted by expert: what the grouped products go by.

A choice is one of a token's experts; choice `token * num_chosen + i` is the token's i-th. Sorting takes one launch of a
program an expert. Each reads all choices, once to count those of its own and of lower experts and once to write down
where its own are, so no program waits for another, nothing has to be zero beforehand, and the order is always the same.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launching import LaunchableKernel
from kernels.gpu.loops import loop_bound

MAX_EXPERTS = 1024
"""The most experts that a program looks through for each token."""

_FULL_CHIP_TOKENS = 4096
_SMALL_CHUNK = 1024
_LARGE_CHUNK = 4096


@dataclass(frozen=True)
class RoutingTiles:
    """Tiles of the two kernels.

    Attributes:
        rows: tokens that a program routes, in one warp, so that maxima and sums stay in it.
        chunk: choices that a sorting program reads at a time.
        chunk_warps: warps that it does so with.
    """

    rows: int
    chunk: int
    chunk_warps: int


def choose_routing_tiles(num_tokens: int, num_chosen: int) -> RoutingTiles:
    """Two configurations of either kernel: for few tokens and for many."""
    rows = 2 if num_tokens <= _FULL_CHIP_TOKENS else 4
    if num_tokens * num_chosen <= _SMALL_CHUNK:
        return RoutingTiles(rows, _SMALL_CHUNK, chunk_warps=4)
    return RoutingTiles(rows, _LARGE_CHUNK, chunk_warps=8)


def count_slots(num_choices: int, num_experts: int, block_rows: int) -> int:
    """Slots for blocks of choices of one expert each; some stay empty. It depends on no choice."""
    return min(num_choices, num_choices // block_rows + num_experts)


def has_slot_a_choice(num_choices: int, num_experts: int, block_rows: int) -> bool:
    """Whether each choice has a slot of its own, because there are few: see `count_slots`."""
    return num_choices <= num_choices // block_rows + num_experts


def launch_routing(
    logits: Tensor,
    experts: Tensor,
    weights: Tensor,
    order: Tensor,
    blocks: Tensor,
    num_chosen: int,
    renormalized: bool,
    block_rows: int,
) -> None:
    """Choose every token's experts and sort the choices.

    Args:
        logits: [tokens, experts]; the rows may lie apart.
        experts: int32 [tokens * num_chosen]; becomes each choice's expert.
        weights: float32 [tokens * num_chosen]; becomes each choice's weight, rounded to the logits' dtype.
        order: int32 [tokens * num_chosen]; becomes the choices, those of expert 0 first.
        blocks: int32 [slots, 4], see `count_slots`; of each block of up to `block_rows` choices of one expert the
            expert (-1 if the slot is empty), its first place in `order`, and the place where its expert's choices end.
        num_chosen, renormalized: see `kernels.reference.mix_experts`.
        block_rows: a power of two.
    """
    num_tokens, num_experts = logits.shape
    config = choose_routing_tiles(num_tokens, num_chosen)
    _choose_experts_kernel.launch(
        (triton.cdiv(num_tokens, config.rows),),
        logits,
        experts,
        weights,
        num_tokens,
        logits.stride(0),
        NUM_EXPERTS=num_experts,
        COLUMNS=triton.next_power_of_2(num_experts),
        NUM_CHOSEN=num_chosen,
        CHOICES=triton.next_power_of_2(num_chosen),
        RENORMALIZED=renormalized,
        ROWS=config.rows,
        num_warps=1,
    )
    num_choices = num_tokens * num_chosen
    _sort_choices_kernel.launch(
        (num_experts,),
        experts,
        order,
        blocks,
        num_tokens,
        NUM_CHOSEN=num_chosen,
        A_SLOT_A_CHOICE=has_slot_a_choice(num_choices, num_experts, block_rows),
        BLOCK_ROWS=block_rows,
        CHUNK=config.chunk,
        num_warps=config.chunk_warps,
    )


# The number of tokens is another at every step: compiling anew for 1 and for multiples of 16 would stall serving.
@LaunchableKernel
@triton.jit(do_not_specialize=["num_tokens"])
def _choose_experts_kernel(
    logits,
    experts,
    weights,
    num_tokens,
    logits_stride,
    NUM_EXPERTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    CHOICES: tl.constexpr,
    RENORMALIZED: tl.constexpr,
    ROWS: tl.constexpr,
):
    tokens = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    read_tokens = tl.minimum(tokens, num_tokens - 1).to(tl.int64)
    stored = tl.load(logits + read_tokens * logits_stride + columns, mask=columns < NUM_EXPERTS, other=float("-inf"))
    scores = stored.to(tl.float32)
    left = tl.where(scores > float("-inf"), scores, float("-inf"))  # NaN is never chosen, unless there is nothing else
    peak = tl.max(left, axis=1, keep_dims=True)
    total = tl.sum(tl.exp(scores - peak), axis=1, keep_dims=True)

    choices = tl.arange(0, CHOICES)[None, :]
    chosen = tl.zeros((ROWS, CHOICES), tl.int32)
    shares = tl.zeros((ROWS, CHOICES), tl.float32)
    for choice in tl.static_range(NUM_CHOSEN):
        best, expert = tl.max(left, axis=1, return_indices=True, keep_dims=True)  # of equals the lowest number
        chosen = tl.where(choices == choice, expert, chosen)
        shares = tl.where(choices == choice, tl.exp(best - peak), shares)
        left = tl.where(columns == expert, float("-inf"), left)
    if RENORMALIZED:
        total = tl.sum(shares, axis=1, keep_dims=True)
    rounded = (shares / total).to(stored.dtype).to(tl.float32)
    places = tokens * NUM_CHOSEN + choices
    kept = (tokens < num_tokens) & (choices < NUM_CHOSEN)
    tl.store(experts + places, chosen, mask=kept)
    tl.store(weights + places, rounded, mask=kept)


@LaunchableKernel
@triton.jit(do_not_specialize=["num_tokens"])
def _sort_choices_kernel(
    experts,
    order,
    blocks,
    num_tokens,
    NUM_CHOSEN: tl.constexpr,
    A_SLOT_A_CHOICE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    expert = tl.program_id(0)
    num_choices = num_tokens * NUM_CHOSEN
    lower = tl.zeros((CHUNK,), tl.int32)
    equal = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, loop_bound(num_choices), CHUNK):
        places = start + tl.arange(0, CHUNK)
        chosen = tl.load(experts + places, mask=places < num_choices, other=2147483647)
        lower += (chosen < expert).to(tl.int32)
        equal += (chosen == expert).to(tl.int32)
    first = tl.sum(lower, axis=0)
    end = first + tl.sum(equal, axis=0)

    # An expert's slots must not depend on other experts' blocks. Either way it has as many as it may need:
    # (first + count) // B + 1 - first // B >= ceil(count / B).
    if A_SLOT_A_CHOICE:
        first_slot = first
        end_slot = end
    else:
        first_slot = first // BLOCK_ROWS + expert
        end_slot = end // BLOCK_ROWS + expert + 1
    for start in range(loop_bound(first_slot), loop_bound(end_slot), 32):
        slots = start + tl.arange(0, 32)
        rows = first + (slots - first_slot) * BLOCK_ROWS
        tl.store(blocks + 4 * slots, tl.where(rows < end, expert, -1), mask=slots < end_slot)
        tl.store(blocks + 4 * slots + 1, rows, mask=slots < end_slot)
        tl.store(blocks + 4 * slots + 2, end, mask=slots < end_slot)

    if end > first:
        sorted_before = first
        for start in range(0, loop_bound(num_choices), CHUNK):
            places = start + tl.arange(0, CHUNK)
            chosen = tl.load(experts + places, mask=places < num_choices, other=2147483647)
            own = (chosen == expert).to(tl.int32)
            tl.store(order + sorted_before + tl.cumsum(own, axis=0) - 1, places, mask=own == 1)
            sorted_before += tl.sum(own, axis=0)
