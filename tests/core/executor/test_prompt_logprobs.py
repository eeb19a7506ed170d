"""Log-probabilities of prompts: each position is asked for once, and what is cached is never written again."""

from array import array
from itertools import pairwise

import pytest

from common import messages as m
from common.wire import int32_array
from scheduler_svc.core.executor.block_manager import BlockManager, BlockTable, Grant, hash_block
from scheduler_svc.core.scheduling import plan_budget
from scheduler_svc.core.scheduling.suspects import SUSPICIOUS_STRIKES
from scheduler_svc.core.sequence import Sequence
from tests.support.rig import Rig, limits

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
    rig = Rig(limits(max_batch_tokens=32), window=1)
    prompt = list(range(160))  # 40 of 64 blocks
    rig.add("holds", prompt, max_tokens=40)
    while rig.scheduler.executor(1).running.prompts() or rig.scheduler.num_waiting:
        rig.step()
    (sequence,) = rig.add("shares", prompt, max_tokens=4, prompt_logprobs=1, client="one")
    (behind,) = rig.add("behind", [7, 8, 9], max_tokens=2, client="one")
    rig.step()
    assert (sequence.epoch, sequence.num_covered) == (1, 31)
    for _ in range(10):  # the one that holds the blocks takes 40
        rig.step()
    assert behind in rig.ends
    rig.finish()


@pytest.mark.parametrize("budget", [1, 3, 6, 64])
def test_cached_positions_are_computed_for_their_logits_and_not_written(budget: int) -> None:
    rig = Rig(limits(max_batch_tokens=budget, max_num_seqs=4), window=2)
    rig.add("first", PROMPT, max_tokens=1)
    rig.finish()
    num_plans = len(rig.plans[1])
    (sequence, other) = rig.add("again", PROMPT, max_tokens=1, prompt_logprobs=3, n=2)
    rig.finish()
    plans = rig.plans[1][num_plans:]
    assert [target for plan in plans for target in asked(plan)] == PROMPT[1:], "each once, of one sequence"
    written = [slot for plan in plans for slot in slots(plan) if slot >= 0]
    assert len(written) == 2 * 2, "of both sequences what is behind the last full block"
    assert sequence.num_covered == len(PROMPT) - 1
    assert (sequence.num_cached_prompt, other.num_covered) == (0, 0)


def test_what_was_answered_is_not_asked_again() -> None:
    rig = Rig(limits(max_batch_tokens=6), window=1)
    (sequence,) = rig.add("a", PROMPT, prompt_logprobs=2)
    rig.step()
    rig.scheduler.sequences.preempt(rig.scheduler.executor(1), sequence)
    rig.step()
    rig.lose(1)
    rig.join(limits(), model="another")
    assert asked(rig.plan(2)) == PROMPT[1 + sequence.num_covered :]
    assert sequence.num_covered == 12 - 2, "the block that was not full is computed again"
    rig.finish()


def covered_after(rig: Rig, sequence: Sequence, order: tuple[int, int]) -> list[int]:
    """How much is covered before and after two executors answer, on which a sequence ran one after the other."""
    rig.scheduler.sequences.preempt(rig.scheduler.executor(1), sequence)
    assert asked(rig.plan(2)) == PROMPT[1:13]
    covered = [sequence.num_covered]
    for epoch in order:
        rig.answer(epoch)
        covered.append(sequence.num_covered)
    return covered


@pytest.mark.parametrize(("order", "expected"), [((1, 2), [0, 8, 12]), ((2, 1), [0, 12, 12])])
def test_an_answer_that_comes_after_the_sequence_went_elsewhere_counts_as_far_as_it_is_new(
    order: tuple[int, int], expected: list[int]
) -> None:
    rig = Rig(limits(max_batch_tokens=8), window=1)
    (sequence,) = rig.add("a", PROMPT, prompt_logprobs=2)
    assert asked(rig.plan(1)) == PROMPT[1:9]
    rig.take_no_new(1)
    rig.join(limits(max_batch_tokens=12))
    assert covered_after(rig, sequence, order) == expected
    rig.finish()


@pytest.mark.parametrize(("order", "expected"), [((1, 2), [0, 0, 12]), ((2, 1), [0, 12, 12])])
def test_an_answer_of_another_model_than_the_sequence_went_on_with_gives_nothing(
    order: tuple[int, int], expected: list[int]
) -> None:
    """Before or after the answer of the executor where it is now."""
    rig = Rig(limits(max_batch_tokens=8), window=1)
    (sequence,) = rig.add("a", PROMPT, prompt_logprobs=2)
    assert asked(rig.plan(1)) == PROMPT[1:9]
    rig.memberships[1].is_late = True
    rig.join(limits(max_batch_tokens=12), model="another")
    assert covered_after(rig, sequence, order) == expected
    assert asked(rig.plan(2)) == PROMPT[13:]
    rig.finish()
    assert (sequence.model, rig.scheduler.stats.model_changes) == ("another", 0)


def test_what_an_answer_of_another_model_would_have_given_is_asked_again() -> None:
    """Also of the model that gave it: the sequence comes back there, when the answer has come."""
    rig = Rig(limits(max_batch_tokens=8), window=2)
    (sequence,) = rig.add("a", PROMPT, prompt_logprobs=2)
    assert [asked(rig.plan(1)), asked(rig.plan(1))] == [PROMPT[1:9], PROMPT[9:17]]
    rig.memberships[1].is_late = True
    rig.join(limits(max_batch_tokens=12), model="another")
    rig.scheduler.sequences.preempt(rig.scheduler.executor(1), sequence)
    rig.plan(2)
    rig.answer(1)
    rig.lose(2)
    rig.memberships[1].is_late = False
    assert asked(rig.plan(1)) == PROMPT[1:9]
    rig.answer(1)
    assert sequence.num_covered == 0, "positions before those that came are still to come"
    rig.finish()


def test_an_answer_after_the_end_gives_nothing() -> None:
    rig = Rig(limits(max_batch_tokens=8), window=1)
    (sequence,) = rig.add("a", PROMPT, prompt_logprobs=2)
    rig.plan()
    rig.end(rig.scheduler.cancel([sequence]))
    rig.answer()
    assert sequence.num_covered == 0


def test_a_sequence_goes_on_with_the_model_that_told_the_beginning() -> None:
    """Although that comes while it waits: the only executor with another model is free."""
    rig = Rig(limits(max_batch_tokens=8), window=1)
    (sequence,) = rig.add("a", PROMPT, prompt_logprobs=1)
    rig.plan(1)
    rig.join(limits(), model="another")
    rig.scheduler.sequences.preempt(rig.scheduler.executor(1), sequence)
    rig.answer(1)
    rig.memberships[1].is_late = True  # or the sequence waits for that executor, whatever the model
    assert rig.plan(2) is None
    assert asked(rig.plan(1)) == PROMPT[9:17]
    rig.finish()
    assert rig.scheduler.stats.model_changes == 0


def test_a_plan_asks_for_so_many_and_every_prompt_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_budget, "MAX_PLAN_PROMPT_LOGPROBS", 21)
    rig = Rig(limits(num_blocks=256), window=2)
    for number, width in enumerate((1, 21, 5, 0, 1)):
        rig.add(str(number), [number, *PROMPT], prompt_logprobs=width, max_tokens=2)
    rig.finish()
    counts = [int32_array("counts", plan.prompt_logprob_counts) for plan in rig.plans[1]]
    assert max(len(each) * each.max(initial=0) for each in counts) <= 21
    assert sum(map(len, counts)) == 4 * len(PROMPT)


def test_a_plan_of_a_suspect_asks_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_budget, "MAX_PLAN_PROMPT_LOGPROBS", 20)
    rig = Rig(window=1)
    (suspect,) = rig.add("a", PROMPT, prompt_logprobs=5)
    for _ in range(SUSPICIOUS_STRIKES):
        rig.scheduler.sequences.strike({suspect: 0}, "")
    while suspect.num_covered < len(PROMPT) - 1:
        rig.step()
    assert [len(asked(plan)) for plan in rig.plans[1]] == [4, 4, 4, 4, 1]
    rig.finish()


def test_targets_are_the_tokens_behind_those_that_the_plan_computes() -> None:
    """Behind the rows of sequences that decode."""
    rig = Rig(window=1)
    rig.add("a", [7, 8])
    rig.step()
    rig.add("b", PROMPT, prompt_logprobs=1)
    plan = rig.plan()
    assert plan is not None
    tokens = int32_array("tokens", plan.token_ids).tolist()
    places = int32_array("places", plan.prompt_logprob_tokens).tolist()
    assert [(tokens[i], target) for i, target in zip(places, asked(plan), strict=True)] == [*pairwise(PROMPT)]
    rig.finish()
