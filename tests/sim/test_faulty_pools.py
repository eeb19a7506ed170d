"""Known faults of what keeps pools, and of what continues them: the simulator finds each."""

from dataclasses import replace
from functools import partial

import msgspec
import pytest

from executor_svc.service.registration import Registration, TagPool
from keeper_svc.keeper import Keeper
from keeper_svc.leases import Leases
from scheduler_svc.core import core
from scheduler_svc.core.executor.block_manager import BlockManager
from scheduler_svc.core.fleet.fleet import Fleet
from scheduler_svc.core.scheduling.pools import Pools
from scheduler_svc.core.scheduling.sequences import Sequences
from tests.sim.keeper_link import SimLink
from tests.sim.planting import Faults, check_found, enter
from tests.support.oracle import TORN, Written

FAULTS: Faults = []
fault = partial(enter, FAULTS)


# --- keepers ---


@fault("standbys", seed=10)
def ends_a_lease_with_its_connection(monkeypatch):
    closed = Keeper.connection_closed

    def hasty(self, connection, now):
        executor = self._registry.executor_at(connection) if connection in self._registry else None
        actions = closed(self, connection, now)
        return actions if executor is None else [*actions, *self._leases.free(executor, now)]

    monkeypatch.setattr(Keeper, "connection_closed", hasty)


@fault("standbys", seed=13)
def hands_on_the_pool_of_a_silent_holder(monkeypatch):
    def hasty(self, now):
        silent = [holder for holder, pool in self._held() if holder.hangs_because(now) and self.standbys(pool, now)]
        return [action for holder in silent for action in self.free(holder, now)]

    monkeypatch.setattr(Leases, "end_hung_holders", hasty)


# --- the scheduler ---


@fault("standbys")
def does_not_forget_what_unanswered_plans_write(monkeypatch):
    monkeypatch.setattr(BlockManager, "forget", lambda self, written: None)


@fault("standbys")
def counts_a_position_too_many_in_a_tail(monkeypatch):
    keep_tail = BlockManager.keep_tail

    def greedy(self, origin, ids, num_valid):
        return keep_tail(self, origin, ids, min(num_valid + 1, len(ids) * self.block_size))

    monkeypatch.setattr(BlockManager, "keep_tail", greedy)


@fault("standbys")
def keeps_no_tail(monkeypatch):
    monkeypatch.setattr(BlockManager, "keep_tail", lambda self, origin, ids, num_valid: None)


@fault("keepers")
def adopts_what_another_scheduler_wrote(monkeypatch):
    take = Pools.take

    def gullible(self, membership, now):
        pool = membership.pool
        if pool is not None and (vacant := self._vacant.get(pool.pool)) is not None:
            pool = msgspec.structs.replace(pool, epoch=vacant.last_epoch)
        return take(self, replace(membership, pool=pool), now)

    monkeypatch.setattr(Pools, "take", gullible)


@fault("keepers", seed=18)
def adopts_after_an_answer_that_cannot_be_true(monkeypatch):
    monkeypatch.setattr(core.f, "UNSAFE", ("step_failed",))


@fault("keepers")
def adopts_after_a_failed_step(monkeypatch):
    monkeypatch.setattr(core.f, "UNSAFE", ("untrusted",))
    tells_the_scheduler_alone_that_a_step_failed(monkeypatch)


@fault("keepers", seed=9)
def adopts_another_kind(monkeypatch):
    take = Pools.take

    def gullible(self, membership, now):
        pool = membership.pool
        if pool is not None and (vacant := self._vacant.get(pool.pool)) is not None:
            self._vacant[pool.pool] = replace(
                vacant, layout=pool.layout, model=membership.model, limits=membership.limits
            )
        return take(self, membership, now)

    monkeypatch.setattr(Pools, "take", gullible)


@fault("standbys")
def forgets_what_an_epoch_without_answers_had_adopted(monkeypatch):
    vacate = Pools.vacate

    def forgetful(self, executor, now, wait_s):
        vacate(self, executor, now, wait_s)
        name = executor.membership.pool.pool
        index = self._vacant[name].index._replace(epochs=(executor.epoch,))
        self._vacant[name] = replace(self._vacant[name], index=index)

    monkeypatch.setattr(Pools, "vacate", forgetful)


@fault("standbys")
def lets_a_pool_have_two_members(monkeypatch):
    monkeypatch.setattr(Fleet, "_holder", lambda self, pool: None)


@fault("standbys")
def waits_for_a_pool_for_ever(monkeypatch):
    monkeypatch.setattr(Pools, "is_awaited", lambda self, epoch, now: True)


@fault("standbys")
def does_not_notice_that_a_pool_is_back(monkeypatch):
    stop_awaiting = Sequences._stop_awaiting
    monkeypatch.setattr(Sequences, "_stop_awaiting", lambda self, joined=None: None if joined else stop_awaiting(self))


# --- executors ---


@fault("standbys")
def warms_up_in_block_0_of_its_pool(monkeypatch):
    hold = SimLink._hold

    def careless(self, leased, memory, tag):
        memory.slots[0] = Written(TORN, 0)
        hold(self, leased, memory, tag)

    monkeypatch.setattr(SimLink, "_hold", careless)


@fault("keepers")
def tells_the_scheduler_alone_that_a_step_failed(monkeypatch):
    tag = Registration._tag
    monkeypatch.setattr(Registration, "_tag", lambda self, epoch: tag(self, epoch) if epoch else [])


@fault("keepers")
def tags_its_pool_after_the_first_plan(monkeypatch):
    message_received, plan_answered = Registration.message_received, Registration.plan_answered

    def late(self, message, now):
        actions = message_received(self, message, now)
        self.untold = getattr(self, "untold", []) + [each for each in actions if isinstance(each, TagPool)]
        return [each for each in actions if not isinstance(each, TagPool)]

    def then(self, answer, now):
        untold, self.untold = self.untold, []
        return [*untold, *plan_answered(self, answer, now)]

    monkeypatch.setattr(Registration, "message_received", late)
    monkeypatch.setattr(Registration, "plan_answered", then)


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "seed", "patch"), FAULTS, ids=[patch.__name__ for *_, patch in FAULTS])
def test_the_fault_is_found(profile, seed, patch, monkeypatch):
    patch(monkeypatch)
    check_found(profile, seed)
