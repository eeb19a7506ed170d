"""Checkpoints with random weights, and the workload that the GPU's benchmark sends."""

import pytest
import torch

from benchmarks.rig import checkpoints, service_load
from executor_svc.model.checkpoint import Checkpoint
from executor_svc.model.families import read_config
from executor_svc.model.weights import load_weights

PUBLISHED = {
    "0.6B": 596_049_920,
    "1.7B": 1_720_574_976,
    "4B": 4_022_468_096,
    "8B": 8_190_735_360,
    "30B-A3B": 30_532_122_624,
}
"""Parameters of Qwen3's checkpoints, as their indices and the hub say."""


# --- checkpoints ---


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_have_the_models_parameters(name):
    assert checkpoints.SHAPES[name].num_bytes() == 2 * PUBLISHED[name]


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
def test_a_checkpoint_can_be_served(tiny, name):
    folder = tiny[name]
    assert len(list(folder.glob("*.safetensors"))) > 1
    with Checkpoint(folder) as checkpoint:  # each shard must hold what the index says
        weights, _ = load_weights(checkpoint, read_config(folder), torch.bfloat16, torch.device("cpu"))
    assert weights.layout.num_parameters == checkpoints.SHAPES[name].num_bytes() // 2
    assert weights.tensor("embedding").float().std() == pytest.approx(0.02, rel=0.05)
    assert weights.tensor("norm").float().mean() == pytest.approx(1, abs=0.02)


def test_transformers_reads_the_same_shapes():
    from transformers import AutoConfig

    for name, shape in checkpoints.SHAPES.items():
        config = shape.config()
        theirs = AutoConfig.for_model(config.pop("model_type"), **config)
        assert (theirs.num_hidden_layers, theirs.head_dim, theirs.vocab_size) == (
            shape.layers,
            shape.head_dim,
            shape.vocab_size,
        ), name


# --- the workload ---


def test_the_workload_is_nano_vllms():
    requests = service_load.make_requests(256)
    assert sum(request.num_output for request in requests) == 133_966
    assert max(request.prompt.max() for request in requests) <= 10_000
    cut = service_load.make_requests(256, 30)
    assert {len(request.prompt) for request in cut} == {30} == {request.num_output for request in cut}
    assert all((a.prompt[:30] == b.prompt).all() for a, b in zip(requests, cut, strict=True))


def test_runs_share_no_cached_prompts():
    first, second = (service_load.submits(service_load.make_requests(3), salt) for salt in "ab")
    assert {submit.cache_salt for submit in first}.isdisjoint({submit.cache_salt for submit in second})
    assert len({submit.request_id for submit in first + second}) == 6
    assert not any(submit.params.stop_token_ids for submit in first)


def test_the_pool_holds_all_requests():
    requests = service_load.make_requests(20)
    for block in (16, 256):
        blocks = sum(-(-(len(request.prompt) + request.num_output) // block) for request in requests)
        assert service_load.pool_positions(requests) // block >= blocks
