"""Every prompt length from one token to three blocks and one, so that no block boundary goes untested.

All prompts begin alike, so one causal forward of transformers over the longest says what each should be followed by.
The steps after the prompt are teacher-forced for the same reason.
"""

import random
from pathlib import Path

import pytest
import torch

from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import Pool, Row, poison_cache, run, start
from tests.support.checkpoints import VOCAB_SIZE, reference_logits
from tests.support.effort import combinations

DECODE_STEPS = 3
ROWS = 64


def followed_by(folder: Path, tokens: list[int]) -> list[int]:
    """Entry n - 1: the likeliest token after the first n, where it is likeliest by a clear margin, else -1."""
    logits = reference_logits(folder, tokens)
    best = logits.topk(2).values
    clear = best[:, 0] - best[:, 1] > 1e-3
    assert clear.float().mean() > 0.98
    return torch.where(clear, logits.argmax(-1), -1).tolist()


@pytest.mark.parametrize(("block_size", "chunk"), combinations([16, 1, 256], [7, 10**9]))
def test_every_length(checkpoint: Make, block_size: int, chunk: int) -> None:
    folder = checkpoint(preset="tiny", num_layers=2)
    longest = 3 * block_size + 1
    rng = random.Random(block_size)
    tokens = [rng.randrange(VOCAB_SIZE) for _ in range(longest + DECODE_STEPS)]
    expected = followed_by(folder, tokens)
    lengths = list(range(1, longest + 1))
    if block_size == 256 and chunk == 7:  # a hundred steps for each; keep those near a block's edge
        lengths = [length for length in lengths if length % 256 in (255, 0, 1)]
    runner, limits = start(
        folder,
        block_size=block_size,
        num_blocks=ROWS * (4 + DECODE_STEPS),
        max_num_seqs=ROWS,
        max_batch_tokens=ROWS * longest,
        max_model_len=longest + DECODE_STEPS if block_size > 1 else None,
    )
    for start_index in range(0, len(lengths), ROWS):
        batch = lengths[start_index : start_index + ROWS]
        poison_cache(runner)
        pool = Pool(limits.num_blocks, block_size)
        tables = {length: pool.grow([], length + DECODE_STEPS) for length in batch}
        computed = dict.fromkeys(batch, 0)
        while any(computed[length] < length + DECODE_STEPS for length in batch):
            rows, ends = [], []
            for lane, length in enumerate(batch):
                begin = computed[length]
                if begin >= length + DECODE_STEPS:
                    continue
                end = min(begin + chunk, length) if begin < length else begin + 1
                rows.append(Row(lane, tokens[begin:end], end, tables[length]))
                ends.append(end)
                computed[length] = end
            for end, token in zip(ends, run(runner, rows, limits).tolist(), strict=True):
                assert expected[end - 1] in (token, -1), f"after {end} tokens"
