"""Which part of a model each rank holds.

The cut is Megatron-LM's (Shoeybi et al. 2019, arXiv:1909.08053): matrices that read the hidden state are cut by their
rows and matrices that write it by their columns, so that attention and the MLP need one sum over the ranks each. The
embedding and the head are cut by the vocabulary.
"""

from dataclasses import dataclass

from common.errors import CheckpointError
from executor_svc.model.config import DecoderConfig

_VOCAB_MULTIPLE = 64  # rows of logits begin where wide loads and tensor cores want them to


@dataclass(frozen=True)
class Shard:
    """A rank's part of a model, in counts of what it holds. All ranks hold equally much.

    Attributes:
        rank, size: which part, of how many.
        num_heads: query heads.
        num_kv_heads: KV heads; with more ranks than the model has of them, several ranks hold the same one.
        first_kv_head: the model's KV head that is the first one here.
        intermediate_size: of dense MLPs, 0 if there are none.
        expert_intermediate_size: of each expert, 0 if there are none. Every rank holds a part of every expert.
        vocab_size: rows of the embedding and of the head. With several ranks the last ones may lie past the vocabulary.
        vocab: token ids of the rows within the vocabulary.
    """

    rank: int
    size: int
    num_heads: int
    num_kv_heads: int
    first_kv_head: int
    intermediate_size: int
    expert_intermediate_size: int
    vocab_size: int
    vocab: range

    @classmethod
    def of(cls, config: DecoderConfig, rank: int = 0, size: int = 1) -> "Shard":
        """The part of rank `rank` among `size`; by default the whole model.

        Raises:
            CheckpointError: the model cannot be cut into so many equal parts.
        """
        num_kv_heads = config.num_kv_heads
        if num_kv_heads % size and size % num_kv_heads:
            raise CheckpointError(
                f"{num_kv_heads} KV heads cannot be shared out among {size} ranks: "
                "one number must be a multiple of the other"
            )
        moe = config.moe
        all_sparse = moe is not None and len(moe.sparse_layers) == config.num_layers
        rows = -(-config.vocab_size // size)
        if size > 1:
            rows = -(-rows // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE
        first_row, end = min(rank * rows, config.vocab_size), min((rank + 1) * rows, config.vocab_size)
        return cls(
            rank=rank,
            size=size,
            num_heads=_share(config.num_heads, size, "attention heads"),
            num_kv_heads=max(1, num_kv_heads // size),
            first_kv_head=rank * num_kv_heads // size,
            intermediate_size=0 if all_sparse else _share(config.intermediate_size, size, "columns of an MLP"),
            expert_intermediate_size=0 if moe is None else _share(moe.intermediate_size, size, "columns of an expert"),
            vocab_size=rows,
            vocab=range(first_row, end),
        )

    def layer_products(self, config: DecoderConfig) -> int:
        """Multiplications that a token takes in the matrices of a layer: the larger kind, where there are two."""
        attention = (2 * self.num_heads + 2 * self.num_kv_heads) * config.head_dim
        chosen = 0 if config.moe is None else config.moe.num_chosen
        mlp = 3 * max(self.intermediate_size, chosen * self.expert_intermediate_size)
        return config.hidden_size * (attention + mlp)


def _share(count: int, size: int, what: str) -> int:
    if count % size:
        raise CheckpointError(f"{count} {what} cannot be shared out among {size} ranks: {count % size} are left over")
    return count // size
