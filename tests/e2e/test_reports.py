"""Three reports about nano-vllm, end to end: the core, its socket, a real executor process, real tokens.

The first asks for allocation at block boundaries, the second for equal prompts prefilled in one step, the third for
preempted sequences that hit the prefix cache when they come back.
"""

import contextlib
import subprocess
import sys
from collections.abc import Callable

import pytest

from common import messages as m
from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.scheduling.scheduler import Scheduler
from tests.support.checkpoints import reference_greedy
from tests.support.core import running_core

Request = tuple[list[int], int]  # prompt, max_tokens
VOCAB_SIZE = 2000


def serve(
    run_dir,
    requests: list[Request],
    *options: str,
    config: SchedulerConfig | None = None,
    watch: Callable[[Scheduler], None] = lambda scheduler: None,
) -> tuple[list[list[int]], Scheduler]:
    """Greedy tokens of each request, and the scheduler that they went through.

    All requests are there before the executor, so that its first plan can take them together. `watch` is called
    with the scheduler whenever tokens arrive.
    """
    run_dir.mkdir()
    with contextlib.ExitStack() as stack:
        core = stack.enter_context(running_core(run_dir, config))
        front = core.frontend()
        for i, (prompt, max_tokens) in enumerate(requests):
            front.submit(f"r{i}", prompt, max_tokens=max_tokens)
        assert front.status().waiting == len(requests)
        command = [sys.executable, "-m", "executor_svc", "--scheduler", core.back, "--threads", "1", *options]
        executor = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        stack.callback(executor.terminate)
        streams = [(f"r{i}", 0) for i in range(len(requests))]
        while not all(stream in front.ends for stream in streams):
            front.take(front.receive(m.Outputs, 120))
            watch(core.core_process.core.scheduler)
        assert {front.ends[stream].finish_reason for stream in streams} == {"length"}
        return [front.tokens[stream] for stream in streams], core.core_process.core.scheduler


def prompt(seed: int, length: int) -> list[int]:
    return [(seed * 7919 + i * i * 31 + i) % VOCAB_SIZE for i in range(length)]


@pytest.mark.parametrize("block_size", [16, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 256))])
def test_generation_over_block_boundaries(tmp_path, block_size):
    """Prompts that end just before, at and after a boundary, and answers that cross one or two more."""
    lengths = [1, 15, 16, 17, 32] if block_size < 256 else [255, 256, 257, 240]
    requests = [(prompt(i, length), 20) for i, length in enumerate(lengths)]
    answers, _ = serve(tmp_path / "core", requests, "--block-size", str(block_size), "--num-blocks", "4096")
    for (ids, count), answer in zip(requests, answers, strict=True):
        assert answer == reference_greedy(DEMO_MODEL_DIR, ids, count)


def test_equal_prompts_in_one_step_share_their_blocks(tmp_path):
    """Two prompts of 801 tokens at block size 256 take 3 + 1 + 1 blocks, and the three count two users."""
    seen = []

    def watch(scheduler):
        (executor,) = scheduler.executors
        if len(executor.running) == 2:
            first, second = (executor.running.lanes.tables[lane].ids for lane in executor.running.order)
            counts = [executor.blocks.ref_counts[block] for block in first]
            seen.append((executor.blocks.num_blocks - executor.blocks.num_free, counts))
            assert first[:3] == second[:3]

    requests = [(prompt(1, 801), 10)] * 2
    options = ("--block-size", "256", "--num-blocks", "16", "--max-batch-tokens", "2048")
    answers, scheduler = serve(tmp_path / "core", requests, *options, watch=watch)
    assert seen
    assert {used for used, _ in seen} == {5}
    assert all(counts == [2, 2, 2, 1] for _, counts in seen)
    assert scheduler.stats.prefill_tokens == 801 + 33, "what the first one's row computes the second one's does not"
    assert answers[0] == answers[1] == reference_greedy(DEMO_MODEL_DIR, requests[0][0], 10)


@pytest.mark.slow
def test_preempted_sequences_come_back_through_the_cache(tmp_path):
    """64 sequences in a pool that holds a quarter of them give the tokens of an ample pool."""
    requests = [(prompt(i, 20 + i % 13), 60 + i % 7) for i in range(64)]
    blocks_needed = sum(-(-(len(ids) + count) // 16) for ids, count in requests)
    ample, calm = serve(tmp_path / "ample", requests, "--num-blocks", str(blocks_needed))
    # Admission that looks ahead would preempt no sequence here.
    config = SchedulerConfig(look_ahead=False)
    scarce, busy = serve(tmp_path / "scarce", requests, "--num-blocks", str(blocks_needed // 4), config=config)
    assert scarce == ample
    assert calm.stats.preemptions == 0
    assert busy.stats.preemptions > 0
    assert busy.stats.cached_resumed_tokens > 0
