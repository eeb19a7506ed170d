"""The life of a sequence, as it can be asked for: queue, cache, chunks of its prompt, preemption, moves, end."""

from array import array

import pytest

from common import messages as m
from scheduler_svc.core.observability.sequence_lives import MAX_MARKS, SequenceLives
from scheduler_svc.core.requests.group_commit import JournalState
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.scheduling.stats import Move
from scheduler_svc.core.sequence import new_sequences
from scheduler_svc.core.step_output import SequenceEnd
from tests.support.chores import done
from tests.support.service import Service, restart
from tests.support.submits import PROMPT, submit


def life(service: Service, name: str = "a") -> list[m.SequenceLife]:
    answer = service.say(m.LifeQuery(query_id=3, request_id=name), peer=b"ops")
    assert (answer.query_id, answer.at) == (3, service.now)
    return list(answer.sequences)


def words(service: Service, name: str = "a") -> list[str]:
    (told,) = life(service, name)
    return [mark.what for mark in told.marks]


def test_an_undisturbed_request():
    service = Service(step_s=0.5)
    service.now = 7.0
    service.submit("a")
    assert words(service) == ["queued"]
    service.now = 9.0
    service.join("one")
    service.turn()
    (told,) = life(service)
    assert [(mark.at, mark.what, mark.tokens) for mark in told.marks] == [
        (7.0, "queued", 3),
        (9.0, "admitted", 3),
        (9.0, "prefill", 3),
        (9.5, "first_token", 0),
        (12.0, "ended", 6),
    ]
    assert (told.index, told.output, told.num_left_out, told.marks[-1].cause) == (0, 6, 0, "length")
    assert {(mark.executor, mark.epoch) for mark in told.marks[1:4]} == {("one", 1)}


def test_a_long_prompt_has_its_chunks_and_a_second_one_its_hits():
    service = Service()
    service.join("one")
    for name in ("a", "b"):
        service.submit(name, prompt=range(5, 105), max_tokens=3)
        service.turn()
    (first,), (second,) = life(service, "a"), life(service, "b")
    assert [mark.tokens for mark in first.marks if mark.what == "prefill"] == [64, 36]
    assert [(mark.tokens, mark.cached) for mark in second.marks if mark.what == "admitted"] == [(100, 99)]


@pytest.mark.parametrize(("how", "what", "cause"), [("lose", "lost", "disconnected"), ("drain", "left", "drained")])
def test_a_move_names_both_executors(how, what, cause):
    service = Service()
    service.join("one")
    service.submit("a", max_tokens=20)
    service.turn(num_answers=3)
    assert life(service)[0].output == 3
    if how == "lose":
        service.lose("one")
    else:
        service.say(m.DrainExecutor(query_id=1, executor="one"))
        service.turn()
    service.join("two")
    service.turn()
    told = [(mark.what, mark.executor) for mark in life(service)[0].marks]
    assert told[-5:] == [(what, "one"), ("admitted", "two"), ("prefill", "two"), ("resumed", "two"), ("ended", "")]
    assert [mark.cause for mark in life(service)[0].marks if mark.what == what] == [cause]


def test_a_preempted_sequence_says_so():
    service = Service(scheduler=SchedulerConfig(look_ahead=False))
    service.join("one", num_blocks=16, max_model_len=60)
    for i in range(8):
        service.submit(f"r{i}", max_tokens=50)
    service.turn()
    lives = [words(service, f"r{i}") for i in range(8)]
    assert sum(what == "preempted" for told in lives for what in told) == service.core.scheduler.stats.preemptions > 0
    for told in lives:
        assert told[-1] == "ended"
        for i, what in enumerate(told):
            assert what != "preempted" or "admitted" in told[i:]


def test_a_request_that_waits_for_nothing_ends_as_it_was_cancelled():
    service = Service()
    service.submit("a", n=2)
    service.say(m.Cancel(request_id="a", index=1))
    assert [[mark.what for mark in told.marks] for told in life(service)] == [["queued"], ["queued", "ended"]]
    service.say(m.Cancel(request_id="a"))
    assert [told.marks[-1].cause for told in life(service)] == ["cancelled", "cancelled"]


def test_the_life_of_one_that_the_journal_brought_back_begins_there():
    service = Service(JournalState.OK)
    service.join("one")
    service.submit("a", max_tokens=20, is_resumable=True)
    rows = [service.write()]
    service.turn(num_answers=3)
    rows.append(service.write())
    after, _ = restart(rows)
    (told,) = life(after)
    assert [(mark.what, mark.tokens) for mark in told.marks] == [("restored", told.output)]
    after.join("two")
    after.turn()
    assert words(after) == ["restored", "admitted", "prefill", "resumed", "ended"]


def test_a_token_on_its_way_to_a_sequence_that_waits_again_does_not_resume_it():
    service = Service()
    service.join("one")
    service.submit("a", max_tokens=20)
    service.turn(num_answers=3)
    core = service.core
    (sequence,) = list(core.scheduler)
    service.lose("one")
    service.join("two")
    service.do(done(core.plans(service.now)))  # a plan with its next token is on its way
    core.scheduler.sequences.preempt(core.scheduler.executor(2), sequence)
    service.turn()
    whats = words(service)
    assert whats[:6] == ["queued", "admitted", "prefill", "first_token", "lost", "admitted"]
    assert whats[6:] == ["prefill", "preempted", "admitted", "prefill", "resumed", "ended"]


def begun(lives, request_id, n=1):
    """The sequences of a request that begins."""
    sequences = new_sequences(submit(request_id, n=n), array("i", PROMPT), 7, 0, None)
    lives.begun(sequences, 0.0, is_restored=False)
    return sequences


def is_running(sequence):
    pytest.fail("it has ended, and its tokens are still there")


@pytest.mark.parametrize(("limits", "n", "num_kept"), [({"max_sequences": 10}, 4, 2), ({"max_requests": 3}, 1, 3)])
def test_so_many_that_have_ended_are_remembered_without_their_tokens(limits, n, num_kept):
    lives, names = SequenceLives(**limits), [f"r{i}" for i in range(6)]
    for name in names:
        for sequence in begun(lives, name, n):
            lives.ended(SequenceEnd(sequence, "cancelled"), 1.0)
    assert [len(lives.of(name, is_running)) for name in names] == [0] * (6 - num_kept) + [n] * num_kept


def test_a_life_has_its_beginning_and_the_last_that_happened():
    lives = SequenceLives()
    lives.executor_joined(1, "one")
    (sequence,) = begun(lives, "a")
    for i in range(200):  # it is moved again and again
        lives.moved([Move("preempted", sequence, 1)], float(i))
    (told,) = lives.of("a", lambda sequence: 0)
    assert len(told.marks) == MAX_MARKS
    assert told.num_left_out == 201 - MAX_MARKS
    assert [mark.what for mark in told.marks[:2]] == ["queued", "preempted"]
    times = [mark.at for mark in told.marks]
    assert times == sorted(times)
    assert times[-1] == 199.0


def test_what_is_not_known_has_no_life():
    assert life(Service(), "unknown") == []
