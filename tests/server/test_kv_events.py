"""KV events over real sockets: routers that subscribe, come late, lag behind, ask again, or are none."""

import select
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise

import pytest
import zmq

from scheduler_svc.core.executor.cache_events import BLOCKS_AT_ONCE
from scheduler_svc.server import kv_event_replay, kv_events, open_port
from scheduler_svc.server.kv_event_log import EventLog
from scheduler_svc.server.kv_events import KvEventOptions, TellingLimits
from tests.support.core import FakeExecutor, running_core
from tests.support.eventually import eventually
from tests.support.hello import LIMITS
from tests.support.kv_listener import KvListener, replay
from tests.support.kv_readers import Subscriber
from tests.support.kv_turning import ANY, Turning
from tests.support.raw_zmtp import MORE, RawPeer, frame, greeting, ready

PREFIX = list(range(8))


@contextmanager
def serving(tmp_path, options=None):
    """A core that tells routers, with one executor and a frontend."""
    with ExitStack() as stack:
        core = stack.enter_context(
            running_core(tmp_path, kv_events=options or KvEventOptions(ANY, replay_endpoint=ANY))
        )
        core.executor = FakeExecutor(core.back)
        stack.callback(core.executor.kill)
        core.front_end = core.frontend()
        yield core


def ask(core, request_id, prompt, **params):
    core.front_end.submit(request_id, prompt, **({"max_tokens": 1} | params))
    core.front_end.gather((request_id, 0))


def cached(core):
    """Keys in the indexes of all executors."""
    return {
        key
        for executor in core.core_process.core.scheduler.executors
        for key in executor.blocks.keys
        if key is not None
    }


def knows_all(core, listener):
    """Whether a router knows what is there; asked again while the core goes on."""
    return lambda: listener.known.blocks.keys() == cached(core) != set()


def test_a_subscriber_knows_what_is_cached(tmp_path):
    with serving(tmp_path) as core, KvListener(core.core_process.kv_events.endpoint) as listener:
        ask(core, "a", [*PREFIX, 100, 101, 102, 103])
        listener.listen_until(knows_all(core, listener))
        assert listener.known.num_clears > 0
        before = dict(listener.known.blocks)
        ask(core, "b", [*PREFIX, 200, 201, 202, 203])
        listener.listen_until(knows_all(core, listener))
        assert len(listener.known.blocks) == len(before) + 1, "the prefix was stored once"
        assert listener.known.match([*PREFIX, 200, 201, 202, 203], 4) == 12
        assert listener.numbers == list(range(listener.numbers[0], listener.numbers[0] + len(listener.numbers)))
        for i in range(20):
            ask(core, str(i), list(range(100 * i, 100 * i + 40)))
        listener.listen_until(knows_all(core, listener))
        assert listener.known.match(PREFIX, 4) < 8, "it was handed out anew"
        core.executor.kill()
        listener.listen_until(lambda: not listener.known.blocks)


def test_a_restart_leaves_nothing_stale_behind(tmp_path):
    """The same address, another life, and a router that goes on listening without asking for what it missed."""
    with serving(tmp_path) as core:
        endpoint = core.core_process.kv_events.endpoint
        listener = KvListener(endpoint)
        ask(core, "a", PREFIX)
        listener.listen_until(knows_all(core, listener))
    with listener:
        listener.listen_until(lambda: not listener.known.blocks)  # it says so when it ends
        listener.known.blocks = {1: None}  # as if it had not
        with serving(tmp_path, KvEventOptions(endpoint)) as core:
            ask(core, "b", list(range(300, 320)))
            listener.listen_until(knows_all(core, listener))


def test_who_comes_late_asks_for_what_was_before_or_is_told(tmp_path):
    with serving(tmp_path, KvEventOptions(ANY, "kv@pod@model", ANY)) as core:
        ask(core, "a", PREFIX)
        ask(core, "b", [*PREFIX, 9, 9, 9, 9, 9])
        messages = eventually(lambda: replay(core.core_process.kv_events.replay_endpoint, 0))
        asked = Subscriber()
        for topic, _, batch in messages:
            assert topic == b"kv@pod@model"
            asked.take(batch)
        assert [number for _, number, _ in messages] == list(range(len(messages)))
        assert asked.blocks.keys() == cached(core)
        with KvListener(core.core_process.kv_events.endpoint, b"kv@") as listener:
            listener.listen_until(knows_all(core, listener))
        assert replay(core.core_process.kv_events.replay_endpoint, 10_000) == []


def test_other_topics_are_not_sent():
    with Turning(topic="kv@a@m") as turning, KvListener(turning.endpoint, b"kv@b") as other:
        with KvListener(turning.endpoint, b"kv@a") as listener:
            turning.store(1, 3)
            turning.listens(listener)
        assert other.receive(0.0) is None
        other.socket.subscribe(b"kv@")
        turning.now += kv_events.TELL_ANEW_EVERY_S
        turning.listens(other)
        other.socket.unsubscribe(b"kv@")
        number = other.numbers[-1]

        def is_deaf():
            turning.store(turning.events.num_blocks + 1, 1)
            while (message := other.receive(0.0)) is not None:
                assert message[1] > number
            return not turning.publisher.subscribers()

        turning.turn_until(is_deaf)


def test_subscribers_cannot_ask_for_everything_all_the_time():
    with Turning() as turning, ExitStack() as stack:
        turning.store(1, 3)
        turning.listens(stack.enter_context(KvListener(turning.endpoint)))
        told_before = turning.publisher.log.next
        late = [stack.enter_context(KvListener(turning.endpoint)) for _ in range(5)]
        turning.turn_until(lambda: len(turning.publisher.subscribers()) == 6)
        turning.store(9, 1)
        turning.turn_until(lambda: turning.publisher.log.next == told_before + 1)
        assert not any(listener.receive(0.0) for listener in late), "what they hear begins with all that is here"
        turning.now += kv_events.TELL_ANEW_EVERY_S
        for listener in late:
            turning.listens(listener)
        assert turning.publisher.log.next == told_before + 2
        assert all(listener.known.num_clears == 1 for listener in late)


def test_all_is_told_in_parts_beside_what_happens():
    with Turning() as turning:
        turning.store(1, 5 * BLOCKS_AT_ONCE)
        turning.turn_until(lambda: not turning.events.has_more)
        with KvListener(turning.endpoint) as listener:
            turning.turn_until(lambda: bool(turning.publisher.subscribers()))
            assert turning.publisher.has_more
            turning.events.remove(5 * BLOCKS_AT_ONCE)
            turning.store(10_000, 1)
            turning.listens(listener)
            assert len(listener.numbers) >= 5
            assert 10_000 in listener.known.blocks
            assert 5 * BLOCKS_AT_ONCE not in listener.known.blocks


def test_a_slow_subscriber_keeps_nothing_waiting_and_is_told_anew():
    """It does not read until more has come than is kept for it."""
    few = TellingLimits(unsent_bytes=2**20)
    with Turning(limits=few) as turning, KvListener(turning.endpoint, hwm=1) as slow, ExitStack() as stack:
        turning.turn_until(lambda: len(turning.publisher.subscribers()) == 1)
        (slow_peer,) = turning.publisher.subscribers()
        quick = stack.enter_context(KvListener(turning.endpoint))
        turning.turn_until(lambda: len(turning.publisher.subscribers()) == 2)
        turning.now += kv_events.TELL_ANEW_EVERY_S
        turning.turn_until(lambda: not turning.publisher.behind)
        first = 1
        while slow_peer.number not in turning.publisher.behind:
            turning.store(first, 200, block_size=256)
            first += 200
            turning.publisher.turn()
            turning.listens(quick)
        assert turning.publisher.behind == {slow_peer.number}, "the quick one has heard everything meanwhile"
        assert sum(peer.num_unsent_bytes for peer in turning.publisher.port.members()) < 2**22
        turning.now += kv_events.TELL_ANEW_EVERY_S
        turning.listens(slow)
        gaps = [after - before for before, after in pairwise(slow.numbers) if after != before + 1]
        assert len(gaps) == 1, "what was left out shows in the numbers"
        assert slow.known.num_clears >= 2
        assert slow.known.blocks == quick.known.blocks


def test_a_log_is_bounded():
    log = EventLog(max_batches=3, max_bytes=100)
    assert (log.first, log.next) == (0, 0)
    for i in range(5):
        assert log.append(bytes([i])) == i
    assert (log.first, log.next, log[2], log[4]) == (2, 5, b"\x02", b"\x04")
    log.append(bytes(99))
    assert (log.first, log.next) == (4, 6)
    log.append(bytes(500))
    assert (log.first, log.next, len(log[6])) == (6, 7, 500)


def test_a_router_that_asks_for_what_is_forgotten_gets_the_rest_and_is_told_anew():
    with Turning(batches=EventLog(max_batches=2)) as turning, zmq.Context.instance().socket(zmq.DEALER) as dealer:
        for key in range(1, 6):
            turning.store(key, 1)
            turning.publisher.turn()
        dealer.connect(turning.replay_endpoint)
        dealer.send_multipart([b"", bytes(8)])
        turning.turn_until(lambda: bool(dealer.poll(0)))
        answers = [dealer.recv_multipart() for _ in range(3)]
        assert [int.from_bytes(answer[2], "big", signed=True) for answer in answers] == [3, 4, -1]
        assert turning.publisher.log.next > 5
        told = Subscriber(is_strict=False)
        told.take(turning.publisher.log[turning.publisher.log.next - 1])
        assert len(told.blocks) == 5


def test_a_long_replay_takes_many_turns():
    with Turning() as turning, zmq.Context.instance().socket(zmq.DEALER) as dealer:
        many = 3 * kv_event_replay.BATCHES_AT_ONCE
        for key in range(1, many + 1):
            turning.store(key, 1)
            turning.publisher.turn()
        dealer.connect(turning.replay_endpoint)
        dealer.send_multipart([b"", bytes(8)])
        turning.turn_until(lambda: turning.publisher.has_more)
        turns = 1
        while turning.publisher.has_more:
            turning.publisher.turn()
            turns += 1
        assert turns == 3
        assert [int.from_bytes(dealer.recv_multipart()[2], "big") for _ in range(many)] == list(range(many))


def test_a_turn_of_replays_is_bounded_in_bytes_and_routers_take_turns():
    """Batches that are as long as those of a large cache, for routers that read all that comes."""
    with Turning() as turning, ExitStack() as stack:
        for first in range(0, 12 * 512, 512):
            turning.store(2**16 + first, 512, block_size=256)
            turning.publisher.turn()
        replay, log, sent = turning.publisher.replay, turning.publisher.log, []
        longest = max(len(log[number]) for number in range(log.first, log.next))
        routers = [stack.enter_context(closing(RawPeer(turning.replay_endpoint, greeting() + ready()))) for _ in "abc"]
        replay.port.has_room = lambda peer: True
        replay.port.send = lambda peer, data: sent.append((peer.number, len(data)))
        for router in routers:
            router.send(frame(b"", MORE) + frame(bytes(8)))
        turning.turn_until(lambda: len(replay.port.members()) == 3)
        in_turns = []
        while replay.has_more:
            sent.clear()
            turning.publisher.turn()
            in_turns.append({number for number, _ in sent})
            assert sum(size for _, size in sent) <= kv_event_replay.BYTES_AT_ONCE + 2 * longest
        assert len(in_turns) > 3
        assert len(in_turns[0] | in_turns[1] | in_turns[2]) == 3, "none waits for the end of another's"


def test_little_waits_for_a_router_that_does_not_read_its_replay():
    with Turning() as turning, closing(RawPeer(turning.replay_endpoint, greeting() + ready())) as router:
        for first in range(0, 32 * 512, 512):
            turning.store(2**16 + first, 512, block_size=256)
            turning.publisher.turn()
        log = turning.publisher.log
        assert sum(len(log[number]) for number in range(log.first, log.next)) > 2**24
        router.send(frame(b"", MORE) + frame(bytes(8)))
        turning.turn_until(lambda: bool(turning.publisher.replay.asked))
        turning.turn_until(lambda: not turning.publisher.has_more)
        (member,) = turning.publisher.replay.port.members()
        assert 0 < member.num_unsent_bytes < 2**21


def test_a_req_socket_gets_the_one_answer_that_it_takes():
    """As vLLM's own example of a subscriber asks."""
    with Turning() as turning, zmq.Context.instance().socket(zmq.REQ) as req:
        turning.store(1, 2)
        turning.publisher.turn()
        req.connect(turning.replay_endpoint)
        req.send(bytes(8))
        turning.turn_until(lambda: bool(req.poll(0)))
        assert req.recv_multipart()[:2] == [b"", bytes(8)]


@pytest.mark.parametrize(
    "frames",
    [[b"x"], [b"", b""], [b"", bytes(7)], [b"", bytes(9)], [b"x", bytes(8)], [b"", bytes(8), b""], [b""] * 4],
    ids=str,
)
def test_malformed_requests_are_counted_and_harm_nobody(frames):
    with Turning() as turning, zmq.Context.instance().socket(zmq.DEALER) as socket:
        socket.set(zmq.LINGER, 0)
        turning.store(1, 2)
        turning.publisher.turn()
        socket.connect(turning.replay_endpoint)
        socket.send_multipart(frames)
        turning.turn_until(lambda: turning.drops.count == 1)
        assert not turning.publisher.has_more
        with zmq.Context.instance().socket(zmq.DEALER) as dealer:
            dealer.connect(turning.replay_endpoint)
            dealer.send_multipart([b"", bytes(8)])
            turning.turn_until(lambda: bool(dealer.poll(0)))
            assert dealer.recv_multipart()[:2] == [b"", b""]


@pytest.mark.parametrize(("port", "kind"), [("endpoint", zmq.DEALER), ("replay_endpoint", zmq.SUB)])
def test_sockets_of_another_kind_are_turned_away(port, kind):
    with Turning() as turning, zmq.Context.instance().socket(kind) as socket:
        socket.set(zmq.LINGER, 0)
        socket.connect(getattr(turning, port))
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        turning.turn_until(lambda: bool(monitor.poll(0)))
        socket.disable_monitor()
        assert not turning.publisher.subscribers()


def test_subscribers_and_subscriptions_are_few():
    with Turning(turn_s=0.02, topic="x") as turning, ExitStack() as stack:  # so many strangers take their time
        listeners = [stack.enter_context(KvListener(turning.endpoint)) for _ in range(open_port.MAX_MEMBERS)]
        turning.turn_until(lambda: len(turning.publisher.subscribers()) == open_port.MAX_MEMBERS)
        beyond = stack.enter_context(KvListener(turning.endpoint))
        monitor = beyond.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        turning.turn_until(lambda: bool(monitor.poll(0)))
        beyond.socket.disable_monitor()
        assert len(turning.publisher.subscribers()) == open_port.MAX_MEMBERS
        monitor = listeners[0].socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        for i in range(kv_events.MAX_SUBSCRIPTIONS):
            listeners[0].socket.subscribe(str(i).encode())
        turning.turn_until(lambda: bool(monitor.poll(0)))
        listeners[0].socket.disable_monitor()


def test_who_subscribes_without_end_is_cut_off():
    with Turning() as turning, KvListener(turning.endpoint) as listener:
        turning.listens(listener)
        monitor = listener.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        for i in range(3 * open_port.MESSAGES_AT_ONCE):
            listener.socket.subscribe(b"long topic %d" % i)
        turning.turn_until(lambda: bool(monitor.poll(0)))
        listener.socket.disable_monitor()


@pytest.mark.parametrize("beyond", [0, 1])
def test_so_many_messages_at_once_are_taken_and_no_more(beyond, capsys):
    said = frame(b"\x01") * kv_events.MAX_SUBSCRIPTIONS
    said += frame(b"\x00") * (open_port.MESSAGES_AT_ONCE + beyond - kv_events.MAX_SUBSCRIPTIONS)
    with Turning() as turning, closing(RawPeer(turning.endpoint, greeting() + ready(socket_type=b"SUB") + said)):
        logged, members = [], turning.publisher.port.members
        turning.turn_until(lambda: logged.append(capsys.readouterr().out) or bool(members() or any(logged)))
        assert "".join(logged).count(f"more than {open_port.MESSAGES_AT_ONCE} messages at once") == beyond
        assert len(members()) == 1 - beyond


@pytest.mark.parametrize("port", ["endpoint", "replay_endpoint"])
def test_who_breaks_off_before_the_handshake_is_answered_harms_nobody(port):
    """What it said has come, and the answer finds a closed connection (benchmarks/bench_flood.py)."""
    with Turning() as turning:
        said = frame(b"\x01") if port == "endpoint" else frame(b"", MORE) + frame(bytes(8))
        kind = b"SUB" if port == "endpoint" else b"DEALER"
        for _ in range(20):
            peer = RawPeer(getattr(turning, port), greeting())
            turning.turn_until(lambda peer=peer: readable(peer.socket))
            peer.send(ready(socket_type=kind) + said)
            peer.socket.close()  # with something unread, so the connection is reset
            turning.publisher.turn()
        with KvListener(turning.endpoint) as listener:
            turning.now += kv_events.TELL_ANEW_EVERY_S
            turning.store(1, 2)
            turning.listens(listener)


def readable(connection):
    return bool(select.select([connection], [], [], 0)[0])


def test_limits_of_the_fake_executor_evict():
    """Twenty prompts of ten blocks do not fit, or a test above shows nothing."""
    assert LIMITS.num_blocks < 20 * 10
