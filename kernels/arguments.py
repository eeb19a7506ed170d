"""Arguments that kernels and their twins take together. The sampler's are `kernels.reference.SamplingInputs`."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class KVCache:
    """The KV cache of one layer, in blocks.

    Attributes:
        keys, values: [num_blocks, kv_heads, block_size, head_dim] of one dtype, in strides that the kernel takes.
    """

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class RopeStoreLayer:
    """What `qk_norm_rope_store` takes of a layer: the same at every step.

    Attributes:
        q_weight, k_weight: [head_dim], of the head norms.
        eps: of the head norms.
        cos_sin: [max positions, head_dim] float32, cosines in the first half and sines in the second.
        cache: where K and V are stored.
    """

    q_weight: Tensor
    k_weight: Tensor
    eps: float
    cos_sin: Tensor
    cache: KVCache


@dataclass(frozen=True)
class AttentionRows:
    """The rows of a step, all int32 on the device.

    Attributes:
        query_starts: [rows + 1], first token of each row, and the number of tokens.
        context_lens: [rows], positions that a row's last token sees.
        block_tables: [rows, blocks of the longest row], padded with anything.
    """

    query_starts: Tensor
    context_lens: Tensor
    block_tables: Tensor


@dataclass(frozen=True)
class ExpertLayer:
    """What `mix_experts` takes of a layer: the same at every step.

    Attributes:
        gate_up: [experts, 2 * intermediate, hidden], gate over up.
        down: [experts, hidden, intermediate].
        num_chosen: experts a token.
        renormalized: whether a token's weights are made to sum to 1.
    """

    gate_up: Tensor
    down: Tensor
    num_chosen: int
    renormalized: bool
