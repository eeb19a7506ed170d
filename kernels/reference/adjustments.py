"""What a request may ask of its tokens' scores: bans, biases and penalties, from parameters and the tokens so far."""

import itertools

import torch
from torch import Tensor

from kernels.arguments import Adjustments

MASK_BITS = 32


def mask_words(vocab_size: int) -> int:
    """int32 words of a mask with a bit for each token."""
    return -(-vocab_size // MASK_BITS)


def adjust_logits(logits: Tensor, adjustments: Adjustments, lane_tokens: Tensor, out: Tensor) -> None:
    """The scores that rows are sampled from. The order and the arithmetic are those of vLLM's sampler (V1, 0.11).

    1. A token whose bit in the row's mask is 0 is banned (-inf).
    2. The last token of a bad word is banned where the word's other tokens, if it has more, are the sequence's newest;
       prompt tokens do not count.
    3. Biases are added; -inf bans.
    4. Tokens of the prompt and those generated: a score above 0 is divided by `repetition`, another one multiplied by
       it (Keskar et al. 2019, CTRL, arXiv:1909.05858).
    5. Generated tokens lose `frequency` for each time that they were generated, and `presence` once (OpenAI's API).

    The model's NaN and +inf stay as they are, so that `sample` finds them in whatever was asked, and no other score
    becomes one.

    Args:
        logits: [rows, vocab], any float dtype.
        adjustments: of the rows.
        lane_tokens: [lanes, positions] int32, the tokens of each lane's sequence, prompt first.
        out: [rows, vocab] float32; becomes the adjusted scores.
    """
    out.copy_(logits)
    lanes, lengths, num_prompts = (
        column.tolist() for column in (adjustments.lanes, adjustments.lengths, adjustments.num_prompts)
    )
    for row, scores in enumerate(out):
        tokens = lane_tokens[lanes[row], : lengths[row]].long()
        generated = tokens[num_prompts[row] :]
        _apply_mask(scores, adjustments, row)
        for word in _bad_words(adjustments, row):
            *prefix, last = word
            if len(prefix) <= len(generated) and generated[len(generated) - len(prefix) :].tolist() == prefix:
                scores[last] = -torch.inf
        start, end = adjustments.bias_starts[row : row + 2].tolist()
        scores.index_add_(0, adjustments.bias_ids[start:end].long(), adjustments.biases[start:end])
        _penalize(scores, adjustments, row, tokens, generated)
    out.copy_(torch.where(logits < torch.inf, out.clamp(max=torch.finfo(torch.float32).max), logits))


def _apply_mask(scores: Tensor, adjustments: Adjustments, row: int) -> None:
    mask = int(adjustments.mask_rows[row])
    if mask < 0:
        return
    bits = torch.arange(MASK_BITS, dtype=torch.int32, device=scores.device)
    allowed = (adjustments.masks[mask][:, None] >> bits & 1).flatten()[: len(scores)]
    scores.masked_fill_(allowed == 0, -torch.inf)


def _bad_words(adjustments: Adjustments, row: int) -> list[list[int]]:
    first, end = adjustments.word_starts[row : row + 2].tolist()
    offsets = adjustments.word_offsets[first : end + 1].tolist()
    return [adjustments.word_tokens[a:b].tolist() for a, b in itertools.pairwise(offsets)]


def _penalize(scores: Tensor, adjustments: Adjustments, row: int, tokens: Tensor, generated: Tensor) -> None:
    repetition = adjustments.repetitions[row]
    if repetition != 1:
        seen = torch.unique(tokens)
        values = scores[seen]
        scores[seen] = torch.where(values > 0, values / repetition, values * repetition)
    frequency, presence = adjustments.frequencies[row], adjustments.presences[row]
    if frequency != 0 or presence != 0:
        ids, counts = torch.unique(generated, return_counts=True)
        scores[ids] = scores[ids] - frequency * counts - presence
