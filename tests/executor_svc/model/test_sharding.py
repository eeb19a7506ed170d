"""Tensor-parallel ranks give the tokens that one rank gives, however the model and the batch are cut."""

import random
from typing import Any

import pytest
import torch

from common.errors import CheckpointError
from executor_svc.model.families import read_config
from executor_svc.model.rank_group import SINGLE_RANK, RankGroup, join_group, smallest
from executor_svc.model.sharding import Shard
from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import Pool, Row, run
from tests.executor_svc.ranks import CPU, GlooRanks, generate, in_threads, start_rank
from tests.support.checkpoints import VOCAB_SIZE

NEW_TOKENS = 10
SAMPLED = {"temperature": 0.8, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "seed": 99}


def prompts_of(*lengths: int, vocab_size: int = VOCAB_SIZE) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("size", "config"),
    [
        (2, {}),
        (2, {"tied": False, "vocab_size": 301}),  # the second rank has 109 rows of its 192
        (3, {"num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 66, "vocab_size": 130}),
        (4, {"vocab_size": 37}),  # all of it on the first rank; and two ranks share a KV head
        (4, {"num_key_value_heads": 1, "attention_bias": True}),
        (2, {"experts": True}),
        (4, {"experts": True, "mlp_only_layers": [0], "tied": False}),
        (
            3,
            {
                "experts": True,
                "intermediate_size": 64,
                "moe_intermediate_size": 33,
                "num_attention_heads": 3,
                "num_key_value_heads": 3,
            },
        ),  # without dense layers it does not matter that 3 does not divide 64
    ],
    ids=str,
)
def test_tokens_of_one_rank(checkpoint: Make, size: int, config: dict[str, Any], sampling: dict[str, Any]) -> None:
    folder = checkpoint(preset="tiny", num_layers=2, **config)
    prompts = prompts_of(1, 5, 16, 17, 40, vocab_size=config.get("vocab_size", VOCAB_SIZE))
    expected = generate(SINGLE_RANK, folder, prompts, NEW_TOKENS, sampling)
    ranks = in_threads(size, lambda group: generate(group, folder, prompts, NEW_TOKENS, sampling))
    assert ranks == [expected] * size


def test_plans_padded_to_a_size(checkpoint: Make) -> None:
    folder = checkpoint(preset="tiny", num_layers=2)
    prompts = prompts_of(3, 7, 12)
    expected = generate(SINGLE_RANK, folder, prompts, NEW_TOKENS, {})
    ranks = in_threads(2, lambda group: generate(group, folder, prompts, NEW_TOKENS, {}, decode_sizes=(4, 8)))
    assert ranks == [expected, expected]


@pytest.mark.parametrize("rows", [1, 3, 4, 9, 16])
def test_every_rank_knows_every_lane_s_token(checkpoint: Make, rows: int) -> None:
    """Rows are drawn in ways of their own. Also fewer rows than ranks, and as many as a step may have."""
    folder = checkpoint(preset="tiny", num_layers=1)
    lanes = random.Random(rows).sample(range(16), rows)
    pool = Pool(64, 16)
    ways = [
        {
            "temperature": index % 3 / 2,
            "top_k": index % 4 * 20,
            "top_p": 1 - index / 32,
            "min_p": index / 320,
            "seed": index,
        }
        for index in range(rows)
    ]
    batch = [Row(lane, [lane, 2, 3], 3, pool.grow([], 3), **way) for lane, way in zip(lanes, ways, strict=True)]

    def prompt(group: RankGroup) -> tuple[list[int], list[int]]:
        runner, limits = start_rank(folder, group)
        return run(runner, batch, limits).tolist(), runner._lanes.last_tokens.tolist()

    alone = prompt(SINGLE_RANK)
    assert [alone[1][lane] for lane in lanes] == alone[0]
    assert in_threads(4, prompt) == [alone] * 4


@pytest.mark.parametrize(
    ("config", "size", "complaint"),
    [
        ({}, 3, "2 KV heads cannot be shared out among 3 ranks: one number must be a multiple of the other"),
        ({}, 8, "4 attention heads cannot be shared out among 8 ranks: 4 are left over"),
        ({"intermediate_size": 65}, 2, "65 columns of an MLP cannot be shared out among 2 ranks: 1 are left over"),
        (
            {"experts": True, "moe_intermediate_size": 30},
            4,
            "30 columns of an expert cannot be shared out among 4 ranks: 2 are left over",
        ),
    ],
    ids=str,
)
def test_model_that_cannot_be_cut(checkpoint: Make, config: dict[str, Any], size: int, complaint: str) -> None:
    folder = checkpoint(preset="tiny", num_layers=1, **config)
    with pytest.raises(CheckpointError, match=complaint):
        Shard.of(read_config(folder), 0, size)


def test_no_other_ranks_without_torchrun() -> None:
    group = join_group(CPU)
    assert (group.rank, group.size) == (0, 1)


def test_smallest() -> None:
    assert in_threads(3, lambda group: smallest(group, 7 - group.rank, CPU)) == [5, 5, 5]
    assert smallest(SINGLE_RANK, 7, CPU) == 7


def test_over_gloo(checkpoint: Make) -> None:
    dense = checkpoint(preset="tiny", num_layers=2, vocab_size=301, num_key_value_heads=1, attention_bias=True)
    sparse = checkpoint(preset="tiny", num_layers=2, experts=True)
    prompts = prompts_of(1, 5, 16, 33, vocab_size=301)
    with GlooRanks(2) as ranks:
        for folder, sampling in ((dense, {}), (sparse, SAMPLED)):
            expected = generate(SINGLE_RANK, folder, prompts, NEW_TOKENS, sampling)
            assert ranks.run(generate, folder, prompts, NEW_TOKENS, sampling) == [expected, expected]


def add_up(group: RankGroup, value: float) -> float:
    total = torch.full((3,), value)
    group.all_reduce(total)
    return float(total[0])


def test_killed_rank_fails_the_others_calls() -> None:
    """None of them waits for the group's timeout, which is ten minutes."""
    with GlooRanks(2) as ranks:
        assert ranks.run(add_up, 1.5) == [3.0, 3.0]
        ranks.begin(0, add_up, 1.5)
        ranks.processes[1].kill()
        assert isinstance(ranks.result(0), RuntimeError)
        ranks.begin(0, add_up, 1.5)
        assert isinstance(ranks.result(0), RuntimeError)


def test_a_shard_is_a_part_of_the_whole(checkpoint: Make) -> None:
    """Every rank's geometry, of a model with the proportions of the largest."""
    config = read_config(checkpoint(preset="32B", num_layers=1))
    shards = [Shard.of(config, rank, 16) for rank in range(16)]
    assert {shard.num_heads for shard in shards} == {4}
    assert [(shard.first_kv_head, shard.num_kv_heads) for shard in shards] == [(rank // 2, 1) for rank in range(16)]
    assert [token for shard in shards for token in shard.vocab] == list(range(VOCAB_SIZE))


def test_one_rank_s_vocabulary_is_not_padded(checkpoint: Make) -> None:
    config = read_config(checkpoint(preset="tiny", num_layers=1, vocab_size=37))
    assert Shard.of(config).vocab_size == 37
