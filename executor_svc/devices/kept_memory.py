"""Memory that a keeper keeps, as tensors."""

import torch
from torch import Tensor

from executor_svc.keeper.memory import Mapping


def memory_at(mapping: Mapping, num_bytes: int) -> Tensor:
    """The first bytes of a mapping, uint8. The mapping has to outlive the tensor."""
    return torch.frombuffer(mapping.buffer(), dtype=torch.uint8, count=num_bytes)
