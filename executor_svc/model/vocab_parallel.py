"""The embedding and the sampler where each rank has a part of the vocabulary (Megatron-LM, arXiv:1909.08053)."""

import itertools
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from executor_svc.model.draw import Drawn, Lanes, TargetLogProbs, WholeDraw
from executor_svc.model.kernel_set import KernelSet
from executor_svc.model.rank_group import RankGroup
from executor_svc.model.sharding import Shard
from executor_svc.staging.asked import AskedStep
from kernels.reference import SamplingInputs


def embed_tokens(
    token_ids: Tensor,
    token_lanes: Tensor,
    last_tokens: Tensor,
    table: Tensor,
    out: Tensor,
    kernels: KernelSet,
    group: RankGroup,
    shard: Shard,
) -> None:
    """`kernels.reference.embed_tokens`, of a table [shard's vocab, size] that is this rank's part of the whole."""
    known = torch.where(token_ids < 0, last_tokens.index_select(0, token_lanes), token_ids)
    rows = known - shard.vocab.start
    elsewhere = (rows < 0) | (rows >= len(shard.vocab))
    kernels.embed_tokens(rows.masked_fill_(elsewhere, 0), token_lanes, last_tokens, table, out)
    out.masked_fill_(elsewhere[:, None], 0)
    group.all_reduce(out)


class VocabParallelDraw:
    """Draws from logits of which each rank has some columns, without bringing all of them together anywhere.

    The ranks divide the rows: each receives the missing columns of its rows and draws those rows' tokens, and a sum
    over the ranks gives all tokens to all ranks. Sizes depend on the number of rows only, as CUDA graphs need. Likewise
    with log-probabilities of given tokens.

    Args:
        draw: from all columns; for `max_num_seqs / ranks` rows, rounded up.
        group: the ranks.
        shard: which columns are here.
        vocab_size: of the model.
        max_num_seqs: rows of a step at most.
        dtype, device: of the logits.
    """

    def __init__(
        self,
        draw: WholeDraw,
        group: RankGroup,
        shard: Shard,
        vocab_size: int,
        max_num_seqs: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._draw = draw
        self._group = group
        self._vocab_size = vocab_size
        self._width = shard.vocab_size
        share = -(-max_num_seqs // group.size)
        self._received = torch.empty(share * group.size * self._width, dtype=dtype, device=device)
        self._logits = torch.empty((share, group.size, self._width), dtype=dtype, device=device)

    def draw(self, logits: Tensor, inputs: SamplingInputs, asked: AskedStep | None, lanes: Lanes, out: Drawn) -> None:
        """See `TokenDraw.draw`; the logits are [rows, shard's vocab]."""
        first, end, own_logits = self._own_rows(logits)
        results = _zeroed(vars(out).values())
        if first < end:
            own_inputs = inputs.rows(slice(first, end))
            if asked is None:
                self._draw.draw(own_logits, own_inputs, None, lanes, replace(out, tokens=out.tokens[first:end]))
            else:
                own = out.rows(first, end, asked)
                self._draw.draw(own_logits, own_inputs, asked.rows(first, end), lanes, own)
        self._add_up(results)
        lanes.last_tokens.index_copy_(0, inputs.lanes.long(), out.tokens.clamp(min=0))

    def log_probs(self, logits: Tensor, targets: Tensor, out: TargetLogProbs) -> None:
        """See `TokenDraw.log_probs`; the logits are [rows, shard's vocab]."""
        first, end, own_logits = self._own_rows(logits)
        results = _zeroed(vars(out).values())
        if first < end:
            self._draw.log_probs(own_logits, targets[first:end], out.rows(first, end))
        self._add_up(results)

    def _own_rows(self, logits: Tensor) -> tuple[int, int, Tensor]:
        """Bring rows together: the first of this rank's rows, the end of them, and their logits [rows, vocab]."""
        size, rank = self._group.size, self._group.rank
        bounds = [len(logits) * r // size for r in range(size + 1)]
        counts = [end - start for start, end in itertools.pairwise(bounds)]
        num_own = counts[rank]

        received = self._received[: size * num_own * self._width].view(size * num_own, self._width)
        self._group.all_to_all(logits, counts, received, [num_own] * size)
        whole = self._logits[:num_own]
        if num_own:
            whole.copy_(received.view(size, num_own, self._width).transpose(0, 1))
        return bounds[rank], bounds[rank + 1], whole.flatten(1)[:, : self._vocab_size]

    def _add_up(self, results: Iterable[Tensor]) -> None:
        """Give all ranks what each found of its rows; it is 0 elsewhere."""
        for result in results:
            self._group.all_reduce(result)


def _zeroed(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Those that have elements, which become 0."""
    return [tensor.zero_() for tensor in tensors if tensor.numel()]
