"""Conversations with the whole core: executors come and go, frontends ask, clients break off and come back."""

from array import array

import pytest

from common import messages as m
from common.heartbeats import LOSS_TIMEOUT_S
from scheduler_svc.core.requests.frontends import END_AFTER_S, SILENT_AFTER_S
from scheduler_svc.core.requests.group_commit import BatchFailed, BatchSaved, JournalState
from scheduler_svc.core.requests.request_manager import RECONNECT_GRACE_S
from tests.support.chores import done
from tests.support.service import Service, restart, undisturbed
from tests.support.submits import PROMPT


def test_a_request_is_served_and_the_status_shows_it():
    service = Service(model="demo")
    service.join("one")
    service.submit("a")
    service.turn()
    assert service.tokens == {(b"web", "a", 0): undisturbed()}
    assert service.endings == {(b"web", "a", 0): "length"}
    service.now = 3.0
    report = service.say(m.StatusQuery(query_id=8)).report
    assert (report.model, report.journal, report.uptime_s) == ("demo", "off", 3.0)
    assert (report.requests_finished, report.output_tokens, report.prompt_tokens) == (1, 6, 3)
    (executor,) = report.executors
    assert (executor.executor, executor.state, executor.build, executor.steps) == ("one", "ready", "test", 6)


def test_the_room_of_an_executor_is_said_when_it_joins():
    service = Service()
    service.join("one", num_blocks=23 * 256 + 1, block_size=16, max_model_len=4096)
    assert service.events("executor joined")[0].facts["room"] == "23 sequences of 4,096 tokens"


def test_frontends_hear_of_an_executor_that_came_and_went_in_one_turn():
    service = Service(model="demo")
    service.say(m.FrontendHello(pid=1))
    service.join("one")
    service.do(service.core.executor_gone(b"one", service.now))
    service.wait(0.1)
    (state,) = [told for told in service.said[b"web"] if isinstance(told, m.FleetState) and told.tasks]
    assert (state.num_ready, state.max_model_len) == (0, service.core.scheduler.largest(service.now))
    assert state.max_model_len > 0


@pytest.mark.parametrize("finish", [False, True])
def test_an_operator_drains_an_executor(finish):
    """Its sequence goes on elsewhere at once, or (finish) ends there before it is let go."""
    service = Service()
    service.join("one")
    service.submit("a", max_tokens=20)
    service.turn(num_answers=3)
    service.join("two")
    reply = service.say(m.DrainExecutor(query_id=4, executor="one", finish=finish), peer=b"ops")
    assert (type(reply), reply.query_id) == (m.DrainReply, 4)
    assert reply.epoch == 1
    assert service.core.fleet.member(1).standing.value == ("finishing" if finish else "draining")
    service.turn()
    service.wait(0.1)
    told = [message for peer, message in service.to_executors if peer == b"one"]
    assert [type(message) for message in told if message.epoch == 1][-2:] == [m.Leave, m.EpochOver]
    assert service.core.fleet.member(1) is None
    assert service.tokens[b"web", "a", 0] == undisturbed(20)
    assert service.metric('baton_sequences_resumed_total{cause="drained"}') == (0 if finish else 1)
    assert (service.executors["two"].computed_tokens == 0) == finish
    refusal = service.say(m.DrainExecutor(query_id=5, executor="one"), peer=b"ops")
    assert (refusal.epoch, refusal.refusal) == (0, "no executor 'one' is in the fleet")


def test_the_time_from_a_loss_to_the_next_token_is_measured():
    service = Service()
    service.join("one")
    service.submit("a", max_tokens=20)
    service.turn(num_answers=3)
    service.lose("one")
    service.now += 7.0
    service.join("two")
    service.turn()
    assert service.tokens[b"web", "a", 0] == undisturbed(20)
    assert service.metric('baton_resume_seconds_sum{cause="disconnected"}') == 7.0
    assert service.metric('baton_resume_seconds_count{cause="disconnected"}') == 1


def test_a_hung_executor_is_lost_although_its_heart_beats():
    service = Service(step_floor_s=5.0, step_s=0.01)
    service.join("one")
    service.submit("a", max_tokens=20)
    service.turn(num_answers=3)
    for _ in range(4):
        service.wait(LOSS_TIMEOUT_S - 0.1)
    assert [entry.facts["cause"] for entry in service.events("executor lost")] == ["hung"]
    service.join("two")
    service.turn()
    assert service.tokens[b"web", "a", 0] == undisturbed(20)


def test_an_answer_that_does_not_fit_its_plan_ends_the_epoch_and_blames_nobody():
    service = Service()
    service.join("one")
    service.submit("a")
    service.do(done(service.core.plans(0.0)))
    wrong = m.StepResult(epoch=1, step=0, token_ids=array("i", [1, 2]).tobytes(), compute_us=1)
    service.do(service.core.from_executor(b"one", wrong, 0.0))
    assert service.events("executor lost")[0].facts["cause"] == "untrusted"
    assert service.core.scheduler.stats.strikes == 0


def test_a_client_may_have_only_so_many_requests_open():
    service = Service()
    for request_id in ("a", "b", "c"):
        service.submit(request_id, client="alice", client_limit=2)
    service.submit("d", client="bob", client_limit=2)
    service.flush()
    assert service.endings == {(b"web", "c", 0): "too_many_requests"}
    service.join("one")
    service.turn()
    service.submit("e", client="alice", client_limit=2)
    service.turn()
    assert service.endings[b"web", "e", 0] == "length"


def test_sequences_count_for_the_limit_of_a_client():
    service = Service()
    service.submit("a", n=2, client="alice", client_limit=3)
    service.submit("b", n=2, client="alice", client_limit=3)
    service.submit("c", n=4, client="alice", client_limit=3)
    service.submit("d", client="alice", client_limit=3)
    service.flush()
    assert service.endings == {(b"web", "b", 0): "too_many_requests", (b"web", "c", 0): "invalid_value"}


def test_a_request_id_is_in_use_until_its_request_is_forgotten():
    service = Service()
    service.join("one")
    service.submit("a")
    service.turn()
    service.endings.clear()
    service.submit("a")
    service.flush()
    assert service.endings.pop((b"web", "a", 0)) == "request_exists"
    service.wait(301.0)
    service.submit("a")
    service.turn()
    assert service.endings[b"web", "a", 0] == "length"


def test_a_client_comes_back_to_an_open_and_to_an_ended_request_and_to_none():
    service = Service()
    service.join("one")
    service.submit("a", max_tokens=20, context=b"ctx")
    service.turn(num_answers=5)
    assert service.say(m.Attach(request_id="a"), peer=b"web2") == m.Attached(
        request_id="a", found=True, prompt=array("i", PROMPT).tobytes(), n=1, context=b"ctx"
    )
    service.turn()
    assert service.tokens[b"web2", "a", 0] == undisturbed(20)
    assert service.endings[b"web", "a", 0] == "taken_over"
    assert service.say(m.Attach(request_id="a"), peer=b"web").found
    service.turn()
    assert service.tokens[b"web", "a", 0] == undisturbed(20)
    assert service.endings[b"web", "a", 0] == "length"
    assert service.say(m.Attach(request_id="b")) == m.Attached(request_id="b", found=False)


def test_what_is_detached_goes_on_and_is_cancelled_after_the_grace():
    service = Service()
    service.submit("kept")
    service.submit("left")
    for request_id in ("kept", "left"):
        service.say(m.Detach(request_id=request_id))
    service.wait(RECONNECT_GRACE_S - 1.0)
    assert service.say(m.Attach(request_id="kept")).found
    service.wait(1.0)
    assert [entry.facts["request"] for entry in service.events("request cancelled: its client did not come back")] == [
        "left"
    ]
    service.join("one")
    service.turn()
    assert service.endings == {(b"web", "kept", 0): "length"}


def test_without_a_grace_what_is_detached_is_cancelled_at_once():
    service = Service(reconnect_grace_s=0.0)
    service.submit("a")
    service.say(m.Detach(request_id="a"))
    assert service.say(m.StatusQuery(query_id=1)).report.waiting == 0


def test_silence_alone_ends_nothing():
    service = Service()
    service.submit("a")
    service.wait(SILENT_AFTER_S + 1.0)
    assert len(service.events("frontend silent")) == 1
    service.wait(END_AFTER_S - SILENT_AFTER_S - 2.0)
    assert service.ended_frontends == []
    service.say(m.FrontendHello(pid=1))
    service.wait(END_AFTER_S - 1.0)
    service.join("one")
    service.turn()
    assert service.endings == {(b"web", "a", 0): "length"}


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_frontend_that_hangs_is_ended_and_its_requests_wait_for_their_clients(comes_back):
    service = Service()
    service.say(m.FrontendHello(pid=77))
    service.submit("a")
    service.wait(END_AFTER_S + 1.0)
    assert service.ended_frontends == [(b"web", 77)]
    assert service.events("frontend gone")[-1].facts["reason"] == "it hangs and is ended"
    service.wait(RECONNECT_GRACE_S - 2.0)
    if comes_back:
        assert service.say(m.Attach(request_id="a"), peer=b"its successor").found
    service.wait(3.0)
    late = "request cancelled: its client did not come back"
    assert len(service.events(late)) == (not comes_back)
    service.join("one")
    service.turn()
    assert service.endings == ({(b"its successor", "a", 0): "length"} if comes_back else {})


def test_a_journal_that_fails_holds_nobody_up_and_is_reported_once():
    service = Service(JournalState.OK)
    core = service.core
    service.join("one")
    service.submit("a")
    batch = core.next_batch(0.0)
    service.turn()
    assert service.tokens == {}, "nothing is told before it is on disk"
    service.do(core.batch_written(BatchFailed(batch.number, "disk full"), 0.0))
    service.flush()
    assert service.tokens[b"web", "a", 0] == undisturbed()
    assert service.say(m.StatusQuery(query_id=1)).report.journal == "failed"
    service.wait(6.0)
    again = core.next_batch(service.now)
    service.do(core.batch_written(BatchFailed(again.number, "disk full"), service.now))
    service.wait(6.0)
    service.write()
    assert [entry.event for entry in service.logs if "journal" in entry.event] == [
        "journal failed",
        "journal works again",
    ]


def kinds_told(service):
    """Kinds of the events that the status has."""
    return [event.kind for event in service.say(m.StatusQuery(query_id=9)).report.events]


def test_answers_that_had_ended_are_kept_and_nothing_is_restored():
    before = Service(JournalState.OK)
    before.join("one")
    before.submit("a", max_tokens=2)
    before.turn()
    rows = [before.write()]
    before.flush()
    after, _ = restart(rows)
    assert after.events("requests restored from the journal")[0].facts == {"open": 0, "ended": 1}
    assert after.say(m.Attach(request_id="a")).found
    assert kinds_told(after) == []


def test_restored_requests_finish_with_the_same_tokens():
    before, rows = Service(JournalState.OK, wall_offset_s=1000.0), []
    before.join("one")
    before.submit("a", max_tokens=20, n=2, timeout_s=60.0, is_resumable=True)
    before.submit("b", max_tokens=2)
    for _ in range(4):
        before.turn(num_answers=1)
        rows.append(before.write())
    before.flush()
    before.say(m.Cancel(request_id="a", index=1))
    rows.append(before.write())

    after, _ = restart(rows, wall_offset_s=1030.0)
    assert after.events("requests restored from the journal")[0].facts == {"open": 1, "ended": 1}
    assert kinds_told(after) == ["restored"]
    for request_id in ("a", "b"):
        assert after.say(m.Attach(request_id=request_id)).found
    after.join("two")
    after.turn()
    after.write()
    after.flush()
    told = before.tokens[b"web", "a", 1]
    assert after.tokens[b"web", "a", 1] == undisturbed(20)[: len(after.tokens[b"web", "a", 1])]
    assert len(after.tokens[b"web", "a", 1]) >= len(told) > 0
    assert after.tokens[b"web", "a", 0] == undisturbed(20)
    assert after.tokens[b"web", "b", 0] == undisturbed(2)
    assert sorted(after.endings.values()) == ["cancelled", "length", "length"]


def test_a_request_id_that_was_used_again_survives_two_restarts():
    """The journal may still hold the older request of that id, which was let go."""
    service, rows = Service(JournalState.OK), []
    service.join("one")
    service.submit("a", max_tokens=2)
    service.turn()
    rows.append(service.write())
    service.wait(301.0)
    service.submit("a", max_tokens=20, is_resumable=True)
    rows.append(service.write())
    again, batch = restart(rows, return_within_s=1e6)
    again.wait(301.0)
    again.submit("b", max_tokens=2)
    row = again.core.next_batch(again.now + 1.0)
    kept = [batch.payload] * (row.keep_from <= batch.number)
    last, _ = restart([*kept, row.payload])
    assert last.say(m.Attach(request_id="a")).found
    last.join("one")
    last.turn()
    last.write()
    last.flush()
    assert last.tokens[b"web", "a", 0] == undisturbed(20)


def test_a_restored_request_that_never_ran_is_not_computed_again_but_for_the_first_time():
    service = Service(JournalState.OK)
    service.submit("a", is_resumable=True)
    again, _ = restart([service.write()])
    again.join("one")
    again.turn()
    report = again.say(m.StatusQuery(query_id=1)).report
    assert (report.output_tokens, report.recomputed_tokens) == (6, 0)


def test_who_detaches_before_the_journal_has_written_gets_no_tokens():
    service = Service(JournalState.OK)
    service.join("one")
    service.submit("a")
    batch = service.core.next_batch(service.now)
    assert service.say(m.Attach(request_id="a"), peer=b"web2") is None, "it waits for the journal"
    service.say(m.Detach(request_id="a"), peer=b"web2")
    service.do(service.core.batch_written(BatchSaved(batch.number), service.now))
    service.write()
    service.turn()
    service.write()
    service.flush()
    assert not service.tokens.get((b"web2", "a", 0))


def test_of_two_who_attach_while_the_journal_writes_the_last_one_reads():
    service = Service(JournalState.OK)
    service.join("one")
    service.submit("a")
    batch = service.core.next_batch(service.now)
    for peer in (b"web2", b"web3"):
        service.say(m.Attach(request_id="a"), peer=peer)
    service.turn()
    service.do(service.core.batch_written(BatchSaved(batch.number), service.now))
    service.write()
    service.flush()
    assert service.tokens[b"web3", "a", 0] == undisturbed()
    assert service.endings[b"web2", "a", 0] == "taken_over", "or its client would wait for ever"
