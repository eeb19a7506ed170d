"""Log-probabilities of prompts: each position is asked for once, and what is cached is never written again."""

from array import array
from itertools import pairwise

import pytest

from common import messages as m
from common.wire import int32_array
from scheduler_svc.core.executor.block_manager import BlockManager, BlockTable, Grant, hash_block
from scheduler_svc.core.scheduling.suspects import SUSPICIOUS_STRIKES
from scheduler_svc.core.sequence import Sequence
from tests.support.scheduling import Scheduling, limits, with_budget

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3]  # 18 tokens, blocks of 4


def asked(plan: m.Plan | None) -> list[int]:
    """The tokens that a plan asks for."""
    assert plan is not None
    return int32_array("targets", plan.prompt_logprob_targets).tolist()


def slots(plan: m.Plan) -> list[int]:
    return int32_array("slots", plan.slot_mapping).tolist()


def test_a_chunk_ends_within_the_hits_and_the_next_begins_in_the_middle_of_a_published_block() -> None:
    """What ends there takes no more hits than it has positions in."""
    manager, raw = BlockManager(8, 4), array("i", range(18)).tobytes()
    manager.reserve(BlockTable(), raw, 0, 99)
    table = BlockTable()
    grant = manager.reserve(table, raw, 0, 6, wanted_from=0)
    assert (grant, len(table.ids)) == (Grant(start=0, count=6, store_from=8, num_hits=2, num_new=0), 2)
    grant = manager.reserve(table, raw, 6, 1, wanted_from=6)
    assert grant == Grant(start=6, count=1, store_from=8, num_hits=0, num_new=0)
    grant = manager.reserve(table, raw, 7, 99, wanted_from=9)
    assert grant == Grant(start=9, count=9, store_from=16, num_hits=2, num_new=1)
    assert manager.num_free == 8 - 6


def test_a_chunk_looks_no_further_than_it_can_reach() -> None:
    """Or a long cached prompt in many chunks takes time by the square of its length."""
    hashed = []

    def hash_function(content: bytes, parent: int) -> int:
        hashed.append(content)
        return hash_block(content, parent)

    manager, raw = BlockManager(102, 4, hash_function), array("i", range(401)).tobytes()
    manager.reserve(BlockTable(), raw, 0, 401)
    hashed.clear()
    table, start = BlockTable(), 0
    while start < 400:
        grant = manager.reserve(table, raw, start, 8, wanted_from=start)
        assert grant == Grant(start=start, count=8, store_from=start + 8, num_hits=2, num_new=0)
        start += 8
    assert len(hashed) == 100
    assert manager.reserve(table, raw, 400, 8) == Grant(start=400, count=1, store_from=400, num_hits=0, num_new=1)


def test_an_admission_counts_what_is_shared_behind_its_first_chunk() -> None:
    """Nobody waits for memory that it will not take."""
    run = Scheduling(limits(max_batch_tokens=32), window=1)
    prompt = list(range(160))  # 40 of 64 blocks
    run.add("holds", prompt, max_tokens=40)
    while run.scheduler.executor(1).running.prompts() or run.scheduler.num_waiting:
        run.step()
    (sequence,) = run.add("shares", prompt, max_tokens=4, prompt_logprobs=1, client="one")
    (behind,) = run.add("behind", [7, 8, 9], max_tokens=2, client="one")
    run.step()
    assert (sequence.epoch, sequence.num_covered) == (1, 31)
    for _ in range(10):  # the one that holds the blocks takes 40
        run.step()
    assert behind in run.ends
    run.finish()


@pytest.mark.parametrize("budget", [1, 3, 6, 64])
def test_cached_positions_are_computed_for_their_logits_and_not_written(budget: int) -> None:
    run = Scheduling(limits(max_batch_tokens=budget, max_num_seqs=4), window=2)
    run.add("first", PROMPT, max_tokens=1)
    run.finish()
    num_plans = len(run.plans[1])
    (sequence, other) = run.add("again", PROMPT, max_tokens=1, prompt_logprobs=3, n=2)
    run.finish()
    plans = run.plans[1][num_plans:]
    assert [target for plan in plans for target in asked(plan)] == PROMPT[1:], "each once, of one sequence"
    written = [slot for plan in plans for slot in slots(plan) if slot >= 0]
    assert len(written) == 2 * 2, "of both sequences what is behind the last full block"
    assert sequence.num_covered == len(PROMPT) - 1
    assert (sequence.num_cached_prompt, other.num_covered) == (0, 0)


def test_what_was_answered_is_not_asked_again() -> None:
    run = Scheduling(limits(max_batch_tokens=6), window=1)
    (sequence,) = run.add("a", PROMPT, prompt_logprobs=2)
    run.step()
    run.scheduler.sequences.preempt(run.scheduler.executor(1), sequence)
    run.step()
    run.lose(1)
    run.join(limits(), model="another")
    assert asked(run.plan(2)) == PROMPT[1 + sequence.num_covered :]
    assert sequence.num_covered == 12 - 2, "the block that was not full is computed again"
    run.finish()


def covered_after(run: Scheduling, sequence: Sequence, order: tuple[int, int]) -> list[int]:
    """How much is covered before and after two executors answer, on which a sequence ran one after the other."""
    run.scheduler.sequences.preempt(run.scheduler.executor(1), sequence)
    assert asked(run.plan(2)) == PROMPT[1:13]
    covered = [sequence.num_covered]
    for epoch in order:
        run.answer(epoch)
        covered.append(sequence.num_covered)
    return covered


@pytest.mark.parametrize(("order", "expected"), [((1, 2), [0, 8, 12]), ((2, 1), [0, 12, 12])])
def test_an_answer_that_comes_after_the_sequence_went_elsewhere_counts_as_far_as_it_is_new(
    order: tuple[int, int], expected: list[int]
) -> None:
    run = Scheduling(limits(max_batch_tokens=8), window=1)
    (sequence,) = run.add("a", PROMPT, prompt_logprobs=2)
    assert asked(run.plan(1)) == PROMPT[1:9]
    run.take_no_new(1)
    run.join(limits(max_batch_tokens=12))
    assert covered_after(run, sequence, order) == expected
    run.finish()


@pytest.mark.parametrize(("order", "expected"), [((1, 2), [0, 0, 12]), ((2, 1), [0, 12, 12])])
def test_an_answer_of_another_model_than_the_sequence_went_on_with_gives_nothing(
    order: tuple[int, int], expected: list[int]
) -> None:
    """Before or after the answer of the executor where it is now."""
    run = Scheduling(limits(max_batch_tokens=8), window=1)
    (sequence,) = run.add("a", PROMPT, prompt_logprobs=2)
    assert asked(run.plan(1)) == PROMPT[1:9]
    run.memberships[1].is_late = True
    run.join(limits(max_batch_tokens=12), model="another")
    assert covered_after(run, sequence, order) == expected
    assert asked(run.plan(2)) == PROMPT[13:]
    run.finish()
    assert (sequence.model, run.scheduler.stats.model_changes) == ("another", 0)


def test_what_an_answer_of_another_model_would_have_given_is_asked_again() -> None:
    """Also of the model that gave it: the sequence comes back there, when the answer has come."""
    run = Scheduling(limits(max_batch_tokens=8), window=2)
    (sequence,) = run.add("a", PROMPT, prompt_logprobs=2)
    assert [asked(run.plan(1)), asked(run.plan(1))] == [PROMPT[1:9], PROMPT[9:17]]
    run.memberships[1].is_late = True
    run.join(limits(max_batch_tokens=12), model="another")
    run.scheduler.sequences.preempt(run.scheduler.executor(1), sequence)
    run.plan(2)
    run.answer(1)
    run.lose(2)
    run.memberships[1].is_late = False
    assert asked(run.plan(1)) == PROMPT[1:9]
    run.answer(1)
    assert sequence.num_covered == 0, "positions before those that came are still to come"
    run.finish()


def test_an_answer_after_the_end_gives_nothing() -> None:
    run = Scheduling(limits(max_batch_tokens=8), window=1)
    (sequence,) = run.add("a", PROMPT, prompt_logprobs=2)
    run.plan()
    run.end(run.scheduler.cancel([sequence]))
    run.answer()
    assert sequence.num_covered == 0


def test_a_sequence_goes_on_with_the_model_that_told_the_beginning() -> None:
    """Although that comes while it waits: the only executor with another model is free."""
    run = Scheduling(limits(max_batch_tokens=8), window=1)
    (sequence,) = run.add("a", PROMPT, prompt_logprobs=1)
    run.plan(1)
    run.join(limits(), model="another")
    run.scheduler.sequences.preempt(run.scheduler.executor(1), sequence)
    run.answer(1)
    run.memberships[1].is_late = True  # or the sequence waits for that executor, whatever the model
    assert run.plan(2) is None
    assert asked(run.plan(1)) == PROMPT[9:17]
    run.finish()
    assert run.scheduler.stats.model_changes == 0


def test_a_plan_asks_for_so_many_and_every_prompt_goes_on() -> None:
    run = Scheduling(limits(num_blocks=256), window=2, scheduler_type=with_budget(max_prompt_logprobs=21))
    for number, width in enumerate((1, 21, 5, 0, 1)):
        run.add(str(number), [number, *PROMPT], prompt_logprobs=width, max_tokens=2)
    run.finish()
    counts = [int32_array("counts", plan.prompt_logprob_counts) for plan in run.plans[1]]
    assert max(len(each) * each.max(initial=0) for each in counts) <= 21
    assert sum(map(len, counts)) == 4 * len(PROMPT)


def test_a_plan_of_a_suspect_asks_for_no_more() -> None:
    run = Scheduling(window=1, scheduler_type=with_budget(max_prompt_logprobs=20))
    (suspect,) = run.add("a", PROMPT, prompt_logprobs=5)
    for _ in range(SUSPICIOUS_STRIKES):
        run.scheduler.sequences.strike({suspect: 0}, "")
    while suspect.num_covered < len(PROMPT) - 1:
        run.step()
    assert [len(asked(plan)) for plan in run.plans[1]] == [4, 4, 4, 4, 1]
    run.finish()


def test_targets_are_the_tokens_behind_those_that_the_plan_computes() -> None:
    """Behind the rows of sequences that decode."""
    run = Scheduling(window=1)
    run.add("a", [7, 8])
    run.step()
    run.add("b", PROMPT, prompt_logprobs=1)
    plan = run.plan()
    assert plan is not None
    tokens = int32_array("tokens", plan.token_ids).tolist()
    places = int32_array("places", plan.prompt_logprob_tokens).tolist()
    assert [(tokens[i], target) for i, target in zip(places, asked(plan), strict=True)] == [*pairwise(PROMPT)]
    run.finish()
