"""Arguments that kernels and their twins take together. The sampler's are `kernels.reference.SamplingInputs`."""

from dataclasses import dataclass, replace

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
        norms: weights [head_dim] of the norms of q's and of k's heads; None in a model that has no such norms.
        eps: of these norms.
        cos_sin: [max positions, head_dim] float32, cosines in the first half and sines in the second.
        cache: where K and V are stored.
    """

    norms: tuple[Tensor, Tensor] | None
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


@dataclass(frozen=True)
class Adjustments:
    """What is asked of the scores of rows; see `kernels.reference.adjust_logits`. int32 where nothing else is said.

    Attributes:
        lanes: [rows], whose tokens count.
        lengths: [rows], known tokens of each row's sequence.
        num_prompts: [rows], how many of them are the prompt.
        presences, frequencies, repetitions: [rows] float32, penalties; 0, 0 and 1 are off.
        mask_rows: [rows], which of the masks is the row's; -1 for none.
        masks: [masks, ceil(vocab / 32)], a bit for each token, lowest first: whether it may be drawn.
        bias_starts: [rows + 1], where each row's biases start, and where the last row's end.
        bias_ids, biases: [biases] int32 and float32; a row has at most one bias for a token.
        word_starts: [rows + 1], where each row's bad words start among the words.
        word_offsets: [words + 1], where each word's tokens start; every word has a token.
        word_tokens: [tokens of all words].
    """

    lanes: Tensor
    lengths: Tensor
    num_prompts: Tensor
    presences: Tensor
    frequencies: Tensor
    repetitions: Tensor
    mask_rows: Tensor
    masks: Tensor
    bias_starts: Tensor
    bias_ids: Tensor
    biases: Tensor
    word_starts: Tensor
    word_offsets: Tensor
    word_tokens: Tensor

    def rows(self, first: int, end: int) -> "Adjustments":
        """The adjustments of rows `first` to `end - 1`."""
        of_rows = {name: getattr(self, name)[first:end] for name in _OF_ROWS}
        starts = {name: getattr(self, name)[first : end + 1] for name in ("bias_starts", "word_starts")}
        return replace(self, **of_rows, **starts)


_OF_ROWS = ("lanes", "lengths", "num_prompts", "presences", "frequencies", "repetitions", "mask_rows")
