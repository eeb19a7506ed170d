"""From logits to tokens. One given uniform a row is all the chance there is, so a draw can be repeated anywhere."""

import torch
from torch import Tensor


def sample(
    logits: Tensor,
    temperatures: Tensor,
    top_ks: Tensor,
    top_ps: Tensor,
    min_ps: Tensor,
    uniforms: Tensor,
    lanes: Tensor,
    last_tokens: Tensor,
    out: Tensor,
) -> None:
    """Draw one token a row by inverting the CDF, in order of token id, of the filtered distribution.

    A row's token does not depend on the other rows.

    Args:
        logits: [rows, vocab], any float dtype.
        temperatures: [rows] float32; 0 takes the likeliest token, of equals the one with the lowest id, and ignores
            the rest of the row.
        top_ks: [rows] integers; 0 keeps all.
        top_ps: [rows] float32; 1 keeps all.
        min_ps: [rows] float32; 0 keeps all.
        uniforms: [rows] float32 in [0, 1).
        lanes: [rows] integers, distinct.
        last_tokens: [lanes] integers; becomes the drawn tokens at `lanes`.
        out: [rows], dtype of `last_tokens`; becomes the drawn tokens.
    """
    tokens = logits.argmax(dim=-1)
    drawn = temperatures > 0
    # Rows with a top_k go on with their few candidates; the others need the whole vocabulary.
    for chosen in ((drawn & (top_ks > 0)).nonzero().squeeze(1), (drawn & (top_ks == 0)).nonzero().squeeze(1)):
        if len(chosen):
            columns = [column.index_select(0, chosen) for column in (temperatures, top_ks, top_ps, min_ps)]
            scores, token_ids = filter_logits(logits.index_select(0, chosen), *columns)
            picks = _invert_cdf(scores, uniforms.index_select(0, chosen))
            tokens[chosen] = token_ids.gather(1, picks).squeeze(1) if token_ids is not None else picks.squeeze(1)
    out.copy_(tokens)
    last_tokens.index_copy_(0, lanes.long(), out)


def filter_logits(
    logits: Tensor, temperatures: Tensor, top_ks: Tensor, top_ps: Tensor, min_ps: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Apply temperature, top_k, top_p and min_p in this order, as transformers' logits warpers do.

    top_k keeps whatever ties with the k-th token. top_p keeps the smallest set of likeliest tokens whose probability
    reaches it and, where equals straddle its edge, those with the highest ids. Each filter keeps one token at least.

    Args:
        logits: [rows, vocab], any float dtype.
        temperatures: [rows] float32, above 0.
        top_ks, top_ps, min_ps: as in `sample`; either every row has a top_k or none.

    Returns:
        Scores float32 [rows, candidates], -inf where dropped, and the candidates' token ids, int64 [rows, candidates]
        in ascending order. Without a top_k every token is a candidate and the ids are None.
    """
    # Relative to the maximum, so that no temperature however low can turn the scores into inf - inf.
    wide = logits.float()
    scores = (wide - wide.amax(-1, keepdim=True)) / temperatures[:, None]
    token_ids = None
    if bool((top_ks > 0).any()):
        scores, token_ids = _keep_top_k(scores, top_ks)
    if bool((top_ps < 1).any()):
        scores = _keep_top_p(scores, top_ps)
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
    # Of NaN logits any token is as good as another, but it must be a token.
    return torch.searchsorted(cdf, targets, right=True).clamp_(max=scores.shape[-1] - 1)
