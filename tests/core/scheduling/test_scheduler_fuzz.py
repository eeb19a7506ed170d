"""The scheduler's fuzzer, without and with pools that outlive their executors: what a successor finds there has to be
what the scheduler believes, whatever became of the plans that were not answered.
"""

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import precondition, rule

from common import messages as m
from scheduler_svc.core.fleet.membership import Standing
from tests.core.scheduling.scheduler_machine import SchedulerMachine
from tests.support.effort import examples
from tests.support.oracle import OracleExecutor


class AdoptionMachine(SchedulerMachine):
    """Executors with pools join, vanish in the middle of a step, are drained, and are succeeded."""

    def __init__(self):
        super().__init__()
        self.pool_of: dict[int, str] = {}  # of live epochs
        self.vacant: dict[str, OracleExecutor] = {}
        self.tags: dict[str, int] = {}  # the epoch that wrote a pool last
        self.layouts: dict[str, int] = {}  # of the executor that had a pool last
        self.num_pools = 0
        self.zombies: list[tuple[OracleExecutor, m.Plan]] = []
        self.num_adopted = 0

    @precondition(lambda self: len(self.executors) < 2)
    @rule()
    def join(self):
        self.num_pools += 1
        self.take_pool(f"{self.num_pools:032d}", OracleExecutor(self.limits), tag=0, layout=0)

    def take_pool(self, name: str, executor: OracleExecutor, tag: int, layout: int) -> None:
        self.enter(executor, m.Pool(pool=name, lease=self.epochs + 1, layout=f"oracle-{layout}", epoch=tag))
        self.pool_of[self.epochs], self.tags[name], self.layouts[name] = name, tag, layout
        self.num_adopted += bool(self.scheduler.executor(self.epochs).earlier_epochs)

    def send(self, epoch: int) -> m.Plan | None:
        plan = super().send(epoch)
        if plan is not None and epoch in self.pool_of:
            self.tags[self.pool_of[epoch]] = epoch  # at the latest now
        return plan

    @precondition(lambda self: self.pool_of)
    @rule(
        data=st.data(),
        num_run=st.integers(0, 2),
        torn=st.sampled_from([None, None, 0, 1, 3]),
        wait_s=st.sampled_from([0.0, 0.0, 0.5, 5.0]),
        is_struck=st.booleans(),
    )
    def vanish(self, data, num_run, torn, wait_s, is_struck):
        """Some of the unanswered plans have run, the next one in part, or to its end with garbage (None)."""
        epoch = data.draw(st.sampled_from(list(self.pool_of)))
        executor, plans = self.executors[epoch], self.sent[epoch]
        for _ in range(min(num_run, len(plans))):
            executor.run(plans.popleft())
        for plan in plans:
            executor.tear(plan, torn)
        self.zombies += [(executor, plan) for plan in plans]
        if is_struck:
            self.end(self.scheduler.blame(epoch))
        self.vacate(epoch, wait_s)

    @precondition(lambda self: self.pool_of)
    @rule(data=st.data(), num_run=st.integers(0, 2), torn=st.sampled_from([None, 0, 2]), steps=st.integers(1, 4))
    def swap(self, data, num_run, torn, steps):
        """In the middle of work, and the successor is there at once."""
        self.run_all(steps)
        for epoch in list(self.executors):
            while self.send(epoch) is not None:
                pass
        self.vanish(data, num_run, torn, 0.5, is_struck=False)
        self.succeed(data, None)

    @precondition(lambda self: self.pool_of)
    @rule(data=st.data(), wait_s=st.sampled_from([0.0, 0.5]))
    def drain(self, data, wait_s):
        """All plans are answered, and the pool is handed over."""
        epoch = data.draw(st.sampled_from(list(self.pool_of)))
        self.scheduler.executor(epoch).membership.standing = Standing.DRAINING
        self.pools.left(epoch, self.now)
        self.scheduler.executor_leaves(epoch, self.now)
        while self.sent[epoch]:
            self.answer_oldest(epoch)
        self.vacate(epoch, wait_s)

    def vacate(self, epoch: int, wait_s: float) -> None:
        self.vacant[self.pool_of[epoch]] = self.executors[epoch]
        self.remove(epoch, wait_s)

    def remove(self, epoch, pool_wait_s=None):
        super().remove(epoch, pool_wait_s)
        self.pool_of.pop(epoch, None)

    @precondition(lambda self: self.vacant and len(self.executors) < 3)
    @rule(data=st.data(), other=st.sampled_from([None, None, None, None, "writer", "layout", "size"]))
    def succeed(self, data, other):
        """The next executor of a pool, which may be another one than the scheduler would adopt."""
        name = data.draw(st.sampled_from(list(self.vacant)))
        memory, tag, layout = self.vacant.pop(name), self.tags[name], self.layouts[name]
        limits = memory.limits
        if other == "writer":  # another scheduler has had it meanwhile
            tag += 1000
            memory.slots.clear()
        if other == "layout":
            layout += 1
            memory.slots.clear()
        if other == "size":
            limits = replace(limits, num_blocks=limits.num_blocks + 1)
        self.take_pool(name, OracleExecutor(limits, slots=memory.slots), tag, layout)
        is_adopted = bool(self.scheduler.executor(self.epochs).earlier_epochs)
        assert not (other and is_adopted), f"adopted in spite of another {other}"

    def lose(self):
        """No rule here: `vanish` is."""

    def teardown(self):
        super().teardown()
        if hasattr(self, "scheduler"):
            assert all(sequence.awaited == 0 for sequence in self.scheduler), "a sequence waits for a pool for ever"


TestScheduler, TestAdoption = SchedulerMachine.TestCase, AdoptionMachine.TestCase
TestScheduler.settings = TestAdoption.settings = settings(
    max_examples=examples(700, quick=100),
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
