"""From logits to tokens, and to what samples and prompts ask for beside them."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from common.messages import MAX_LOGPROBS
from executor_svc.model.kernel_set import Sampler
from executor_svc.staging.asked import AskedStep
from kernels.reference import SamplingInputs

_ADJUSTED_AT_ONCE = 64  # rows whose scores there is room for: 39 MB at 151,936 tokens


@dataclass(frozen=True)
class Lanes:
    """What stands on the device for each lane.

    Attributes:
        last_tokens: [lanes] int32, sampled last.
        tokens: [lanes, positions] int32, all known tokens of lanes with constraints.
    """

    last_tokens: Tensor
    tokens: Tensor


@dataclass(frozen=True)
class Drawn:
    """Where a step's tokens go, and what comes with them.

    Attributes:
        tokens: [samples] int32, see `kernels.reference.sample`.
        chosen: [samples that want log-probabilities] float32, of these tokens.
        top, top_ids: [samples that want any, num_top] float32 and int32, of the likeliest ones.
    """

    tokens: Tensor
    chosen: Tensor
    top: Tensor
    top_ids: Tensor

    @classmethod
    def room(cls, max_num_seqs: int, device: torch.device) -> "Drawn":
        """Room for any step."""
        tokens = torch.zeros(max_num_seqs, dtype=torch.int32, device=device)
        chosen = torch.zeros(max_num_seqs, dtype=torch.float32, device=device)
        top = torch.zeros((max_num_seqs, MAX_LOGPROBS - 1), dtype=torch.float32, device=device)
        return cls(tokens, chosen, top, torch.zeros_like(top, dtype=torch.int32))

    def of(self, num_samples: int, asked: AskedStep | None) -> "Drawn":
        """The part that a step needs, each tensor dense."""
        wanting, num_top = (0, 0) if asked is None else (asked.num_logprobs, asked.num_top)
        top, top_ids = (both.view(-1)[: wanting * num_top].view(wanting, num_top) for both in (self.top, self.top_ids))
        return Drawn(self.tokens[:num_samples], self.chosen[:wanting], top, top_ids)

    def rows(self, first: int, end: int, asked: AskedStep) -> "Drawn":
        """The part of samples `first` to `end - 1` of a step of which `asked` is asked."""
        start = asked.first_logprob
        wanting = slice(*(min(max(i, start), asked.end_logprob) - start for i in (first, end)))
        return Drawn(self.tokens[first:end], self.chosen[wanting], self.top[wanting], self.top_ids[wanting])


@dataclass(frozen=True)
class TargetLogProbs:
    """Where the log-probabilities of given tokens, the targets, go.

    Attributes:
        chosen: [targets] float32, their own.
        top, top_ids: [targets, num_top] float32 and int32, of the likeliest tokens at their places.
        ranks: [targets] int32, how many tokens of the vocabulary are as likely or likelier, the target included.
    """

    chosen: Tensor
    top: Tensor
    top_ids: Tensor
    ranks: Tensor

    def rows(self, first: int, end: int) -> "TargetLogProbs":
        """The part of targets `first` to `end - 1`."""
        return TargetLogProbs(*(tensor[first:end] for tensor in vars(self).values()))


class TokenDraw(Protocol):
    """Draws a step's tokens, and looks up how likely given ones are."""

    def draw(self, logits: Tensor, inputs: SamplingInputs, asked: AskedStep | None, lanes: Lanes, out: Drawn) -> None:
        """Draw a token a row, which goes to the row's lane, too.

        Args:
            logits: [rows, vocab], those of a rank.
            inputs: of the rows.
            asked: what else the rows ask for; None for nothing.
            lanes: whose last tokens change.
            out: becomes what was drawn.
        """
        ...

    def log_probs(self, logits: Tensor, targets: Tensor, out: TargetLogProbs) -> None:
        """Look up a token a row; see `kernels.reference.log_probs`.

        Args:
            logits: [rows, vocab], those of a rank.
            targets: int32 [rows], the tokens asked about.
            out: becomes what was found.
        """
        ...


class WholeDraw:
    """Draws from logits of the whole vocabulary.

    Args:
        sampler: to draw with.
        max_rows: of a step.
        vocab_size: of the model.
        device: of the logits.
    """

    def __init__(self, sampler: Sampler, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._sampler = sampler
        rows = min(max_rows, _ADJUSTED_AT_ONCE)
        self._scores = torch.empty((rows, vocab_size), dtype=torch.float32, device=device)

    def draw(self, logits: Tensor, inputs: SamplingInputs, asked: AskedStep | None, lanes: Lanes, out: Drawn) -> None:
        """See `TokenDraw.draw`."""
        num_plain = len(logits) if asked is None else asked.first_adjusted
        if num_plain:
            plain = inputs if num_plain == len(logits) else inputs.rows(slice(0, num_plain))
            self._sampler.sample(logits[:num_plain], plain, lanes.last_tokens, out.tokens[:num_plain])
        if asked is None:
            return
        for first in range(num_plain, len(logits), len(self._scores)):
            end = min(first + len(self._scores), len(logits))
            adjustments = asked.rows(first, end).adjustments
            assert adjustments is not None
            scores = self._scores[: end - first]
            self._sampler.adjust_logits(logits[first:end], adjustments, lanes.tokens, scores)
            self._sampler.sample(scores, inputs.rows(slice(first, end)), lanes.last_tokens, out.tokens[first:end])
        if asked.num_logprobs:
            wanting = slice(asked.first_logprob, asked.end_logprob)
            tokens = out.tokens[wanting].clamp(min=0)
            self._sampler.log_probs(logits[wanting], tokens, asked.num_top, out.chosen, out.top, out.top_ids)

    def log_probs(self, logits: Tensor, targets: Tensor, out: TargetLogProbs) -> None:
        """See `TokenDraw.log_probs`."""
        self._sampler.log_probs(logits, targets, out.top.shape[1], out.chosen, out.top, out.top_ids)
        least = logits.gather(1, targets.long()[:, None])
        torch.sum(logits >= least, 1, dtype=torch.int32, out=out.ranks)
