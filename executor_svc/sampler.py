"""Which kernel draws a batch's tokens."""

from torch import Tensor

from executor_svc.batch import SamplingTensors
from kernels import reference


def sample_tokens(logits: Tensor, sampling: SamplingTensors | None) -> Tensor:
    """One token for each row of logits [samples, vocab]: int64 [samples]. None samples greedily."""
    if sampling is None:
        return reference.greedy(logits)
    return reference.sample(
        logits,
        sampling.temperatures,
        sampling.top_ks,
        sampling.top_ps,
        sampling.min_ps,
        sampling.uniforms,
    )
