"""Known faults of what keeps pools, and of what continues them: the simulator finds each."""

from functools import partial
from types import SimpleNamespace
from unittest.mock import ANY

import pytest

from executor_svc.service.registration import Registration, TagPool
from keeper_svc.keeper import Keeper
from scheduler_svc.core.executor.block_manager import BlockManager
from scheduler_svc.core.fleet import fleet
from scheduler_svc.core.fleet.fleet import Fleet
from scheduler_svc.core.scheduling import pools
from scheduler_svc.core.scheduling.pools import Pools
from scheduler_svc.core.scheduling.sequences import Sequences
from tests.sim.keeper_link import SimLink
from tests.sim.planting import Faults, check_applies, check_found, enter, planted
from tests.support.oracle import TORN, Written

FAULTS: Faults = []
fault = partial(enter, FAULTS)


# --- keepers ---


@fault("standbys", seed=10)
def ends_a_lease_with_its_connection():
    closed = Keeper.connection_closed

    def hasty(self, connection, now):
        holders = [pool.holder for pool in self.shelf.pools if pool.holder and pool.holder.connection == connection]
        actions = closed(self, connection, now)
        return [*actions, *(action for each in holders for action in self.process_ended(each.process, now))]

    yield Keeper, "connection_closed", hasty


@fault("standbys", seed=13)
def hands_on_the_pool_of_a_silent_holder():
    tick = Keeper.tick

    def hasty(self, now):
        holders = [pool.holder for pool in self.shelf.pools if pool.holder and pool.holder.hangs_because(now)]
        return [*(action for each in holders for action in self.process_ended(each.process, now)), *tick(self, now)]

    yield Keeper, "tick", hasty


# --- the scheduler ---


@fault("standbys")
def does_not_forget_what_unanswered_plans_write():
    yield BlockManager, "forget", lambda self, written: None


@fault("standbys")
def counts_a_position_too_many_in_a_tail():
    keep_tail = BlockManager.keep_tail

    def greedy(self, origin, ids, num_valid):
        return keep_tail(self, origin, ids, min(num_valid + 1, len(ids) * self.block_size))

    yield BlockManager, "keep_tail", greedy


@fault("standbys")
def keeps_no_tail():
    yield BlockManager, "keep_tail", lambda self, origin, ids, num_valid: None


@fault("keepers", seed=7)
def adopts_what_another_scheduler_wrote():
    class Any(tuple):
        def __contains__(self, epoch):
            return True

    index = pools.EarlierIndex
    yield pools, "EarlierIndex", lambda blocks, origin, epochs: index(blocks, origin, Any(epochs))


@fault("keepers", seed=18)
def adopts_after_an_answer_that_cannot_be_true():
    yield fleet, "UNSAFE", ("step_failed",)


@fault("keepers", seed=6)
def adopts_after_a_failed_step():
    yield fleet, "UNSAFE", ("untrusted",)
    yield from tells_the_scheduler_alone_that_a_step_failed()


@fault("keepers", seed=9)
def adopts_another_kind():
    vacant = pools.VacantPool
    of_any_size = SimpleNamespace(block_size=ANY, num_blocks=ANY)

    def of_any_kind(layout, model, limits, *others, **facts):
        return vacant(ANY, ANY, of_any_size, *others, **facts)

    yield pools, "VacantPool", of_any_kind


@fault("standbys")
def forgets_what_an_epoch_without_answers_had_adopted():
    index = pools.EarlierIndex
    yield pools, "EarlierIndex", lambda blocks, origin, epochs: index(blocks, origin, epochs[-1:])


@fault("standbys")
def lets_a_pool_have_two_members():
    yield Fleet, "_holder", lambda self, pool: None


@fault("standbys")
def waits_for_a_pool_for_ever():
    yield Pools, "is_awaited", lambda self, epoch, now: True


@fault("standbys")
def does_not_notice_that_a_pool_is_back():
    add_executor = Sequences.add_executor

    def deaf(self, executor, now):
        with planted(waits_for_a_pool_for_ever()):
            add_executor(self, executor, now)

    yield Sequences, "add_executor", deaf


# --- executors ---


@fault("standbys")
def warms_up_in_block_0_of_its_pool():
    hold = SimLink.hold

    def careless(self, leased, memory, tag):
        memory.slots[0] = Written(TORN, 0)
        hold(self, leased, memory, tag)

    yield SimLink, "hold", careless


@fault("keepers", seed=12)
def tells_the_scheduler_alone_that_a_step_failed():
    tag = Registration._tag
    yield Registration, "_tag", lambda self, epoch: tag(self, epoch) if epoch else []


@fault("keepers", seed=7)
def tags_its_pool_after_the_first_plan():
    message_received, plan_answered = Registration.message_received, Registration.plan_answered

    def late(self, message, now):
        actions = message_received(self, message, now)
        self.untold = getattr(self, "untold", []) + [each for each in actions if isinstance(each, TagPool)]
        return [each for each in actions if not isinstance(each, TagPool)]

    def then(self, answer, now):
        untold, self.untold = self.untold, []
        return [*untold, *plan_answered(self, answer, now)]

    yield Registration, "message_received", late
    yield Registration, "plan_answered", then


@pytest.mark.parametrize("fault", [fault for *_, fault in FAULTS], ids=lambda fault: fault.__name__)
def test_the_fault_can_be_planted(fault):
    check_applies(fault)


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "seed", "fault"), FAULTS, ids=[fault.__name__ for *_, fault in FAULTS])
def test_the_fault_is_found(profile, seed, fault):
    check_found(fault, profile, seed)
