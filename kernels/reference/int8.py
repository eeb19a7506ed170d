"""Linear layers in int8: weights with a scale for each output channel, rows with one for each group of elements."""

import torch
from torch import Tensor

GROUP = 256
"""Elements of a row that share a scale."""
LARGEST = 127


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [out, in] as whole numbers, int8 [out, in], and their scales, float32 [out]."""
    return _quantize(weight.float())


def linear_int8(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """`x @ (weight * scales).T + bias` of rows that are quantized as they come.

    A group's products are summed up exactly; then it counts by its own scale, so that an outlier costs only the
    elements beside it precision (per-channel weights and per-token rows: Xiao et al. 2023, arXiv:2211.10438; groups:
    Yao et al. 2022, arXiv:2206.01861). A group with an element that is not finite makes its row NaN.

    Args:
        x: [tokens, in], any float dtype.
        weight: int8 [out, in], of `quantize_weight`.
        scales: float32 [out].
        bias: [out], or None.
        out: [tokens, out], dtype of `x`.
    """
    total = torch.zeros(out.shape, dtype=torch.float32, device=x.device)
    for start in range(0, x.shape[1], GROUP):
        numbers, group_scales = _quantize(x[:, start : start + GROUP].float())
        exact = numbers.double() @ weight[:, start : start + GROUP].double().t()
        total += group_scales[:, None] * exact.float()
    total *= scales
    out.copy_(total if bias is None else total + bias.float())


def _quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as multiples, from -LARGEST to LARGEST, of a scale for each."""
    largest = x.abs().amax(dim=1, keepdim=True) + 0 * x.sum(dim=1, keepdim=True)
    factors = torch.where(largest > 0, LARGEST / largest, 0)
    numbers = (x * factors).nan_to_num(0).round().clamp(-LARGEST, LARGEST)
    return numbers.to(torch.int8), (largest / LARGEST).squeeze(1)
