"""docs/sizing.md's figures of the KV cache are those that executors reckon with."""

import re

import pytest
import torch

from common.plan import ExecutorLimits
from executor_svc.model.attention import KVGeometry
from tests import ROOT
from tests.executor_svc.published_configs import QWEN3_30B_A3B, QWEN3_32B

PAGE = (ROOT / "docs" / "sizing.md").read_text()
ROWS = [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\| Qwen.*$", PAGE, re.MULTILINE)]
GIB = 2**30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_bytes_and_concurrency_of_models(row: list[str]) -> None:
    _, *counts, kib, in_a_gib, in_forty = row
    layers, heads, head_dim = map(int, counts)
    geometry = KVGeometry(layers, heads, head_dim, block_size=16, dtype=torch.bfloat16)
    token_bytes = geometry.block_bytes // 16
    assert (kib, in_a_gib) == (f"{token_bytes // 1024}", f"{GIB // token_bytes:,}")
    limits = ExecutorLimits(
        num_blocks=40 * GIB // geometry.block_bytes, block_size=16, max_model_len=4096, max_num_seqs=64,
        max_batch_tokens=4096, vocab_size=1, hidden_size=1,
    )  # fmt: skip
    assert limits.room == f"{in_forty} sequences of 4,096 tokens"


@pytest.mark.parametrize(("name", "config"), [("Qwen3-32B", QWEN3_32B), ("Qwen3-30B-A3B", QWEN3_30B_A3B)])
def test_layers_and_heads_are_those_of_published_configs(name: str, config: dict[str, int]) -> None:
    (row,) = (row for row in ROWS if name in row[0])
    keys = ("num_hidden_layers", "num_key_value_heads", "head_dim")
    assert [int(count) for count in row[1:4]] == [config[key] for key in keys]
