"""Pools that outlive their executors: what the next one finds there, who waits for it, and when nothing counts."""

from array import array
from typing import Any

import pytest

from common import messages as m
from scheduler_svc.core.executor.block_manager import BlockManager
from scheduler_svc.core.scheduling.pools import KEPT_S, STANDBY_WAIT_S
from scheduler_svc.core.scheduling.scheduler import Scheduler
from tests.support.chores import done
from tests.support.effort import combinations
from tests.support.hello import hello
from tests.support.oracle import OracleExecutor
from tests.support.scheduling import Scheduling, limits, with_blocks
from tests.support.service import Service, undisturbed

NAME = "0123456789abcdef" * 2
LAYOUT = "oracle"


def pool(epoch: int = 0, lease: int = 1, name: str = NAME, layout: str = LAYOUT) -> m.Pool:
    return m.Pool(pool=name, lease=lease, layout=layout, epoch=epoch)


def break_off(run: Scheduling, epoch: int, num_run: int = 0, torn: int | None = None) -> OracleExecutor:
    """Of an executor's unanswered plans so many have run, and of the next ones so many slots were written (all of them
    if that is None). Returns its memory."""
    memory, plans = run.executors[epoch], run.sent[epoch]
    for _ in range(min(num_run, len(plans))):
        memory.run(plans.popleft())
    for plan in plans:
        memory.tear(plan, torn)
    return memory


def swap(run: Scheduling, epoch: int, num_run: int = 0, torn: int | None = None) -> int:
    """The executor dies, see `break_off`. Its successor joins at once. Returns the new epoch."""
    memory = break_off(run, epoch, num_run, torn)
    run.lose(epoch, pool_wait_s=0.0)
    run.scheduler.check()
    return run.join(memory.limits, pool=pool(epoch, lease=epoch + 1), memory=memory)


def die_often(block_size, window, num_run, torn, scheduler_type=Scheduler):
    """An executor dies again and again, among prompts in chunks, answers, and some that end; the oracle reads every
    slot that counts."""
    size = limits(block_size=block_size, num_blocks=-(-800 // block_size), max_batch_tokens=20)
    run = Scheduling(size, window=window, scheduler_type=scheduler_type)
    run.lose(1)
    epoch = run.join(size, pool=pool())
    for i in range(8):
        run.add(str(i), [i, *range(5 + 3 * i)], max_tokens=10 + 3 * i, temperature=0.8 * (i % 2), seed=i)
    for round_ in range(40):
        for _ in range(round_ % 3):
            run.step()
        while run.plan(epoch) is not None:
            pass
        epoch = swap(run, epoch, num_run, torn)
        assert run.scheduler.executor(epoch).earlier_epochs
        run.answer(epoch) if run.plan(epoch) else None
    run.finish()
    assert run.scheduler.stats.recomputed_tokens == 0
    blocks = run.scheduler.executor(epoch).blocks
    assert blocks.num_free == blocks.num_blocks


@pytest.mark.parametrize(
    ("block_size", "window", "num_run", "torn"),
    combinations([1, 2, 3, 4, 16], [1, 2, 3], [0, 1, 3], [None, 0, 2], together=2),
)
def test_nothing_is_recomputed_however_often_an_executor_dies(block_size, window, num_run, torn):
    die_often(block_size, window, num_run, torn)


class KeepsNoTail(BlockManager):
    def keep_tail(self, origin, ids, num_valid):
        return None


class KeepsWhatTornPlansWrite(BlockManager):
    def forget(self, written):
        pass


class CountsWhatTornPlansWrite(BlockManager):
    def keep_tail(self, origin, ids, num_valid):
        return super().keep_tail(origin, ids, min(num_valid + 1, len(ids) * self.block_size))


def test_without_its_tail_a_sequence_would_compute_up_to_a_block_again():
    with pytest.raises(AssertionError, match="recomputed_tokens"):
        die_often(16, 2, 0, None, with_blocks(KeepsNoTail))


@pytest.mark.parametrize("blocks", [KeepsWhatTornPlansWrite, CountsWhatTornPlansWrite])
def test_the_oracle_catches_a_scheduler_that_trusts_a_torn_plan(blocks):
    with pytest.raises((AssertionError, KeyError)):
        die_often(4, 2, 0, None, with_blocks(blocks))


def test_the_oracle_catches_a_process_that_writes_after_its_loss():
    """What a keeper prevents: the pool is handed on while its last holder still computes."""
    run = Scheduling(limits())
    run.lose(1)
    epoch = run.join(limits(), pool=pool())
    run.add("a", list(range(30)), max_tokens=20)
    for _ in range(5):
        run.step()
    run.plan(epoch)
    memory, late = run.executors[epoch], run.sent[epoch][0]
    epoch = swap(run, epoch)
    for _ in range(3):
        run.step()
    memory.tear(late)
    with pytest.raises(AssertionError, match="another sequence's K and V"):
        run.finish()


def test_a_tail_whose_block_was_handed_out_is_computed_again():
    run = Scheduling(limits(num_blocks=9))
    run.lose(1)
    epoch = run.join(limits(num_blocks=9), pool=pool())
    (old,) = run.add("old", list(range(10)), max_tokens=20)
    for _ in range(4):
        run.step()
    epoch = swap(run, epoch)
    assert old.tail is not None
    # The whole pool goes to another sequence, which overtakes the old one and ends before it comes back.
    (new,) = run.add("new", [7] * 30, max_tokens=5, priority=-1)
    while new not in run.ends:
        run.step()
    run.finish()
    assert run.scheduler.stats.recomputed_tokens > 0


@pytest.mark.parametrize("num_run", [0, 2])
def test_sequences_go_back_to_the_memory_that_they_left_also_beside_an_idle_executor(num_run):
    """Twelve that have begun, while the other executor has nothing: to move some would compute them anew."""
    run = Scheduling(limits(num_blocks=256))
    run.lose(1)
    epoch = run.join(limits(num_blocks=256), pool=pool())
    for i in range(12):
        run.add(str(i), [i] * (7 + i), max_tokens=40)
    while len(run.outputs) < 12 or min(map(len, run.outputs.values())) < 2:
        run.step()
    memory = break_off(run, epoch, num_run)
    idle = run.join(limits(num_blocks=256))
    run.lose(epoch, pool_wait_s=5.0)
    run.plan(idle)
    back = run.join(memory.limits, pool=pool(epoch, lease=epoch + 1), memory=memory)
    run.plan(idle)
    run.plan(back)
    assert (run.scheduler.executor(idle).num_running, run.scheduler.executor(back).num_running) == (0, 12)
    run.finish()
    assert run.scheduler.stats.recomputed_tokens == 0


def test_of_two_sequences_in_one_unfinished_block_one_keeps_it():
    manager = BlockManager(4, 4)

    ids = array("i", manager.allocate(2))
    first = manager.keep_tail(1, ids, 6)
    assert (first.first, list(first.blocks), first.num_valid) == (0, list(ids), 6)
    assert manager.keep_tail(1, ids, 6) is None


def test_a_pool_that_is_never_continued_is_forgotten():
    run = Scheduling(limits())
    run.lose(1)
    epoch = run.join(limits(), pool=pool())
    run.add("a", list(range(30)), max_tokens=20)
    run.step()
    memory = run.executors[epoch]
    run.lose(epoch, pool_wait_s=5.0)
    done(run.scheduler.expire(KEPT_S))
    assert len(run.scheduler.sequences.pools) == 0
    epoch = run.join(limits(), pool=pool(epoch), memory=memory)
    executor = run.scheduler.executor(epoch)
    assert (executor.earlier_epochs, executor.not_adopted) == ((), "epoch 2 is not known here")
    run.finish()


# --- the whole core: which pools count, and who waits ---


def join(service: Service, name: str, memory: OracleExecutor | None = None, **changes: Any) -> OracleExecutor:
    """An executor with a pool says Hello. Returns its memory."""
    service.join(name, **changes)
    if memory is not None:
        service.executors[name].slots = memory.slots
    return service.executors[name]


def adopted(service: Service) -> Any:
    """What the last line about an executor that joined says of its pool."""
    facts = service.events("executor joined")[-1].facts
    return facts.get("not_adopted", facts["adopted"])


def begun(num_answers: int = 5, **changes: Any) -> tuple[Service, OracleExecutor]:
    """A request in the middle of its answer, on an executor that has a pool; one plan or two are unanswered."""
    service = Service()
    memory = join(service, "one", pool=pool(), **changes)
    assert adopted(service) is False
    service.submit("a", max_tokens=30)
    service.turn(num_answers)
    return service, memory


def test_a_successor_continues_the_pool_and_the_log_says_so():
    service, memory = begun()
    service.lose("one")
    join(service, "two", memory, pool=pool(1, lease=2))
    assert adopted(service) is True
    facts = service.events("executor joined")[-1].facts
    assert (facts["pool"], facts["lease"], facts["blocks_cached"]) == (NAME[:8], 2, 1)
    assert all(NAME not in str(line.facts) for line in service.logs), "the pool's name is a secret"
    service.turn()
    assert service.tokens[b"web", "a", 0] == undisturbed(30)
    assert service.metric("baton_recomputed_tokens_total") == 0


def test_a_successor_that_speaks_before_the_loss_was_noticed_ends_the_older_member():
    service, memory = begun()
    join(service, "two", memory, pool=pool(1, lease=2))
    assert service.events("executor lost")[-1].facts["reason"] == "its pool has another holder"
    assert adopted(service) is True
    assert [member.hello.executor for member in service.core.fleet] == ["two"]
    service.do(service.core.executor_gone(b"one", service.now))
    service.turn()
    assert service.tokens[b"web", "a", 0] == undisturbed(30)
    assert service.metric("baton_recomputed_tokens_total") == 0


def test_the_same_process_comes_back_over_another_connection_with_its_pool():
    service, memory = begun()
    join(service, "again", memory, pool=pool(1, lease=1))
    assert adopted(service) is True
    service.turn()
    assert service.metric("baton_recomputed_tokens_total") == 0


def test_a_hello_of_an_earlier_holder_that_comes_late_is_not_heard():
    service, memory = begun()
    service.lose("one")
    join(service, "two", memory, pool=pool(1, lease=3))
    join(service, "one", memory, pool=pool(1, lease=2))
    assert [member.hello.executor for member in service.core.fleet] == ["two"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pool": pool(1, 2, layout="other")}, "its layout is other, and was oracle"),
        ({"pool": pool(7, 2)}, "epoch 7 wrote it last, not 1"),
        ({"pool": pool(1, 2), "dtype": "bfloat16"}, "its model is f00d/bfloat16, and was f00d/float32"),
        ({"pool": pool(1, 2), "fingerprint": "beef"}, "its model is beef/float32, and was f00d/float32"),
        ({"pool": pool(1, 2), "num_blocks": 63}, "its num_blocks is 63, and was 64"),
        ({"pool": pool(1, 2), "block_size": 8}, "its block_size is 8, and was 4"),
        ({"pool": pool(1, 2, name="f" * 32)}, "epoch 1 is not known here"),
    ],
)
def test_what_differs_is_not_adopted_and_the_log_says_why(changes, reason):
    service, _ = begun()
    service.lose("one")
    join(service, "two", **changes)
    assert adopted(service) == reason


@pytest.mark.parametrize("cause", ["step_failed", "untrusted"])
def test_nothing_counts_after_a_failed_step_or_an_answer_that_cannot_be_true(cause):
    service, _ = begun()
    failed = m.StepFailed(epoch=1, step=6, error="out of memory")
    untrue = m.StepResult(epoch=1, step=999, token_ids=b"", compute_us=1)
    service.do(service.core.from_executor(b"one", failed if cause == "step_failed" else untrue, service.now))
    assert service.events("executor lost")[-1].facts["cause"] == cause
    join(service, "two", pool=pool(1, 2))
    assert adopted(service) == "epoch 1 is not known here"


def test_an_epoch_without_an_answer_does_not_hide_the_one_before():
    """The successor died before it wrote its epoch into the pool's tag: the tag still names the first one."""
    service, memory = begun()
    service.lose("one")
    join(service, "two", memory, pool=pool(1, lease=2))
    service.do(done(service.core.plans(service.now)))
    service.lose("two")
    join(service, "three", memory, pool=pool(1, lease=3))
    assert adopted(service) is True
    service.turn()
    assert service.tokens[b"web", "a", 0] == undisturbed(30)


def lose_with_standby(service: Service) -> None:
    """A sibling is there, and a standby waits for the pool of the executor that dies."""
    join(service, "sibling")
    service.do(service.core.from_executor(b"one", m.ExecutorHeartbeat(epoch=1, has_standby=True), service.now))
    service.lose("one")


def test_executors_with_a_standby_are_counted():
    service, _ = begun()
    join(service, "sibling")
    assert service.metric("baton_executors_with_standby") == 0
    for has_standby in (True, False):
        beat = m.ExecutorHeartbeat(epoch=1, has_standby=has_standby)
        service.do(service.core.from_executor(b"one", beat, service.now))
        assert service.metric("baton_executors_with_standby") == has_standby


def test_a_standbys_pool_is_waited_for_and_not_for_ever():
    service, _ = begun()
    lose_with_standby(service)
    service.turn()
    assert service.executors["sibling"].computed_tokens == 0, "the sibling does not compute it anew"
    service.wait(STANDBY_WAIT_S)
    service.turn()
    assert service.executors["sibling"].computed_tokens > 0
    assert service.tokens[b"web", "a", 0] == undisturbed(30)


def test_a_standby_that_comes_in_time_gets_its_sequences_back():
    service, memory = begun()
    lose_with_standby(service)
    service.turn()
    service.now += 0.1
    join(service, "two", memory, pool=pool(1, lease=2))
    service.turn()
    assert service.executors["sibling"].computed_tokens == 0
    assert service.tokens[b"web", "a", 0] == undisturbed(30)
    assert service.metric("baton_recomputed_tokens_total") == 0


@pytest.mark.parametrize(("start_s", "waits"), [(100.0, False), (0.01, True)])
def test_without_a_standby_they_wait_if_the_next_start_is_sooner_than_the_work(start_s, waits):
    """A sibling computes two or three tokens a second; some 10 are to be computed anew."""
    service = Service(step_s=0.4)
    service.join("sibling")
    service.submit("warm")
    service.turn()
    join(service, "one", pool=pool(), start_s=start_s)
    service.submit("there", max_tokens=30)
    service.submit("here", max_tokens=30)
    service.turn(num_answers=12)
    lost = next(e for e in service.core.scheduler.executors if e.name == "one")
    assert lost.num_running
    before = service.executors["sibling"].computed_tokens
    service.lose("one")
    service.do(done(service.core.plans(service.now)))
    waiting = [s for s in service.core.scheduler if s.awaited]
    assert bool(waiting) == waits
    service.wait(5.0)
    service.turn()
    assert service.executors["sibling"].computed_tokens > before
    assert not any(s.awaited for s in service.core.scheduler)


def test_a_cancelled_request_leaves_the_pool_that_it_waits_for():
    service, memory = begun()
    lose_with_standby(service)
    service.say(m.Cancel(request_id="a"))
    assert service.endings[b"web", "a", 0] == "cancelled"
    join(service, "two", memory, pool=pool(1, lease=2))
    service.turn()


def test_a_hello_without_a_pool_is_as_before():
    service, _ = begun()
    service.lose("one")
    service.do(service.core.from_executor(b"two", hello("two"), service.now))
    assert "adopted" not in service.events("executor joined")[-1].facts
