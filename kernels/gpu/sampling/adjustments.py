"""What requests ask of their tokens' scores: a pass over their tokens so far, then one over the logits.

The first leaves marks (`marks.py`) of what is asked of which token, in the place where the second writes the scores.
Rows that ask for no more than a mask have no marks, and cost neither the pass nor the room.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import Adjustments
from kernels.gpu.checks import (
    check_contiguous,
    check_dtype,
    check_last_stride,
    check_range,
    check_rank,
    check_tensor,
)
from kernels.gpu.integers import ceil_div
from kernels.gpu.launching import LaunchableKernel
from kernels.gpu.sampling.marks import (
    BANNED,
    BIAS_SHIFT,
    IN_PROMPT,
    MOST_BIASES,
    MOST_COUNTED,
    STAGED,
    clear_marks_kernel,
    has_marks,
    mark_kernel,
)
from kernels.gpu.sampling.segment_statistics import MAX_ROWS
from kernels.reference.adjustments import mask_words

MAX_POSITIONS = MOST_COUNTED.value
MAX_ROW_BIASES = MOST_BIASES.value

_NUM_WARPS = 4
_TILE_TOKENS = 2048
_TILE_POSITIONS = 1024
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)

_COLUMNS = {
    "lanes": torch.int32,
    "lengths": torch.int32,
    "num_prompts": torch.int32,
    "presences": torch.float32,
    "frequencies": torch.float32,
    "repetitions": torch.float32,
    "mask_rows": torch.int32,
}
_LISTS = {
    "bias_ids": torch.int32,
    "biases": torch.float32,
    "word_offsets": torch.int32,
    "word_tokens": torch.int32,
}


def adjust_logits(logits: Tensor, adjustments: Adjustments, lane_tokens: Tensor, out: Tensor) -> None:
    """The scores that rows are sampled from, to the bit those of the twin.

    Three launches, whose grids depend on shapes alone. What the adjustments say is trusted: a lane, a start or a token
    of theirs that does not exist reaches into foreign memory. A lane's token beyond the vocabulary counts for nothing.

    Args:
        logits: [rows, vocab], bfloat16, float16 or float32; the rows may lie apart, each must be dense.
        adjustments: of the rows, each tensor dense; a row has `MAX_ROW_BIASES` biases at most.
        lane_tokens: [lanes, positions] int32, the tokens of each lane's sequence, prompt first; `MAX_POSITIONS` at
            most. The lanes may lie apart, each must be dense.
        out: [rows, vocab] float32, likewise; becomes the adjusted scores. It shares no memory with the logits.

    Raises:
        ValueError: a shape, dtype, device or stride does not fit, or there are too many rows or positions.
    """
    check_rank("logits", logits, 2)
    check_dtype("logits", logits)
    num_rows, vocab_size = logits.shape
    device = logits.device
    check_range("the number of rows of logits", num_rows, 0, MAX_ROWS)
    check_last_stride("logits", logits)
    check_tensor("out", out, (num_rows, vocab_size), torch.float32, device)
    check_last_stride("out", out)
    check_rank("lane_tokens", lane_tokens, 2)
    check_tensor("lane_tokens", lane_tokens, tuple(lane_tokens.shape), torch.int32, device)
    check_last_stride("lane_tokens", lane_tokens)
    num_positions = lane_tokens.shape[1]
    check_range("the number of positions of lane_tokens", num_positions, 1, MAX_POSITIONS)
    _check_adjustments(adjustments, num_rows, vocab_size, device)
    if out.numel() == 0:
        return
    marks = out.view(torch.int32)
    starts = adjustments.bias_starts, adjustments.word_starts
    penalties = adjustments.presences, adjustments.frequencies, adjustments.repetitions
    tiles = ceil_div(vocab_size, _TILE_TOKENS)
    clear_marks_kernel.launch(
        (tiles, num_rows),
        *penalties,
        *starts,
        marks,
        marks.stride(0),
        VOCAB=vocab_size,
        TILE=_TILE_TOKENS,
        num_warps=_NUM_WARPS,
    )
    mark_kernel.launch(
        (ceil_div(num_positions, _TILE_POSITIONS), num_rows),
        adjustments.lanes,
        adjustments.lengths,
        adjustments.num_prompts,
        *penalties,
        *starts,
        adjustments.bias_ids,
        adjustments.word_offsets,
        adjustments.word_tokens,
        lane_tokens,
        lane_tokens.stride(0),
        marks,
        marks.stride(0),
        VOCAB=vocab_size,
        TILE=_TILE_POSITIONS,
        num_warps=_NUM_WARPS,
    )
    # Fused, a product and a sum are rounded once, and by the twin twice.
    _adjust_kernel.launch(
        (tiles, num_rows),
        logits,
        logits.stride(0),
        *penalties,
        adjustments.mask_rows,
        adjustments.masks,
        *starts,
        adjustments.biases,
        out,
        out.stride(0),
        VOCAB=vocab_size,
        TILE=_TILE_TOKENS,
        num_warps=_NUM_WARPS,
        enable_fp_fusion=False,
    )


def _check_adjustments(adjustments: Adjustments, num_rows: int, vocab_size: int, device: torch.device) -> None:
    """Raise ValueError unless all tensors fit the rows and one another."""
    columns = vars(adjustments)
    for name, dtype in _COLUMNS.items():
        check_tensor(name, columns[name], (num_rows,), dtype, device)
    for name in ("bias_starts", "word_starts"):
        check_tensor(name, columns[name], (num_rows + 1,), torch.int32, device)
    for name, dtype in _LISTS.items():
        check_rank(name, columns[name], 1)
        check_tensor(name, columns[name], tuple(columns[name].shape), dtype, device)
    check_tensor("biases", adjustments.biases, tuple(adjustments.bias_ids.shape), torch.float32, device)
    check_rank("masks", adjustments.masks, 2)
    check_tensor("masks", adjustments.masks, (len(adjustments.masks), mask_words(vocab_size)), torch.int32, device)
    for name, tensor in columns.items():
        check_contiguous(name, tensor)


@LaunchableKernel
@triton.jit(do_not_specialize_on_alignment=STAGED)
def _adjust_kernel(
    logits,
    logits_stride,
    presences,
    frequencies,
    repetitions,
    mask_rows,
    masks,
    bias_starts,
    word_starts,
    biases,
    out,
    out_stride,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program for each row and tile of the vocabulary."""
    row = tl.program_id(1)
    ids = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row_out = out + row.to(tl.int64) * out_stride
    stored = tl.load(logits + row.to(tl.int64) * logits_stride + ids, mask=ids < VOCAB, other=0.0).to(tl.float32)
    scores = stored
    mask_row = tl.load(mask_rows + row)
    if mask_row >= 0:
        words = mask_row.to(tl.int64) * ((VOCAB + 31) // 32) + ids // 32
        allowed = tl.load(masks + words, mask=ids < VOCAB, other=0) >> (ids % 32)
        scores = tl.where((allowed & 1) != 0, scores, float("-inf"))
    if has_marks(row, presences, frequencies, repetitions, bias_starts, word_starts):
        marks = tl.load(row_out + ids, mask=ids < VOCAB, other=0.0).to(tl.int32, bitcast=True)
        scores = tl.where((marks & BANNED) != 0, float("-inf"), scores)
        numbers = (marks >> BIAS_SHIFT) & MOST_BIASES
        own_biases = biases + tl.load(bias_starts + row)
        scores = tl.where(numbers > 0, scores + tl.load(own_biases + numbers - 1, mask=numbers > 0, other=0.0), scores)
        repetition = tl.load(repetitions + row)
        penalized = tl.where(scores > 0, tl.div_rn(scores, repetition), scores * repetition)
        counts = marks & MOST_COUNTED
        scores = tl.where((marks & (MOST_COUNTED | IN_PROMPT)) != 0, penalized, scores)
        lost = tl.load(frequencies + row) * counts.to(tl.float32)
        scores = tl.where(counts > 0, scores - lost - tl.load(presences + row), scores)
    # What is no number stays, and nothing else becomes it.
    scores = tl.where(stored < float("inf"), tl.minimum(scores, _LARGEST), stored)
    tl.store(row_out + ids, scores, mask=ids < VOCAB)
