"""Log-probabilities of tokens under the model itself: no temperature, no filters."""

import torch
from torch import Tensor


def log_probs(
    logits: Tensor, token_ids: Tensor, num_top: int, out_chosen: Tensor, out_top: Tensor, out_top_ids: Tensor
) -> None:
    """Natural logarithms of softmax(logits), for a given token of each row and for its likeliest ones.

    Args:
        logits: [rows, vocab], any float dtype.
        token_ids: [rows] integers, the tokens asked about; a negative one, of a row without, asks about token 0.
        num_top: how many of a row's likeliest tokens are wanted, 0 to vocab.
        out_chosen: [rows] float32; becomes the log-probabilities of `token_ids`.
        out_top: [rows, num_top] float32; becomes those of the likeliest tokens, in descending order.
        out_top_ids: [rows, num_top] integers; becomes their ids, of equals the lowest first. NaN ranks with -inf.
    """
    wide = logits.float()
    scores = wide.log_softmax(-1)
    out_chosen.copy_(scores.gather(1, token_ids.long().clamp(min=0)[:, None]).squeeze(1))
    if num_top:
        # A float's bits, the lower ones of negatives inverted, are in its order; the id below them breaks ties.
        bits = wide.nan_to_num(-torch.inf, torch.inf, -torch.inf).add_(0.0).view(torch.int32)  # -0 + 0 is 0
        order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
        order |= torch.arange(logits.shape[1] - 1, -1, -1, device=logits.device)
        ids = order.topk(num_top).indices
        out_top.copy_(scores.gather(1, ids))
        out_top_ids.copy_(ids)
