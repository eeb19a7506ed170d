"""From logits to tokens. The only randomness is one given uniform a row, so a draw can be repeated anywhere."""

from dataclasses import dataclass
from typing import Annotated, get_type_hints

import torch
from torch import Tensor

Floats = Annotated[Tensor, torch.float32]
Ints = Annotated[Tensor, torch.int32]

NO_TOKEN = -1
"""In place of a row's token: all its scores are -inf."""
NO_NUMBERS = -2
"""In place of a row's token: a score is NaN or +inf."""


@dataclass(frozen=True)
class SamplingInputs:
    """How each row's token is drawn, and the lane that it goes to. All tensors are [rows].

    Attributes:
        temperatures: 0 takes the likeliest token, of equals the one with the lowest id, and ignores the rest of the
            row but its lane.
        top_ks: 0 keeps all.
        top_ps: 1 keeps all.
        min_ps: 0 keeps all.
        uniforms: in [0, 1).
        lanes: distinct.
    """

    temperatures: Floats
    top_ks: Ints
    top_ps: Floats
    min_ps: Floats
    uniforms: Floats
    lanes: Ints

    def rows(self, chosen: slice | Tensor) -> "SamplingInputs":
        """The inputs of these rows."""
        return SamplingInputs(*(column[chosen] for column in vars(self).values()))


INPUT_DTYPES: dict[str, torch.dtype] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(SamplingInputs, include_extras=True).items()
}
"""The fields of `SamplingInputs`, in their order."""


def sample(logits: Tensor, inputs: SamplingInputs, last_tokens: Tensor, out: Tensor) -> None:
    """Draw one token a row by inverting the CDF, in order of token id, of the filtered distribution.

    A row's token does not depend on the other rows. A row without one has `NO_TOKEN` or `NO_NUMBERS`.

    Args:
        logits: [rows, vocab], any float dtype.
        inputs: of the rows. Here, any integer dtype will do.
        last_tokens: [lanes] integers; becomes the drawn tokens at the rows' lanes, and 0 for a row without one, so
            that it stays an index.
        out: [rows], dtype of `last_tokens`; becomes the drawn tokens.
    """
    tokens = logits.argmax(dim=-1)
    drawn = inputs.temperatures > 0
    has_top_k = inputs.top_ks > 0
    # Rows with a top_k go on with their few candidates; the others need the whole vocabulary.
    for chosen in ((drawn & has_top_k).nonzero().squeeze(1), (drawn & ~has_top_k).nonzero().squeeze(1)):
        if len(chosen):
            own = inputs.rows(chosen)
            scores, token_ids = filter_logits(logits.index_select(0, chosen), own)
            picks = _invert_cdf(scores, own.uniforms)
            tokens[chosen] = token_ids.gather(1, picks).squeeze(1) if token_ids is not None else picks.squeeze(1)
    peaks = logits.amax(dim=-1)  # NaN where any logit is
    out.copy_(tokens.masked_fill_(peaks == -torch.inf, NO_TOKEN).masked_fill_(~(peaks < torch.inf), NO_NUMBERS))
    last_tokens.index_copy_(0, inputs.lanes.long(), out.clamp(min=0))


def filter_logits(logits: Tensor, inputs: SamplingInputs) -> tuple[Tensor, Tensor | None]:
    """Apply temperature, top_k, top_p and min_p in this order, as transformers' logits warpers do.

    top_k keeps whatever ties with the k-th token. top_p keeps the smallest set of likeliest tokens whose probability
    reaches it and, where equals straddle its edge, those with the highest ids. Each filter keeps one token at least.

    Args:
        logits: [rows, vocab], any float dtype.
        inputs: of the rows; temperatures are above 0, and either every row has a top_k or none.

    Returns:
        Scores float32 [rows, candidates], -inf where dropped, and the candidates' token ids, int64 [rows, candidates]
        in ascending order. Without a top_k every token is a candidate and the ids are None.
    """
    # Relative to the maximum, so that no temperature however low can turn the scores into inf - inf.
    wide = logits.float()
    scores = (wide - wide.amax(-1, keepdim=True)) / inputs.temperatures[:, None]
    token_ids = None
    if bool((inputs.top_ks > 0).any()):
        scores, token_ids = _keep_top_k(scores, inputs.top_ks)
    if bool((inputs.top_ps < 1).any()):
        scores = _keep_top_p(scores, inputs.top_ps)
    min_ps = inputs.min_ps
    if bool((min_ps > 0).any()):
        probs = scores.softmax(-1)
        # The likeliest token is never below min_p times itself, except by the rounding of min_p = 1.
        scores = scores.masked_fill((probs < min_ps[:, None] * probs.amax(-1, keepdim=True)) & (scores < 0), -torch.inf)
    return scores, token_ids


def _keep_top_k(scores: Tensor, top_ks: Tensor) -> tuple[Tensor, Tensor]:
    """Cut the vocabulary down to the tokens that any row may still draw; [rows, candidates] twice."""
    vocab_size = scores.shape[-1]
    limits = top_ks.long().clamp(max=vocab_size)
    largest = scores.topk(int(limits.max())).values
    kept = ~(scores < largest.gather(1, limits[:, None] - 1))  # written so that NaN is kept
    num_candidates = int(kept.sum(-1).max())  # more than top_k where tokens tie with the k-th
    scores = scores.masked_fill(~kept, -torch.inf)
    token_ids = scores.topk(num_candidates).indices.sort(-1).values
    return scores.gather(1, token_ids), token_ids


def _keep_top_p(scores: Tensor, top_ps: Tensor) -> Tensor:
    ascending, order = scores.sort(dim=-1, stable=True)
    dropped = ascending.softmax(-1).cumsum(-1) <= 1 - top_ps[:, None]
    dropped[:, -1] = False
    return scores.masked_fill(torch.zeros_like(dropped).scatter_(1, order, dropped), -torch.inf)


def _invert_cdf(scores: Tensor, uniforms: Tensor) -> Tensor:
    """Index of the first candidate whose cumulative probability exceeds the uniform's share, int64 [rows, 1].

    A dropped candidate adds nothing to the sum and can never be that first one.
    """
    cdf = scores.softmax(-1).cumsum(-1)
    targets = uniforms[:, None] * cdf[:, -1:]
    # A row of NaN has no token in the end, but its pick must be an index.
    return torch.searchsorted(cdf, targets, right=True).clamp_(max=scores.shape[-1] - 1)
