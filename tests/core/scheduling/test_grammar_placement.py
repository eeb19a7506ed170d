"""Sequences with a grammar go where tokens are masked by the library that the grammar was compiled with."""

import pytest

from common import messages as m
from scheduler_svc.core.fleet.membership import Membership, Standing
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.scheduling.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence
from tests.support.chores import done
from tests.support.oracle import OracleExecutor, expected_output
from tests.support.scheduling import limits
from tests.support.submits import submit

OURS, NEWER = "library 1", "library 2"
GRACE_S = 10.0
PROMPT = [1, 2, 3]
GRAMMAR = m.Constraints(grammar="a grammar")


class Fleet:
    """A scheduler and the executors of its epochs."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(SchedulerConfig(grammars=OURS, pool_grace_s=GRACE_S))
        self.oracles: dict[int, OracleExecutor] = {}
        self.memberships: dict[int, Membership] = {}

    def join(self, epoch: int, library: str, now: float = 0.0, positions: int = 256) -> None:
        each = limits(max_model_len=positions)
        self.memberships[epoch] = Membership(epoch, f"e{epoch}", "m", each, grammars=library)
        self.oracles[epoch] = OracleExecutor(each)
        self.scheduler.add_executor(self.memberships[epoch], now)

    def leave(self, epoch: int, now: float = 0.0) -> None:
        self.scheduler.remove_executor(epoch, now)
        del self.oracles[epoch]

    def add(
        self,
        constraints: m.Constraints | None,
        now: float = 0.0,
        max_tokens: int = 6,
        *,
        may_shorten: bool = False,
    ) -> Sequence:
        asked = submit("r", PROMPT, max_tokens=max_tokens, constraints=constraints, may_shorten=may_shorten)
        (sequence,) = self.scheduler.add(asked, now)
        return sequence

    def step(self) -> set[int]:
        """A step of each executor. Returns the epochs that had something to do."""
        busy = set()
        for epoch, oracle in self.oracles.items():
            if (plan := self.scheduler.plan(epoch)) is not None:
                self.scheduler.commit(oracle.run(plan))
                busy.add(epoch)
        self.scheduler.check()
        return busy


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_it_goes_where_the_library_fits(fleet: Fleet) -> None:
    fleet.join(1, NEWER)
    fleet.join(2, OURS)
    fleet.join(3, "")
    sequence = fleet.add(GRAMMAR)
    assert fleet.step() == {2}
    fleet.leave(2)
    assert fleet.step() == set(), "no other one fits"
    fleet.join(4, OURS)
    while len(fleet.scheduler.sequences):
        assert fleet.step() == {4}
    assert sequence.tokens[3:].tolist() == expected_output(PROMPT, sequence.params, limits().vocab_size)


@pytest.mark.parametrize("constraints", [None, m.Constraints(presence_penalty=1.0)], ids=["plain", "penalties"])
def test_other_sequences_go_anywhere(fleet: Fleet, constraints: m.Constraints | None) -> None:
    fleet.join(1, "")
    fleet.add(constraints)
    assert fleet.step() == {1}


def test_it_waits_without_a_limit_while_there_is_no_executor(fleet: Fleet) -> None:
    fleet.add(GRAMMAR)
    assert done(fleet.scheduler.expire(1000 * GRACE_S)) == []
    fleet.join(1, OURS, 1000 * GRACE_S)
    assert fleet.step() == {1}


def test_after_the_grace_another_version_will_do(fleet: Fleet) -> None:
    fleet.join(1, OURS)
    sequence = fleet.add(GRAMMAR)
    fleet.step()
    fleet.join(2, NEWER, 1.0)
    fleet.memberships[1].standing = Standing.DRAINING
    fleet.scheduler.executor_leaves(1, 2.0)
    fleet.leave(1, 2.0)
    assert done(fleet.scheduler.expire(1.9 + GRACE_S)) == []
    assert (fleet.step(), fleet.scheduler.take_relaxed()) == (set(), [])
    assert done(fleet.scheduler.expire(2.0 + GRACE_S)) == []
    assert fleet.scheduler.take_relaxed() == [sequence]
    assert fleet.scheduler.take_relaxed() == [], "it is told once"
    while len(fleet.scheduler.sequences):
        assert fleet.step() == {2}
    assert sequence.tokens[3:].tolist() == expected_output(PROMPT, sequence.params, limits().vocab_size)


def test_an_executor_that_knows_no_grammars_will_never_do(fleet: Fleet) -> None:
    fleet.join(1, "")
    fleet.add(GRAMMAR)
    assert done(fleet.scheduler.expire(GRACE_S)) == []
    assert fleet.step() == set()
    (end,) = done(fleet.scheduler.expire(2 * GRACE_S))
    assert (end.reason, end.code) == ("error", "grammars_lost")
    assert "library 1" in end.error


@pytest.mark.parametrize("library", [OURS, NEWER])
@pytest.mark.parametrize("may_shorten", [True, False])
def test_a_larger_executor_that_knows_no_grammars_does_not_count(
    fleet: Fleet, library: str, *, may_shorten: bool
) -> None:
    fleet.join(1, "")
    fleet.join(2, library, positions=20)
    sequence = fleet.add(GRAMMAR, max_tokens=100, may_shorten=may_shorten)
    assert done(fleet.scheduler.expire(GRACE_S)) == []
    ends = done(fleet.scheduler.expire(2 * GRACE_S))
    if may_shorten:
        assert (ends, sequence.params.max_tokens) == ([], 17)
        while len(fleet.scheduler.sequences):
            assert fleet.step() == {2}
    else:
        assert [(end.reason, end.code) for end in ends] == [("error", "capacity_lost")]
        assert "needs 102 positions; the largest executor has 20" in ends[0].error
