"""An executor of two ranks, as torchrun starts it, on a real socket; the test plays the scheduler."""

import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import messages as m
from common.plan import PlanColumns
from common.sampling_columns import SamplingColumns
from executor_svc.runner.group_runner import pack, unpack
from executor_svc.runner.trial_plans import trial_plan
from tests.executor_svc.conftest import Make
from tests.executor_svc.service.steps import greedy, ranks_of
from tests.support.checkpoints import reference_greedy
from tests.support.fake_scheduler import FakeScheduler

RANKS = 2


@pytest.fixture
def group(checkpoint: Make) -> Iterator[FakeScheduler]:
    torchrun = f"-m torch.distributed.run --nproc-per-node {RANKS} --master-port 0 --rdzv-backend c10d "
    torchrun += "--rdzv-endpoint localhost:0 --local-addr 127.0.0.1 -m executor_svc"
    options = "--scheduler ENDPOINT --threads 1 --num-blocks 32 --max-num-seqs 4 --dtype float32 --name pair"
    scheduler = FakeScheduler(*torchrun.split(), *options.split(), "--model", str(checkpoint(preset="0.6B")))
    yield scheduler
    for pid in ranks_of(scheduler.process):
        os.kill(pid, signal.SIGKILL)
    scheduler.close()


def test_two_ranks_are_one_executor_and_leave_together(group: FakeScheduler, checkpoint: Make) -> None:
    prompt = list(range(20))
    expected = reference_greedy(checkpoint(preset="0.6B"), prompt, 8)  # it takes longer than heartbeats may
    hello = group.expect(m.Hello, timeout_s=60)
    assert (hello.executor, hello.device) == ("pair", "2 x cpu")
    group.send(m.Welcome(epoch=1))
    assert greedy(group, prompt, 8) == expected
    for pid in ranks_of(group.process):
        os.kill(pid, signal.SIGTERM)
    group.expect(m.Leaving, beat=1)
    group.send(m.EpochOver(epoch=1, reason="left"))
    assert group.exit_code(30) == 0


@pytest.mark.parametrize("rank", [0, *(pytest.param(rank, marks=pytest.mark.slow) for rank in range(1, RANKS))])
def test_death_of_a_rank_ends_the_group(group: FakeScheduler, rank: int) -> None:
    group.join()
    greedy(group, [1, 2, 3], 1)
    os.kill(ranks_of(group.process)[rank], signal.SIGKILL)
    start = time.monotonic()
    assert group.exit_code(30) != 0
    assert ranks_of(group.process) == []
    assert time.monotonic() - start < 10


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.booleans())
def test_plans_arrive_as_they_were_sent(query_lens: list[int], greedy_only: bool) -> None:
    plan = trial_plan(query_lens, 4)
    fields = {**vars(plan), "sampling": None} if greedy_only else vars(plan)
    if not greedy_only:
        seeds = np.arange(len(query_lens), dtype=np.uint64) + np.uint64(2**63 + 5)
        fields["sampling"] = SamplingColumns(**{**vars(plan.sampling), "seeds": seeds})
    columns = PlanColumns(**fields)
    arrived = unpack(pack(columns))
    for name, column in vars(columns).items():
        if name != "sampling":
            assert np.all(getattr(arrived, name) == column), name
    assert (arrived.sampling is None) == greedy_only
    for name, column in vars(columns.sampling).items() if columns.sampling else ():
        found = getattr(arrived.sampling, name)
        assert (found == column).all()
        assert found.dtype == column.dtype
