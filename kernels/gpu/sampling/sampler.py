"""The sampler: one pass over the logits, then a program a row that reads the few segments which matter.

A row without filters reads one segment more, a greedy row likewise; a filtered row those that may hold its likeliest
tokens. There is no sort, and nothing that the host decides depends on what is on the device.

Sums are float32: a segment's mass is a tree over its 128 tokens; the CDF is a scan over the segments, and then over the
tokens of one of them. So a draw is the twin's unless the uniform lies within 1e-5 of an edge of the CDF, or a token's
share within 1e-5 of the edge of a filter.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.gpu.checks import (
    check_contiguous,
    check_dtype,
    check_last_stride,
    check_power_of_two,
    check_range,
    check_rank,
    check_tensor,
)
from kernels.gpu.integers import next_power_of_two
from kernels.gpu.sampling.draw import choose_kernel
from kernels.gpu.sampling.segment_statistics import (
    MAX_ROWS,
    MAX_VOCAB_SIZE,
    count_segments,
    launch_statistics,
)
from kernels.reference.sampling import INPUT_DTYPES, SamplingInputs


@dataclass(frozen=True)
class SamplerTiles:
    """A program holds the statistics of a row's segments, padded to the power of two `segments`, in registers.

    `max_registers` is of a thread. Left to itself, ptxas guesses that a third block a multiprocessor is worth spilling.
    """

    segments: int
    num_warps: int
    max_registers: int


def choose_tiles(vocab_size: int) -> SamplerTiles:
    """One size for each size of vocabulary."""
    return SamplerTiles(next_power_of_two(count_segments(vocab_size)), num_warps=8, max_registers=255)


class TritonSampler:
    """Samples batches of up to `max_rows` rows, on one stream at a time: it owns the workspace.

    Args:
        max_rows: most rows of a batch.
        vocab_size: tokens of the vocabulary, 2**18 at most.
        device: where the logits are.
        num_candidates: how many tokens of a row a filter's cut is looked for among; with more left it is slower. A
            power of two.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self, max_rows: int, vocab_size: int, device: torch.device | str, *, num_candidates: int = 2048
    ) -> None:
        check_range("max_rows", max_rows, 1, MAX_ROWS)
        check_range("vocab_size", vocab_size, 1, MAX_VOCAB_SIZE)
        check_power_of_two("num_candidates", num_candidates, 2, 1 << 14)
        self._vocab_size = vocab_size
        self._max_rows = max_rows
        self._num_candidates = num_candidates
        self._tiles = choose_tiles(vocab_size)
        num_segments = count_segments(vocab_size)
        self._maxima = torch.empty(max_rows, num_segments, dtype=torch.float32, device=device)
        self._masses = torch.empty_like(self._maxima)
        self._weights = torch.empty_like(self._maxima)
        # One place more, which takes what is not chosen: 4 of them keep the rows of candidates aligned to 16 bytes.
        self._segment_lists = torch.empty(max_rows, num_segments + 1, dtype=torch.int32, device=device)
        self._candidates = torch.empty(max_rows, num_candidates + 4, dtype=torch.float32, device=device)

    def sample(self, logits: Tensor, inputs: SamplingInputs, last_tokens: Tensor, out: Tensor) -> None:
        """Draw one token a row by inverting the CDF, in order of token id, of the filtered distribution.

        A row's token does not depend on the other rows. A row without one has `NO_TOKEN` or `NO_NUMBERS` of the twin.
        Two launches, whose grids depend on the shape of the logits alone. Lanes are trusted: one beyond `last_tokens`
        writes to foreign memory.

        Args:
            logits: [rows, vocab], bfloat16, float16 or float32; the rows may lie apart, each must be dense.
            inputs: of the rows, each tensor dense.
            last_tokens: [lanes] int32; becomes the drawn tokens at the rows' lanes, and 0 for a row without one, so
                that it stays an index.
            out: [rows] int32; becomes the drawn tokens.

        Raises:
            ValueError: a shape, dtype, device or stride does not fit, or there are more rows than `max_rows`.
        """
        check_rank("logits", logits, 2)
        check_dtype("logits", logits)
        num_rows, device = logits.shape[0], self._maxima.device
        check_range("the number of rows of logits", num_rows, 0, self._max_rows)
        check_tensor("logits", logits, (num_rows, self._vocab_size), logits.dtype, device)
        check_last_stride("logits", logits)
        columns = vars(inputs)
        for name, dtype in INPUT_DTYPES.items():
            check_tensor(name, columns[name], (num_rows,), dtype, device)
            check_contiguous(name, columns[name])
        check_tensor("out", out, (num_rows,), torch.int32, device)
        check_contiguous("out", out)
        check_rank("last_tokens", last_tokens, 1)
        check_tensor("last_tokens", last_tokens, tuple(last_tokens.shape), torch.int32, device)
        check_contiguous("last_tokens", last_tokens)
        if num_rows == 0:
            return
        launch_statistics(logits, inputs.temperatures, self._maxima, self._masses)
        choose_kernel.launch(
            (num_rows,),
            logits,
            logits.stride(0),
            *columns.values(),
            last_tokens,
            out,
            self._maxima,
            self._masses,
            self._weights,
            self._segment_lists,
            self._candidates,
            VOCAB=self._vocab_size,
            NUM_SEGMENTS=count_segments(self._vocab_size),
            SEGMENTS=self._tiles.segments,
            CAPACITY=self._num_candidates,
            num_warps=self._tiles.num_warps,
            maxnreg=self._tiles.max_registers,
        )
