"""Sequences that want one result of their prompt instead of tokens: how they are planned, and what they are told."""

from typing import Any

import msgspec
import numpy as np
import pytest

from common import messages as m
from common.errors import RequestRejected, WireError
from common.plan import parse_plan
from common.vocabulary import Vocabulary
from scheduler_svc.core.fleet.hello_check import mismatch
from scheduler_svc.core.requests.group_commit import JournalState
from scheduler_svc.core.sequence import State
from tests.support.chores import done
from tests.support.hello import LIMITS, hello
from tests.support.oracle import expected_pooled
from tests.support.scheduling import Scheduling, limits
from tests.support.service import Service, restart
from tests.support.submits import PROMPT, submit

EVERY: tuple[m.Task, ...] = ("generate", "embed", "score")
LOGITS = {"pooling": "logits", "pooled_token_ids": (7, 3)}
HIDDEN = {"pooling": "hidden"}


def run(*executors: Any, **config: Any) -> Scheduling:
    return Scheduling(*(executors or (limits(tasks=EVERY),)), **config)


def prompt(count: int, first: int = 1) -> list[int]:
    return [first + i % 50 for i in range(count)]


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("asked", [HIDDEN, LOGITS], ids=["hidden", "logits"])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 63, 64, 65, 256])
def test_a_result_is_that_of_the_whole_prompt_in_one_plan_or_several(window: int, asked: Any, length: int) -> None:
    pooled = run(window=window)
    (sequence,) = pooled.add("a", prompt(length), max_tokens=1, **asked)
    pooled.add("b", [9, 9], max_tokens=12)
    pooled.finish()
    assert pooled.ends[sequence].reason == "stop"
    assert len(sequence.pooled) == 4 * (2 if asked is LOGITS else 3)
    assert sequence.tokens.tolist() == prompt(length), "it brings no token"


def test_it_holds_nothing_from_its_last_row_on_and_its_plan_samples_nothing() -> None:
    pooled = run()
    (sequence,) = pooled.add("a", prompt(9), max_tokens=1, **HIDDEN)
    plan = pooled.plan()
    assert plan is not None
    assert parse_plan(plan, limits(tasks=EVERY)).sample_rows.tolist() == []
    assert (sequence.state, sequence.lane, sequence.num_inflight) == (State.COMPLETING, -1, 1)
    executor = pooled.scheduler.executor(1)
    assert executor.blocks.num_free == executor.blocks.num_blocks
    assert pooled.plan() is None, "there is nothing more to compute"
    pooled.answer()
    assert (pooled.ends[sequence].reason, sequence.num_inflight) == ("stop", 0)


def test_its_prompt_feeds_the_prefix_cache_and_uses_it() -> None:
    pooled = run()
    pooled.add("a", prompt(16), max_tokens=1, **HIDDEN)
    pooled.finish()
    (again,) = pooled.add("b", prompt(16), max_tokens=1, **LOGITS)
    (other,) = pooled.add("c", [*prompt(12), 99], max_tokens=4)
    pooled.finish()
    assert (again.num_cached_prompt, other.num_cached_prompt) == (15, 12)
    assert sum(len(plan.token_ids) // 4 for plan in pooled.plans[1][1:]) == 1 + 1 + 3


def test_a_prompt_as_long_as_the_pool_fits() -> None:
    pooled = run(limits(tasks=EVERY, num_blocks=4, max_model_len=16))
    pooled.add("a", prompt(16), max_tokens=1, **HIDDEN)
    with pytest.raises(RequestRejected, match=r"prompt of 17 tokens, the limit is 16"):
        pooled.add("b", prompt(17), max_tokens=1, **HIDDEN)
    pooled.finish()


def test_a_preempted_one_comes_back_to_a_pool_that_just_holds_it() -> None:
    pooled = run(limits(tasks=EVERY, num_blocks=4, max_model_len=16, max_batch_tokens=6), window=1)
    (sequence,) = pooled.add("a", prompt(16), max_tokens=1, **HIDDEN)
    for _ in range(3):
        pooled.step()
        executor = pooled.scheduler.executor(1)
        pooled.scheduler.sequences.preempt(executor, sequence)
        executor.blocks.discard()
    pooled.finish()
    assert pooled.ends[sequence].reason == "stop"


@pytest.mark.parametrize("num_answered", [0, 1, 2])
def test_it_survives_the_loss_of_its_executor_at_any_time(num_answered: int) -> None:
    pooled = run(limits(tasks=EVERY, max_batch_tokens=8), limits(tasks=EVERY, max_batch_tokens=8), window=2)
    (sequence,) = pooled.add("a", prompt(24), max_tokens=1, **HIDDEN)
    pooled.plan(1)
    for _ in range(num_answered):
        pooled.plan(1)
        pooled.answer(1)
    pooled.plan(1)
    if num_answered == 2:
        assert sequence.state is State.COMPLETING
    pooled.lose(1)
    assert (sequence.state, sequence.num_inflight) == (State.WAITING, 0)
    pooled.finish()
    assert pooled.ends[sequence].reason == "stop"


def test_a_cancelled_one_gets_no_result() -> None:
    pooled = run()
    (sequence,) = pooled.add("a", prompt(9), max_tokens=1, **HIDDEN)
    pooled.plan()
    pooled.end(pooled.scheduler.cancel([sequence]))
    pooled.answer()
    assert (pooled.ends[sequence].reason, sequence.pooled) == ("cancelled", b"")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_result_that_is_twice_no_number_ends_its_sequence_alone(value: float) -> None:
    pooled = run()
    sequences = [pooled.add(name, prompt(5, i), max_tokens=1, **HIDDEN)[0] for i, name in enumerate("ab", 1)]
    for expected in ([(sequences[1], "stop", "")], [(sequences[0], "error", "internal_error")]):
        pooled.plan()
        result = pooled.executors[1].run(pooled.sent[1].popleft())
        values = np.frombuffer(result.pooled, np.float32).copy()
        values[1] = value
        output = pooled.scheduler.commit(msgspec.structs.replace(result, pooled=values.tobytes()))
        assert [(end.sequence, end.reason, end.code) for end in output.ends] == expected
        pooled.scheduler.check()
    assert sequences[0].pooled == b""


def test_an_answer_of_another_size_is_not_trusted() -> None:
    pooled = run()
    pooled.add("a", prompt(5), max_tokens=1, **HIDDEN)
    pooled.plan()
    result = pooled.executors[1].run(pooled.sent[1].popleft())
    with pytest.raises(WireError, match="2 pooled values, its plan asks for 3"):
        pooled.scheduler.commit(msgspec.structs.replace(result, pooled=result.pooled[4:]))


def test_a_plan_has_no_more_results_than_its_answer_has_room_for() -> None:
    size = m.MAX_PLAN_POOLED_FLOATS // 3
    pooled = run(limits(tasks=EVERY, hidden_size=size))
    for i in range(7):
        pooled.add(str(i), prompt(2, i + 1), max_tokens=1, **HIDDEN)
    while (plan := pooled.plan()) is not None:
        pooled.sent[1].clear()
        assert 1 <= len(plan.pooled_rows) // 4 <= 3
        zeros = bytes(size * len(plan.pooled_rows))
        output = pooled.scheduler.commit(
            m.StepResult(epoch=1, step=plan.step, token_ids=b"", compute_us=1, pooled=zeros)
        )
        pooled.end(output.ends)
    assert len(pooled.ends) == 7
    assert len(pooled.plans[1]) == 3


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"pooling": "hidden", "pooled_token_ids": (1,)}, "'hidden' takes none pooled_token_ids, not 1"),
        ({"pooling": "logits"}, "'logits' takes 1 to 16 pooled_token_ids, not 0"),
        ({"pooled_token_ids": (1,)}, "'none' takes none pooled_token_ids, not 1"),
        ({"pooling": "hidden", "max_tokens": 2}, "max_tokens asks for more"),
        ({"pooling": "hidden", "n": 2}, "n asks for more"),
        ({"pooling": "hidden", "logprobs": 1, "prompt_logprobs": 1}, "logprobs, prompt_logprobs asks for more"),
        ({"pooling": "hidden", "constraints": m.Constraints()}, "constraints asks for more"),
        ({"pooling": "logits", "pooled_token_ids": (1000,)}, "token id 1000, the vocabulary ends at 999"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestRejected, match=reason):
        run().add("a", [1, 2], **({"max_tokens": 1} | fields))


# --- tasks ---


def test_a_sequence_goes_only_where_its_task_is_taken() -> None:
    pooled = run(limits(), limits(tasks=("embed",)), limits(tasks=("score", "embed")))
    for i in range(6):
        pooled.add(f"g{i}", prompt(6, i), max_tokens=3)
        pooled.add(f"e{i}", prompt(6, i), max_tokens=1, **HIDDEN)
        pooled.add(f"s{i}", prompt(6, i), max_tokens=1, **LOGITS)
    pooled.finish()
    assert not any(plan.pooled_rows for plan in pooled.plans[1])
    assert not any(plan.sample_rows for plan in [*pooled.plans[2], *pooled.plans[3]])


def refused(pooled: Scheduling, task: str, now: float, **fields: Any) -> str:
    """The code of a refusal for want of an executor, which says how to start one."""
    with pytest.raises(RequestRejected, match=rf"no executor takes the task '{task}'.* --task {task}") as refusal:
        pooled.add(f"{task} at {now}", [1, 2], now=now, **fields)
    return refusal.value.code


def test_a_task_that_no_executor_ever_took_is_refused_by_its_name() -> None:
    """For good once the first executor has been there for a minute: until then, one of that task may come."""
    pooled = run(limits(tasks=("embed",)))
    scored = LOGITS | {"max_tokens": 1}
    assert refused(pooled, "score", 0.0, **scored) == refused(pooled, "score", 59.9, **scored) == "no_executor"
    assert (
        refused(pooled, "score", 60.0, **scored) == refused(pooled, "generate", 60.0, max_tokens=5) == "task_not_served"
    )
    empty = Scheduling()
    empty.lose(1)
    assert refused(empty, "embed", 0.0, max_tokens=1, **HIDDEN) == "no_executor"


@pytest.mark.parametrize("in_order", [False, True])
def test_a_task_that_an_executor_took_in_an_earlier_life_may_come_again(in_order: bool) -> None:
    """Also if it left long before, in order, so that nothing else is known of it, and over a life that saw none."""
    first = Service(JournalState.OK)
    first.join("one", tasks=("embed",))
    first.join("two")
    if in_order:
        first.do(first.core.from_executor(b"one", m.Leaving(epoch=1), first.now))
    first.lose("one")
    first.wait(200.0)
    _, batch = restart(first.write_all())
    third, _ = restart([batch.payload])
    third.join("two")
    third.wait(200.0)
    tasks = {state.task: state.max_model_len for state in third.say(m.FrontendHello(pid=1)).tasks}
    assert tasks == {"generate": LIMITS.max_model_len, "embed": 0}, "and nothing scores, nor may"


def test_what_generates_waits_for_a_model_that_loads_longer_than_the_embedder_beside_it() -> None:
    both = run(limits(tasks=("embed",)), pool_grace_s=6.0)
    (early,) = both.add("early", [1, 2], max_tokens=5, now=5.9)
    both.join(limits(), now=11.0)
    assert done(both.scheduler.expire(100.0)) == []
    both.finish()
    assert both.ends[early].reason == "length"


@pytest.mark.parametrize("asked", [{}, {"constraints": m.Constraints(grammar="a grammar")}], ids=["plain", "grammar"])
def test_what_generates_does_not_wait_for_ever_beside_embedders(asked: dict[str, Any]) -> None:
    service = Service()
    service.say(wanted("a", asked))
    for second in range(160):
        if second == 100:
            service.join("one", tasks=("embed",))
        assert service.endings == {}
        service.wait(1.0)
        service.say(m.FrontendHello(pid=1))
    assert service.endings == {(b"web", "a", 0): "task_not_served"}


def test_what_was_accepted_in_an_earlier_life_waits_for_its_executors_beside_others() -> None:
    """Its model is known to come: it may load for longer than the embedder."""
    service = Service(JournalState.OK)
    service.join("one")
    service.submit("a", is_resumable=True)
    again, _ = restart([service.write()])
    again.join("two", tasks=("embed",))
    again.wait(100.0)
    assert again.core.requests.table.find("a") is not None
    again.join("three")
    again.say(m.Attach(request_id="a"))
    again.turn()
    again.write()
    again.flush()
    assert again.endings == {(b"web", "a", 0): "length"}


def test_a_full_queue_of_a_task_refuses_no_other_task() -> None:
    pooled = run(limits(), limits(tasks=("embed",)), max_waiting=3)
    pooled.lose(2)
    for i in range(3):
        pooled.add(f"e{i}", [1, 2], max_tokens=1, **HIDDEN)
    with pytest.raises(RequestRejected, match="3 sequences are waiting, the limit is 3"):
        pooled.add("e3", [1, 2], max_tokens=1, **HIDDEN)
    pooled.add("g0", [1, 2], max_tokens=3, n=3)
    with pytest.raises(RequestRejected, match="3 sequences are waiting"):
        pooled.add("g1", [1, 2], max_tokens=3)
    pooled.plan()
    pooled.add("g1", [1, 2], max_tokens=3)
    pooled.join(limits(tasks=("embed",)))
    pooled.finish()


def test_pooled_sequences_go_to_the_newest_model_and_to_others_only_without_it() -> None:
    """Two models' results cannot be compared, and an answer with both would fail."""
    embed = limits(tasks=("embed",))
    pooled = run(embed)
    new = pooled.join(embed, "b", model="new")
    old = pooled.join(embed, "c")  # one more of the old model is not newer
    inputs = [pooled.add(str(i), prompt(9, i), max_tokens=1, **HIDDEN)[0] for i in range(20)]
    pooled.finish()
    assert {sequence.model for sequence in inputs} == {"new"}
    assert pooled.plans[1] == pooled.plans[old] == []
    waits = pooled.add("waits", prompt(9), max_tokens=1, **HIDDEN)[0]
    pooled.take_no_new(new)
    pooled.finish()
    assert waits.model == "model"
    assert pooled.ends[waits].reason == "stop"


def test_a_sequence_whose_vocabulary_is_gone_is_told_so() -> None:
    """Embedders of one tokenizer may have vocabularies of several sizes."""
    pooled = run(limits(tasks=("embed",), vocab_size=900), limits(tasks=("embed",)), pool_grace_s=6.0)
    (sequence,) = pooled.add("a", [1, 950], max_tokens=1, **HIDDEN)
    pooled.lose(2)
    (end,) = done(pooled.scheduler.expire(6.0))
    assert (end.sequence, end.code) == (sequence, "capacity_lost")
    assert end.error.startswith("the request needs token id 950; the executors' vocabularies end before it, and none")


def test_lengths_and_graces_are_those_of_the_task() -> None:
    small = limits(num_blocks=4, max_model_len=16, tasks=("embed",))
    pooled = run(limits(), small, limits(num_blocks=8, max_model_len=32, tasks=("embed",)), pool_grace_s=6.0)
    assert [pooled.scheduler.largest(0.0, task) for task in EVERY] == [256, 32, 0]
    (long,) = pooled.add("long", prompt(30), max_tokens=1, **HIDDEN)
    with pytest.raises(RequestRejected, match="the limit is 32"):
        pooled.add("longer", prompt(33), max_tokens=1, **HIDDEN)
    pooled.lose(3)
    assert pooled.scheduler.largest(5.0, "embed") == 32, "it may come back"
    assert done(pooled.scheduler.expire(5.0)) == []
    (end,) = done(pooled.scheduler.expire(6.0))
    assert (end.sequence, end.code) == (long, "capacity_lost")
    assert pooled.scheduler.largest(6.0, "embed") == 16
    pooled.lose(2)
    (waits,) = pooled.add("waits", prompt(9), max_tokens=1, **HIDDEN)
    assert done(pooled.scheduler.expire(100.0)) == [], "it waits for an executor of its task, as all do without one"
    pooled.join(small, now=101.0)
    pooled.end([end])
    pooled.finish()
    assert pooled.ends[waits].reason == "stop"


@pytest.mark.parametrize(
    ("changes", "others", "fits"),
    [
        ({"tasks": ("embed",)}, EVERY, True),
        ({"tasks": ("embed", "score")}, EVERY, True),
        ({"tasks": EVERY}, ("embed", "score"), True),
        ({"tasks": EVERY}, EVERY, False),
        ({"tasks": ("embed",), "tokenizer": "b"}, EVERY, False),
        ({"tasks": ("embed",), "tokenizer": ""}, EVERY, False),
        ({"tasks": ("generate", "score"), "tokenizer": "b"}, ("embed",), True),
    ],
)
def test_executors_of_a_task_have_one_tokenizer_and_those_that_generate_as_many_rows(
    changes: dict[str, Any], others: tuple[m.Task, ...], fits: bool
) -> None:
    member = hello("a", tokenizer="a" * 8, tasks=others)
    reject = mismatch(hello("b", **({"vocab_size": 999, "tokenizer": "a" * 8} | changes)), [member], {})
    assert (reject is None) == fits
    assert reject is None or reject.may_pass, "the others may leave"
    if others == EVERY:
        served = {"generate": Vocabulary(1000, "a" * 8), "embed": Vocabulary(1000, "a" * 8)}
        instead = mismatch(hello("b", **({"vocab_size": 999, "tokenizer": "a" * 8} | changes)), [member], served)
        assert (instead is None) == fits
        assert instead is None or not instead.may_pass
        reason = "" if instead is None else instead.reason
        assert fits or "that of the model that is served" in reason or "is not that of" in reason


def test_a_task_that_is_said_twice_is_rejected() -> None:
    assert mismatch(hello(tasks=("embed", "embed")), [], {}) == m.Reject(
        reason="tasks are embed, embed, and each counts once"
    )


def test_a_task_with_a_model_of_its_own_has_its_vocabulary() -> None:
    served, own = Vocabulary(1000, "a" * 8), Vocabulary(500, "b" * 8)
    service = Service(JournalState.OK, vocabulary=served, pooling_vocabularies={"embed": own})
    service.join("one", tokenizer=served.tokenizer, tasks=("generate", "score"))
    service.join("two", tokenizer=own.tokenizer, vocab_size=500, tasks=("embed",))
    assert len(service.core.fleet) == 2
    service.join("three", tokenizer=own.tokenizer, vocab_size=500, tasks=("embed", "score"))
    (_, rejection) = service.to_executors[-1]
    assert rejection == m.Reject(reason="vocab_size is 500, that of the model that is served for 'score' is 1000")
    service.say(wanted("a", is_resumable=True))
    service.say(wanted("b", LOGITS, is_resumable=True))
    rows = [service.write()]
    again, _ = restart(rows, vocabulary=served, pooling_vocabularies={"embed": Vocabulary(500, "c" * 8)})
    (line,) = again.events("requests ended: their tokenizer is gone")
    assert line.facts == {"requests": "a"}, "the other's is there"


# --- what frontends are told ---


def wanted(name: str, asked: dict[str, Any] = HIDDEN, **fields: Any) -> m.Submit:
    return submit(name, max_tokens=1, **asked, **fields)


def result(asked: dict[str, Any] = HIDDEN) -> tuple[bytes, str]:
    """With the model that computes it."""
    pooled = expected_pooled([*PROMPT], m.SamplingParams(max_tokens=1, **asked), LIMITS.hidden_size)
    return pooled, "f00d/float32"


def test_the_fleet_state_has_each_task_that_was_seen() -> None:
    service = Service()
    assert service.say(m.FrontendHello(pid=1)).tasks == ()
    service.join("one", tasks=("generate", "score"))
    service.join("two", tasks=("embed", "score"), fingerprint="beef", max_model_len=100)
    service.wait(0.1)
    state = service.say(m.FrontendHello(pid=1))
    assert (state.num_ready, state.fingerprint, state.max_model_len) == (1, "f00d", 200)
    assert [msgspec.structs.astuple(each) for each in state.tasks] == [
        ("generate", 1, 200),
        ("embed", 1, 100),
        ("score", 2, 200),
    ]
    service.lose("one")
    service.wait(0.1)
    state = service.say(m.FrontendHello(pid=1))
    assert (state.num_ready, state.fingerprint) == (0, "f00d")
    assert [(each.task, each.num_ready) for each in state.tasks] == [("generate", 0), ("embed", 1), ("score", 1)]
    service.wait(61.0)
    assert service.say(m.FrontendHello(pid=1)).tasks[2].max_model_len == 100, "lengths change without an event"


@pytest.mark.parametrize("stream", [True, False])
def test_one_delta_has_the_result_and_the_end(stream: bool) -> None:
    service = Service()
    service.join("one", tasks=EVERY)
    for name, asked in (("a", HIDDEN), ("b", LOGITS)):
        service.say(wanted(name, asked, stream=stream))
    service.turn()
    assert service.pooled == {(b"web", "a", 0): result(), (b"web", "b", 0): result(LOGITS)}
    assert set(service.endings.values()) == {"stop"}
    assert service.metric('baton_sequences_ended_total{outcome="stop"}') == 2
    assert service.metric("baton_time_to_first_token_seconds_count") == 0


def test_a_client_that_comes_back_finds_its_result() -> None:
    service = Service()
    service.join("one", tasks=EVERY)
    service.say(wanted("a", is_resumable=True))
    service.do(service.core.frontend_gone(b"web", service.now))
    service.turn()
    service.say(m.Attach(request_id="a"), b"other")
    assert service.pooled == {(b"other", "a", 0): result()}


def test_large_results_come_in_several_messages() -> None:
    """Of 4 MiB at most: 64 results of 128 KiB each."""
    service = Service()
    hidden_size = 2**15
    service.do(service.core.from_executor(b"big", hello("big", hidden_size=hidden_size, tasks=EVERY), 0.0))
    for i in range(64):
        service.say(wanted(str(i)))
    messages = []
    while actions := done(service.core.plans(service.now)):
        for plan in (action.message for action in actions):
            zeros = bytes(hidden_size * len(plan.pooled_rows))
            answer = m.StepResult(epoch=plan.epoch, step=plan.step, token_ids=b"", compute_us=1, pooled=zeros)
            service.do(service.core.from_executor(b"big", answer, service.now))
    while (message := service.core.next_output(b"web")) is not None:
        assert sum(len(delta.pooled) for delta in message.deltas) <= 4 * 2**20
        service.core.output_sent(b"web")
        messages.append(message)
    assert [len(message.deltas) for message in messages] == [32, 32]


@pytest.mark.parametrize("has_ended", [False, True])
def test_after_a_restart_a_result_is_computed_again_for_a_client_that_may_come_back(has_ended: bool) -> None:
    service = Service(JournalState.OK)
    service.join("one", tasks=EVERY)
    service.say(wanted("a", is_resumable=True))
    service.say(wanted("b"))
    rows = [service.write()]
    if has_ended:
        service.turn()
        rows.append(service.write())
        service.flush()
        assert len(service.pooled) == 2

    service, batch = restart(rows)
    assert service.core.requests.table.find("a") is not None
    assert service.core.requests.table.find("b") is None
    service.say(m.Attach(request_id="a"), b"p")
    assert service.pooled == {}
    service.join("one", tasks=EVERY)
    service.turn()
    rows = [batch.payload, service.write()]
    service.flush()
    assert service.pooled == {(b"p", "a", 0): result()}

    service, _ = restart(rows)
    service.join("one", tasks=EVERY)
    service.say(m.Attach(request_id="a"), b"q")
    service.turn()
    service.write()
    service.flush()
    assert service.pooled == {(b"q", "a", 0): result()}
