"""The core behind real sockets: executors come and go, garbage arrives, frontends vanish."""

import os
import random
import shutil
import time
from array import array

import msgspec
import pytest

from common import messages as m
from common.wire import HEADER
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.requests.group_commit import MAX_PIECE_REQUESTS
from scheduler_svc.core.requests.recovery import Legacy
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.server.core_process import CoreProcess
from scheduler_svc.server.journal import Journal
from tests.support.core import FakeExecutor, Peer, running_core
from tests.support.eventually import eventually
from tests.support.hello import LIMITS, hello
from tests.support.journals import read
from tests.support.oracle import expected_output


@pytest.fixture
def core(tmp_path):
    with running_core(tmp_path) as running:
        yield running


def expected(prompt, **params):
    return expected_output(prompt, m.SamplingParams(**params), LIMITS.vocab_size)


def test_streams_and_answers(core):
    FakeExecutor(core.back)
    front = core.frontend()
    front.submit("a", [1, 2, 3], max_tokens=30)
    front.submit("b", [1, 2, 3, 4, 5], max_tokens=20, n=2, stream=False)
    front.gather(("a", 0), ("b", 0), ("b", 1))
    assert front.tokens["a", 0] == expected([1, 2, 3], max_tokens=30)
    assert front.tokens["b", 0] == front.tokens["b", 1] == expected([1, 2, 3, 4, 5], max_tokens=20)
    assert front.ends["a", 0].finish_reason == "length"
    assert front.num_deltas <= 30 + 2, "an answer that does not stream is one delta"


def test_requests_wait_for_the_first_executor_and_are_refused_if_they_cannot_fit(core):
    front = core.frontend()
    front.submit("fits", [1, 2], max_tokens=5)
    front.submit("too long", [1, 2], max_tokens=500)
    front.submit("no such token", [5, 1000], max_tokens=5)
    FakeExecutor(core.back)
    front.gather(("fits", 0), ("too long", 0), ("no such token", 0))
    assert front.ends["fits", 0].finish_reason == "length"
    assert front.ends["too long", 0].code == "context_length_exceeded"
    assert "needs 501 positions, the limit is 200" in front.ends["too long", 0].error
    assert "token id 1000, the vocabulary ends at 999" in front.ends["no such token", 0].error


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"prompt": b""}, "invalid_value"),
        ({"prompt": b"abc"}, "invalid_value"),
        ({"prompt": array("i", [-1]).tobytes()}, "invalid_value"),
        ({"n": 6}, "queue_full"),
    ],
)
def test_refusals(tmp_path, change, code):
    with running_core(tmp_path, SchedulerConfig(max_waiting=5)) as core:
        front = core.frontend()
        submit = m.Submit(request_id="x", prompt=array("i", [1]).tobytes(), params=m.SamplingParams(max_tokens=1))
        front.send(msgspec.structs.replace(submit, **change))
        front.gather(("x", 0))
        assert (front.ends["x", 0].finish_reason, front.ends["x", 0].code) == ("error", code)


def test_an_executor_that_vanishes_costs_a_pause_and_nothing_else(core):
    first = FakeExecutor(core.back, "first", step_s=0.005)
    front = core.frontend()
    for i in range(8):
        front.submit(f"r{i}", [i, 2, 3, 4, 5], max_tokens=100)
    front.take(front.receive(m.Outputs))
    first.kill()
    FakeExecutor(core.back, "second")
    front.gather(*((f"r{i}", 0) for i in range(8)))
    for i in range(8):
        assert front.tokens[f"r{i}", 0] == expected([i, 2, 3, 4, 5], max_tokens=100)
    status = front.status()
    assert [e.executor for e in status.executors] == ["second"]
    assert status.executors_lost == 1


def test_a_broken_connection_is_noticed_without_waiting_for_silence(core):
    front = core.frontend()
    executor = FakeExecutor(core.back)
    eventually(lambda: len(front.status().executors) == 1)
    executor.kill()
    eventually(lambda: not front.status().executors)
    front.send(m.MetricsQuery(query_id=1))
    assert b'baton_executor_epochs_ended_total{cause="disconnected"} 1.0' in front.receive(m.Metrics).text


def test_silence_is_noticed_after_a_second(core):
    front = core.frontend()
    silent = Peer(core.back, m.SchedulerToExecutor)
    silent.send(hello("silent"))
    epoch = silent.receive(m.Welcome).epoch
    start = time.monotonic()
    assert silent.receive(m.EpochOver, timeout_s=60).epoch == epoch
    assert time.monotonic() - start > 1.0
    assert not front.status().executors


def test_an_executor_that_leaves_hands_its_sequences_over(core):
    leaver = FakeExecutor(core.back, "leaver", step_s=0.005)
    front = core.frontend()
    front.submit("a", [1, 2, 3], max_tokens=100)
    front.take(front.receive(m.Outputs))
    leaver.leaving.set()
    leaver.join(timeout=5)
    assert not leaver.is_alive()
    FakeExecutor(core.back, "stayer")
    front.gather(("a", 0))
    assert front.tokens["a", 0] == expected([1, 2, 3], max_tokens=100)
    assert front.status().executors_lost == 0


def test_a_failed_step_and_a_wrong_answer_end_the_epoch(core):
    front = core.frontend()
    front.submit("a", [1, 2, 3], max_tokens=10)
    for answer in ("fail", "short", "wrong step", "bad id"):
        peer = Peer(core.back, m.SchedulerToExecutor)
        peer.send(hello(answer))
        epoch = peer.receive(m.Welcome).epoch
        step = peer.receive(m.Plan).step
        ids = array("i", [5]).tobytes()
        match answer:
            case "fail":
                peer.send(m.StepFailed(epoch=epoch, step=step, error="out of memory"))
                peer.send(m.ExecutorHeartbeat(epoch=epoch))
            case "short":
                peer.send(m.StepResult(epoch=epoch, step=step, token_ids=b"", compute_us=1))
            case "wrong step":
                peer.send(m.StepResult(epoch=epoch, step=step + 1, token_ids=ids, compute_us=1))
            case "bad id":
                peer.send(m.StepResult(epoch=epoch, step=step, token_ids=array("i", [1000]).tobytes(), compute_us=1))
        assert peer.receive(m.EpochOver).epoch == epoch
        peer.close()
    FakeExecutor(core.back)
    front.gather(("a", 0))
    assert front.tokens["a", 0] == expected([1, 2, 3], max_tokens=10)


def test_executors_that_differ_are_rejected_by_name_of_the_difference(core):
    FakeExecutor(core.back, "resident")
    front = core.frontend()
    eventually(lambda: front.status().executors)
    peer = Peer(core.back, m.SchedulerToExecutor)
    peer.send(hello("stranger", vocab_size=7))
    reason = peer.receive(m.Reject).reason
    assert reason.startswith("vocab_size is 7")
    assert "resident" in reason
    old = Peer(core.back, m.SchedulerToExecutor)
    old.send_payload(b"whatever", b"baton/0")
    assert f"protocol version 0, this side {m.PROTOCOL_VERSION}" in old.receive(m.Reject).reason
    front.send(m.MetricsQuery(query_id=1))
    assert b"baton_executors_rejected_total 2.0\n" in front.receive(m.Metrics).text
    assert [event.reason.partition(" ")[0] for event in front.status().events if event.kind == "rejected"] == [
        "vocab_size",
        "peer",
    ]


def test_cancel_frees_everything(core):
    FakeExecutor(core.back, step_s=0.002)
    front = core.frontend()
    front.submit("a", [1] * 50, max_tokens=100, n=2)
    front.take(front.receive(m.Outputs))
    front.send(m.Cancel(request_id="a", index=1))
    front.gather(("a", 1))
    front.send(m.Cancel(request_id="a"))
    front.gather(("a", 0))
    front.send(m.Cancel(request_id="a"))
    assert {end.finish_reason for end in front.ends.values()} == {"cancelled"}
    status = front.status()
    assert (status.running, status.waiting) == (0, 0)
    assert status.executors[0].free_blocks == LIMITS.num_blocks


def test_requests_of_a_frontend_that_vanishes_wait_for_their_clients_and_are_cancelled_then(tmp_path):
    with running_core(tmp_path, reconnect_grace_s=0.5) as core:
        FakeExecutor(core.back, step_s=0.01)
        doomed, front = core.frontend(), core.frontend()
        doomed.submit("a", [1] * 50, is_resumable=True, max_tokens=140)
        doomed.submit("b", [2] * 50, is_resumable=True, max_tokens=140)
        doomed.take(doomed.receive(m.Outputs))
        doomed.close()
        eventually(lambda: core.core_process.core.requests.table.find("a").peer is None)
        front.send(m.Attach(request_id="a"))
        assert front.receive(m.Attached).found
        front.gather(("a", 0))
        assert front.tokens["a", 0] == expected([1] * 50, max_tokens=140), "from the first token on"
        eventually(lambda: front.status().running == 0)
        front.send(m.Attach(request_id="b"))
        front.gather(("b", 0))
        assert front.ends["b", 0].finish_reason == "cancelled"


def test_garbage_at_both_sockets_does_no_harm(core):
    """Random bytes, foreign and oversized frames, other versions, and valid messages with impossible ids."""
    FakeExecutor(core.back, step_s=0.002)
    front = core.frontend()
    for i in range(8):
        front.submit(f"r{i}", [i, 2, 3], max_tokens=100)
    rng = random.Random(0)
    # Both stay open until the end: a socket that is closed takes what it has not sent yet with it.
    vandals = [Peer(core.back, m.SchedulerToExecutor), Peer(core.front, m.CoreToFrontend)]
    for vandal in vandals:
        for _ in range(200):
            vandal.socket.send_multipart([rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(1, 5))])
            vandal.send_payload(rng.randbytes(rng.randrange(60)))
            vandal.send_payload(rng.randbytes(30), b"baton/99")
        valid = vandal.codec.encode(hello())[1]
        for cut in range(len(valid)):
            vandal.send_payload(valid[:cut])
        for epoch in (1, 2**53):
            vandal.send(m.StepResult(epoch=epoch, step=0, token_ids=b"\0" * 400, compute_us=0))
            vandal.send(m.StepFailed(epoch=epoch, step=0, error="x"))
            vandal.send(m.Leaving(epoch=epoch))
        vandal.send(m.Cancel(request_id="nobody", index=99))
        vandal.send(m.Submit(request_id="v", prompt=b"xyz", params=m.SamplingParams(max_tokens=2**31 - 1)))
        vandal.send_payload(msgspec.msgpack.encode(["hello", *([2**63] * 12)]), HEADER)
        vandal.send_payload(os.urandom(1 << 20))
    front.gather(*((f"r{i}", 0) for i in range(8)))
    for i in range(8):
        assert front.tokens[f"r{i}", 0] == expected([i, 2, 3], max_tokens=100)
    eventually(lambda: front.status().messages_dropped > 1200)
    status = front.status()
    assert len(status.executors) == 1
    assert status.executors_lost == 0
    for vandal in vandals:
        vandal.close()


def test_a_frontend_that_hangs_is_cut_off_and_its_requests_go_on(tmp_path):
    with running_core(tmp_path, end_frontend_after_s=3.0) as core:
        hanging, front = core.frontend(), core.frontend()
        hanging.submit("a", [1] * 9, max_tokens=110)
        eventually(lambda: front.status() and len(core.core_process.core.requests.frontends) == 1)
        FakeExecutor(core.back)
        front.send(m.Attach(request_id="a"))
        assert front.receive(m.Attached).found
        eventually(lambda: front.status() and ("a", 0) in front.ends)  # it speaks, and does not hang
        assert front.tokens["a", 0] == expected([1] * 9, max_tokens=110)


def test_frontends_hear_that_an_executor_drains(core):
    leaver = FakeExecutor(core.back, obey=lambda plan: False)
    front = core.frontend()
    eventually(lambda: front.status().executors)
    front.submit("a", [1, 2, 3], max_tokens=5)  # its plan is never answered, so the drain lasts
    eventually(lambda: front.status().running == 1)
    leaver.leaving.set()
    while (state := front.receive(m.FleetState)).num_ready != 0:
        pass
    assert state.max_model_len == LIMITS.max_model_len


def test_a_request_id_in_use_is_refused_and_does_no_harm(core):
    FakeExecutor(core.back, step_s=0.002)
    front, other = core.frontend(), core.frontend()
    front.submit("a", [1, 2, 3], max_tokens=50)
    front.take(front.receive(m.Outputs))
    other.submit("a", [9], max_tokens=1)
    other.gather(("a", 0))
    assert other.ends["a", 0].code == "request_exists"
    front.gather(("a", 0))
    assert front.tokens["a", 0] == expected([1, 2, 3], max_tokens=50)


def test_a_life_that_is_killed_while_it_begins_its_journal_anew_loses_nothing(tmp_path):
    path = tmp_path / "journal.db"
    names = {f"r{i}" for i in range(3 * MAX_PIECE_REQUESTS + 7)}
    core = CoreProcess("tcp://127.0.0.1:0", f"ipc://{tmp_path}/core", CoreConfig(""), Journal(path))
    for name in names:
        prompt, params = array("i", [1, 2, 3]).tobytes(), m.SamplingParams(max_tokens=5)
        submit = m.Submit(request_id=name, prompt=prompt, params=params, is_resumable=True)
        core.core.from_frontend(b"F", submit, time.monotonic())
    core.close()
    core = CoreProcess("tcp://127.0.0.1:0", f"ipc://{tmp_path}/core", CoreConfig(""), Journal(path))
    num_rows = []
    while len(num_rows) < 40:
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{tmp_path}/copy.db{suffix}")
        found = read(tmp_path / "copy.db")
        num_rows.append(len(found.batches))
        assert {request.submit.request_id for request in Legacy.of(found).requests} == names
        core.turn()
    core.close()
    assert max(num_rows) > num_rows[-1] == 4, "four pieces, and nothing of the life before"
