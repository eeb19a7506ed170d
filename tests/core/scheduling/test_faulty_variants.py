"""Three reports about nano-vllm, each with a scheduler that has the fault: the oracle must catch it, and must be
content with ours in the same scene.
"""

import pytest

from common.errors import WireError
from scheduler_svc.core.executor.block_manager import BlockManager, Grant
from scheduler_svc.core.executor.running_sequences import RunningSequences
from scheduler_svc.core.scheduling.scheduler import Scheduler
from tests.support.scheduling import Scheduling, limits, with_blocks, with_executor

# --- allocation at block boundaries ---


class AllocatesAtAnEdge(RunningSequences):
    """Takes a block when the length has just passed a boundary, instead of when there is no room for the token."""

    def lanes_without_room(self) -> list[int]:
        decoding = self.decode_rows().lanes
        return decoding[self.lanes.known[decoding] % self._block_size == 1].tolist()


def boundary_scene(scheduler_type=Scheduler):
    """Prompts that end around a boundary and answers that cross several, with a plan always in flight."""
    run = Scheduling(limits(), scheduler_type=scheduler_type)
    for length in range(1, 10):
        run.add(str(length), list(range(length)), max_tokens=20)
    run.finish()


def test_block_boundaries():
    boundary_scene()
    with pytest.raises((AssertionError, WireError)):
        boundary_scene(with_executor(running_type=AllocatesAtAnEdge))


# --- equal prompts in one step ---


class PublishesAfterTheStep(BlockManager):
    """Enters prompt blocks into the cache when their plan is answered, too late for the next row of the same plan."""

    def publish(self, table, raw, first, *, may_merge):
        return super().publish(table, raw, first, may_merge=may_merge) if may_merge else False


def equal_prompts_scene(scheduler_type=Scheduler):
    """Two prompts of 801 tokens at block size 256 in one plan."""
    run = Scheduling(
        limits(num_blocks=16, block_size=256, max_batch_tokens=2048, max_model_len=1024), scheduler_type=scheduler_type
    )
    prompt = [i * 7 % 1000 for i in range(801)]
    run.add("a", prompt, max_tokens=4)
    run.add("b", prompt, max_tokens=4)
    plan = run.plan()
    assert len(plan.lanes) == 2 * 4, "both are in one plan"
    blocks = run.scheduler.executor(1).blocks
    used = blocks.num_blocks - blocks.num_free
    shared = sum(count == 2 for count in blocks.ref_counts)
    run.finish()
    assert (used, shared, run.executors[1].computed_tokens) == (5, 3, 801 + 33 + 2 * 3)


def test_equal_prompts_in_one_step():
    equal_prompts_scene()
    with pytest.raises(AssertionError):
        equal_prompts_scene(with_blocks(PublishesAfterTheStep))


# --- preempted sequences that hit the cache ---


class CountsBeforeMatching(BlockManager):
    """Decides how many tokens are left to compute first, and looks into the cache afterwards."""

    def reserve(self, table, raw, num_computed, budget, accept=None, *wanted_from, **named):
        stale_count = min(len(raw) // 4 - num_computed, budget)
        grant = super().reserve(table, raw, num_computed, budget, accept, *wanted_from, **named)
        if grant is None or not grant.num_hits:
            return grant
        count = min(stale_count, len(table.ids) * self.block_size - grant.start)
        return Grant(grant.start, count, grant.store_from, grant.num_hits, grant.num_new)


def preemption_scene(scheduler_type=Scheduler):
    """Sequences in a pool that holds a quarter of them, with admission that does not look ahead."""
    small = limits(num_blocks=30, block_size=4, max_model_len=60)
    run = Scheduling(small, scheduler_type=scheduler_type, look_ahead=False)
    for i in range(16):
        run.add(str(i), [i, 1, 2, 3, 4, 5, 6, 7, 8], max_tokens=30)
    run.finish()
    stats = run.scheduler.stats
    assert stats.preemptions > 0
    assert stats.cached_resumed_tokens > 0, "the scene must have what the report is about"


def test_preempted_sequences_that_hit_the_cache():
    preemption_scene()
    with pytest.raises((AssertionError, WireError)):
        preemption_scene(with_blocks(CountsBeforeMatching))
