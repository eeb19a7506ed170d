"""Log-probabilities of prompts: a step may want them after many more of its tokens than there is room for logits."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from common import messages as m
from common.plan import ExecutorLimits
from common.prompt_targets import PromptTargets
from executor_svc.model.draw import TargetLogProbs, TokenDraw
from executor_svc.model.model import Decoder
from executor_svc.staging.arena import Arena, packed_size


@dataclass(frozen=True)
class StagedTargets:
    """A plan's `PromptTargets` on the device.

    Attributes:
        tokens, targets: int32 [targets], as there.
        out: where their log-probabilities go.
    """

    tokens: Tensor
    targets: Tensor
    out: TargetLogProbs


class PromptLogprobs:
    """Has room for a step's, and computes them in chunks of as many rows as there are logits.

    Args:
        limits: of the executor.
        device: where steps run.
    """

    def __init__(self, limits: ExecutorLimits, device: torch.device) -> None:
        most = min(limits.max_batch_tokens, m.MAX_PLAN_PROMPT_LOGPROBS)
        most_top = min(most * (m.MAX_LOGPROBS - 1), m.MAX_PLAN_PROMPT_LOGPROBS)
        self._rows = limits.max_num_seqs
        self._arena = Arena(packed_size([most, most]), device)
        self._chosen = torch.zeros(most, dtype=torch.float32, device=device)
        self._top = torch.zeros(most_top, dtype=torch.float32, device=device)
        self._top_ids = torch.zeros(most_top, dtype=torch.int32, device=device)
        self._ranks = torch.zeros(most, dtype=torch.int32, device=device)

    def stage(self, targets: PromptTargets) -> StagedTargets:
        """Bring a plan's targets to the device; the tensors, each dense, are valid until the next call."""
        shape = (len(targets.tokens), targets.num_top)
        top, top_ids = (flat[: shape[0] * shape[1]].view(shape) for flat in (self._top, self._top_ids))
        out = TargetLogProbs(self._chosen[: shape[0]], top, top_ids, self._ranks[: shape[0]])
        tokens, ids = self._arena.upload([targets.tokens, targets.targets])
        return StagedTargets(tokens, ids, out)

    def compute(self, staged: StagedTargets, hidden_states: Tensor, model: Decoder[Any], draw: TokenDraw) -> None:
        """Fill `staged.out` from a step's hidden states [tokens, hidden]. The model's logits are others afterwards."""
        num_targets = len(staged.tokens)
        for first in range(0, num_targets, self._rows):
            end = min(first + self._rows, num_targets)
            model.compute_logits(hidden_states, staged.tokens[first:end])
            draw.log_probs(model.logits(end - first), staged.targets[first:end], staged.out.rows(first, end))

    def copied_bytes(self) -> list[int]:
        """Bytes that each copy to the device and back takes at most."""
        return [
            self._arena.num_bytes,
            *(tensor.nbytes for tensor in (self._chosen, self._top, self._top_ids, self._ranks)),
        ]
