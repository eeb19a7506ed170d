"""The roofline's counts against counts made in other ways."""

import pytest
import torch

from benchmarks.rig import checkpoints, roofline
from benchmarks.rig.ceilings import Ceilings
from executor_svc.model.families import read_config
from tests.benchmarks.steps import make_step


def test_bytes_of_a_step(tiny):
    """Every weight once (the embedding only where tokens look it up), every position of KV once."""
    rows = [(1, 5), (3, 7)]
    for name, folder in tiny.items():
        config = read_config(folder)
        work = roofline.WorkModel(config, 2).work(make_step(rows, num_samples=1))
        shape = checkpoints.SHAPES[name]
        looked_up = 4 * config.hidden_size
        tables = {"tiny": 0, "tiny-moe": config.vocab_size * config.hidden_size}[name]
        expected = shape.num_bytes() // 2 - tables + looked_up
        if config.moe is not None:  # of 8 experts each token misses 6
            expert = 3 * config.hidden_size * config.moe.intermediate_size
            expected -= config.num_layers * 8 * (6 / 8) ** 4 * expert
        assert work.weight_bytes == pytest.approx(2 * expected)
        position = 2 * 2 * config.num_layers * config.num_kv_heads * config.head_dim
        assert (work.kv_bytes_read, work.kv_bytes_written) == (12 * position, 4 * position)
        assert work.num_bytes == work.weight_bytes + 16 * position


def test_a_step_without_samples_reads_no_head(tiny):
    config = read_config(tiny["tiny"])
    model = roofline.WorkModel(config, 2)
    with_head, without = (model.work(make_step([(4, 9)], num_samples=n)) for n in (1, 0))
    head = config.vocab_size * config.hidden_size
    assert with_head.weight_bytes - without.weight_bytes == 2 * head
    assert with_head.operations - without.operations == 2 * head


def test_operations_of_a_decode_step_are_transformers(tiny):
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(tiny["tiny"], attn_implementation="eager")
    before = model(torch.arange(8)[None])
    with FlopCounterMode(display=False) as counter:
        model(torch.tensor([[3]]), past_key_values=before.past_key_values)
    work = roofline.WorkModel(read_config(tiny["tiny"]), 2).work(make_step([(1, 9)]))
    assert work.operations == counter.get_total_flops()


def test_operations_of_prompts_and_experts(tiny):
    """A chunk is as much work as its tokens one by one; a token uses 2 of 8 experts."""
    for folder in tiny.values():
        model = roofline.WorkModel(read_config(folder), 2)
        chunk = model.work(make_step([(5, 12)], num_samples=0)).operations
        assert chunk == sum(model.work(make_step([(1, c)], num_samples=0)).operations for c in range(8, 13))
    config = read_config(tiny["tiny-moe"])
    work = roofline.WorkModel(config, 2).work(make_step([(1, 2)], num_samples=0))
    attention = 4 * 2 * config.num_heads * config.head_dim
    matrices = 2 * config.hidden_size * config.head_dim * (config.num_heads + config.num_kv_heads)
    matrices += config.hidden_size * (8 + 2 * 3 * config.moe.intermediate_size)
    assert work.operations == config.num_layers * (2 * matrices + attention)


def test_the_least_time_is_each_steps_longer_one():
    ceilings = Ceilings(copy=100.0, matmul=1000.0)
    works = [roofline.StepWork(150, 40, 10, 1000), roofline.StepWork(10, 10, 0, 4000)]
    assert roofline.least_time(works, ceilings, 1) == 2.0 + 4.0
    assert roofline.least_time(works, ceilings, 2) == 1.0 + 2.0
    assert roofline.total_work(works) == roofline.StepWork(160, 50, 10, 5000)
