"""A rank's parameters, and which tensors of a Hugging Face checkpoint each of them is made of."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import torch

from executor_svc.model.config import DecoderConfig
from executor_svc.model.packing import MatrixShape
from executor_svc.model.sharding import Shard

Slices = tuple[slice | int | list[int], ...]
SCORE = "score.weight"  # of a classifier, in place of the head


class Role(Enum):
    """What kernels do with a parameter: they read it, or they multiply by it, and may want it in a layout of theirs."""

    TENSOR = "tensor"
    MATRIX = "matrix"
    GATED_MATRIX = "gated matrix"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint, and the part of it that a parameter has.

    Attributes:
        shape: of the stored tensor.
        part: of the stored tensor.
        target: of the parameter, where the part goes.
    """

    name: str
    shape: tuple[int, ...]
    part: Slices = ()
    target: Slices = ()


@dataclass(frozen=True)
class Parameter:
    """A parameter of a rank. Matrices are [out, in].

    Attributes:
        stored: what it is made of.
        kept: False where it is not used and only hashed: a bias of what is summed over the ranks, which only the first
            one adds; the head of a model that takes embeddings alone.
        padding: the rows from here on are zeros, which no stored tensor has.
        same_as: the parameter whose values it has, which is in no checkpoint: the head of a tied model.
    """

    name: str
    shape: tuple[int, ...]
    stored: tuple[StoredTensor, ...]
    role: Role = Role.TENSOR
    kept: bool = True
    padding: int | None = None
    same_as: str | None = None

    @property
    def matrix_shape(self) -> MatrixShape:
        """Of one that kernels multiply by."""
        out_size, in_size = self.shape
        return MatrixShape(out_size, in_size, gated=self.role is Role.GATED_MATRIX)

    @property
    def num_elements(self) -> int:
        """Elements that are this parameter's own."""
        return 0 if self.same_as is not None or not self.kept else torch.Size(self.shape).numel()


def parameters(config: DecoderConfig, shard: Shard, *, has_head: bool = True) -> list[Parameter]:
    """All parameters of a rank, in the order in which a step needs them; `has_head`: see `WeightLayout`."""
    table = _table("embedding", "model.embed_tokens.weight", config, shard)
    head = replace(table, name="head", stored=(), role=Role.MATRIX, same_as="embedding")
    if config.score_token is not None:
        head = _score_head(config.score_token, config.hidden_size, shard)
    elif not config.tied:
        head = replace(_table("head", "lm_head.weight", config, shard), role=Role.MATRIX)
    layers = [parameter for index in range(config.num_layers) for parameter in _layer(config, shard, index)]
    return [table, *layers, _whole("norm", "model.norm.weight", config.hidden_size), replace(head, kept=has_head)]


def _table(name: str, stored_name: str, config: DecoderConfig, shard: Shard) -> Parameter:
    rows = len(shard.vocab)
    vocab = slice(shard.vocab.start, shard.vocab.stop)
    stored = StoredTensor(stored_name, (config.vocab_size, config.hidden_size), (vocab,), (slice(rows),))
    return Parameter(name, (shard.vocab_size, config.hidden_size), (stored,), padding=rows)


def _score_head(token: int, hidden: int, shard: Shard) -> Parameter:
    """Zeros but for the row of one token, which is a classifier's only label."""
    row, is_here = token - shard.vocab.start, token in shard.vocab
    target = slice(row, row + 1) if is_here else slice(0)
    stored = StoredTensor(SCORE, (1, hidden), (slice(int(is_here)),), (target,))
    return Parameter("head", (shard.vocab_size, hidden), (stored,), Role.MATRIX, padding=0)


def _layer(config: DecoderConfig, shard: Shard, index: int) -> Iterator[Parameter]:
    prefix, stored_prefix = f"layers.{index}.", f"model.layers.{index}."
    hidden = config.hidden_size
    yield _whole(f"{prefix}input_norm", f"{stored_prefix}input_layernorm.weight", hidden)
    yield from _attention(config, shard, prefix, f"{stored_prefix}self_attn.")
    yield _whole(f"{prefix}post_attention_norm", f"{stored_prefix}post_attention_layernorm.weight", hidden)
    if config.moe is not None and index in config.moe.sparse_layers:
        yield from _experts(config, shard, prefix, f"{stored_prefix}mlp.")
    else:
        width = shard.intermediate_size
        gate_up, down = _swiglu(
            f"{stored_prefix}mlp.", hidden, config.intermediate_size, width, shard, is_fused=config.fused
        )
        yield Parameter(f"{prefix}gate_up", (2 * width, hidden), gate_up, Role.GATED_MATRIX)
        yield Parameter(f"{prefix}down", (hidden, width), (down,), Role.MATRIX)


def _attention(config: DecoderConfig, shard: Shard, prefix: str, stored_prefix: str) -> Iterator[Parameter]:
    hidden, head_dim = config.hidden_size, config.head_dim
    heads = _slice(shard.rank * shard.num_heads * head_dim, shard.num_heads * head_dim)
    kv_heads = _slice(shard.first_kv_head * head_dim, shard.num_kv_heads * head_dim)
    width = shard.num_heads * head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
    matrix, bias, end, offset = [], [], 0, 0
    for name, size, own in (("q", q_size, heads), ("k", kv_size, kv_heads), ("v", kv_size, kv_heads)):
        start, end = end, end + own.stop - own.start
        stored_size = q_size + 2 * kv_size if config.fused else size
        rows = _rows(offset + own.start, offset + own.stop, config, is_rotated=name != "v")
        part = ((rows,), (slice(start, end),))
        stored_name = f"{stored_prefix}{'qkv' if config.fused else name}_proj"
        matrix.append(StoredTensor(f"{stored_name}.weight", (stored_size, hidden), *part))
        bias.append(StoredTensor(f"{stored_name}.bias", (stored_size,), *part))
        offset += size if config.fused else 0
    output = StoredTensor(f"{stored_prefix}o_proj.weight", (hidden, q_size), (slice(None), heads))
    yield Parameter(f"{prefix}qkv", (end, hidden), tuple(matrix), Role.MATRIX)
    if config.qk_norm:
        for name in "qk":
            rows = _rows(0, head_dim, config, is_rotated=True)
            norm = StoredTensor(f"{stored_prefix}{name}_norm.weight", (head_dim,), (rows,))
            yield Parameter(f"{prefix}{name}_norm", (head_dim,), (norm,))
    yield Parameter(f"{prefix}output", (hidden, width), (output,), Role.MATRIX)
    if config.qkv_bias:
        yield Parameter(f"{prefix}qkv_bias", (end,), tuple(bias))
    if config.output_bias:
        output_bias = _whole(f"{prefix}output_bias", f"{stored_prefix}o_proj.bias", hidden)
        yield replace(output_bias, kept=shard.rank == 0)


def _rows(start: int, end: int, config: DecoderConfig, *, is_rotated: bool) -> slice | list[int]:
    """Rows of whole heads, in the order of the kernels.

    A kernel rotates a dimension of a head's first half with the one as far into its second half. Where only the first
    `rotated` dimensions are, a checkpoint pairs those by their own halves: so each head's are put into the order
    first half rotated, first half left alone, second half rotated, second half left alone. As q and k are in the same
    order, their products stay what they were.
    """
    rotated, head_dim = config.rotated, config.head_dim
    if not is_rotated or rotated == head_dim:
        return slice(start, end)
    middle = rotated + (head_dim - rotated) // 2
    halves = (range(rotated // 2), range(rotated, middle), range(rotated // 2, rotated), range(middle, head_dim))
    return [head + dim for head in range(start, end, head_dim) for dims in halves for dim in dims]


def _experts(config: DecoderConfig, shard: Shard, prefix: str, stored_prefix: str) -> Iterator[Parameter]:
    assert config.moe is not None
    hidden, count, width = config.hidden_size, config.moe.num_experts, shard.expert_intermediate_size
    gate_up: list[StoredTensor] = []
    down = []
    for index in range(count):
        of_expert = f"{stored_prefix}experts.{index}."
        both, one = _swiglu(of_expert, hidden, config.moe.intermediate_size, width, shard, is_fused=False)
        gate_up += [replace(stored, target=(index, *stored.target)) for stored in both]
        down.append(replace(one, target=(index,)))
    router = StoredTensor(f"{stored_prefix}gate.weight", (count, hidden))
    yield Parameter(f"{prefix}router", router.shape, (router,), Role.MATRIX)
    yield Parameter(f"{prefix}experts_gate_up", (count, 2 * width, hidden), tuple(gate_up))
    yield Parameter(f"{prefix}experts_down", (count, hidden, width), tuple(down))


def _swiglu(
    prefix: str, hidden: int, intermediate: int, width: int, shard: Shard, *, is_fused: bool
) -> tuple[tuple[StoredTensor, ...], StoredTensor]:
    """Gate over up, and down; `width` is this rank's part of `intermediate`."""
    both = []
    for index, name in enumerate(("gate", "up")):
        start = shard.rank * width + (index * intermediate if is_fused else 0)
        stored_name, rows = (
            (f"{prefix}gate_up_proj", 2 * intermediate) if is_fused else (f"{prefix}{name}_proj", intermediate)
        )
        own = ((_slice(start, width),), (_slice(index * width, width),))
        both.append(StoredTensor(f"{stored_name}.weight", (rows, hidden), *own))
    part = _slice(shard.rank * width, width)
    return tuple(both), StoredTensor(f"{prefix}down_proj.weight", (hidden, intermediate), (slice(None), part))


def _whole(name: str, stored_name: str, size: int) -> Parameter:
    return Parameter(name, (size,), (StoredTensor(stored_name, (size,)),))


def _slice(start: int, length: int) -> slice:
    return slice(start, start + length)
