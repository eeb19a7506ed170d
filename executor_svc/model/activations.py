"""The memory of a step's activations, allocated once: on a CPU fresh memory costs more to map than to fill, and a CUDA
graph needs its tensors at the same addresses."""

from dataclasses import dataclass

import torch
from torch import Tensor

from executor_svc.model.config import DecoderConfig
from executor_svc.model.sharding import Shard


@dataclass(frozen=True)
class Activations:
    """What the layers of one step write, one layer over the other; all [tokens, ...] in the model's dtype.

    Attributes:
        residual: [tokens, hidden], the residual stream.
        normed: [tokens, hidden], its norm: what a projection reads.
        projected: [tokens, hidden], what attention or the MLP adds to the residual stream.
        qkv: [tokens, (heads + 2 * kv_heads) * head_dim].
        query, attended: [tokens, heads, head_dim].
        gate_up: [tokens, 2 * intermediate], of dense MLPs.
        gated: [tokens, intermediate], likewise.
        router_logits: [tokens, experts], of mixtures.
    """

    residual: Tensor
    normed: Tensor
    projected: Tensor
    qkv: Tensor
    query: Tensor
    attended: Tensor
    gate_up: Tensor
    gated: Tensor
    router_logits: Tensor

    @classmethod
    def empty(
        cls, config: DecoderConfig, shard: Shard, max_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> "Activations":
        """Uninitialised memory for steps of up to `max_tokens` tokens."""

        def new(*shape: int) -> Tensor:
            return torch.empty((max_tokens, *shape), dtype=dtype, device=device)

        return cls(
            residual=new(config.hidden_size),
            normed=new(config.hidden_size),
            projected=new(config.hidden_size),
            qkv=new((shard.num_heads + 2 * shard.num_kv_heads) * config.head_dim),
            query=new(shard.num_heads, config.head_dim),
            attended=new(shard.num_heads, config.head_dim).zero_(),  # padding tokens compute with what lies there
            gate_up=new(2 * shard.intermediate_size),
            gated=new(shard.intermediate_size),
            router_logits=new(config.moe.num_experts if config.moe else 0),
        )

    def first(self, num_tokens: int) -> "Activations":
        """Views of the first `num_tokens`, for one step."""
        return Activations(**{name: tensor[:num_tokens] for name, tensor in vars(self).items()})
