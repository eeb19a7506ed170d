"""Who keeps one of the few places of routers, and who gives it to the next one."""

import socket
from contextlib import ExitStack, closing

import pytest
import zmq

from scheduler_svc.server.kv_events import TELL_ANEW_EVERY_S, TellingLimits
from tests.support.kv_listener import KvListener
from tests.support.kv_turning import Turning
from tests.support.raw_zmtp import MORE, RawPeer, frame, greeting, ready

REQUEST = frame(b"", MORE) + frame(bytes(8))
NEXT = frame(b"", MORE) + frame((10**9).to_bytes(8, "big"))


@pytest.fixture
def turning():
    with Turning(turn_s=0.02, limits=TellingLimits(members=4), topic="kv@a@m") as turning:
        turning.store(1, 3)
        turning.turn()
        yield turning


def subscriber(turning, topic):
    return RawPeer(turning.endpoint, greeting() + ready(socket_type=b"SUB") + frame(b"\x01" + topic))


def come(stack, turning, port, peer):
    """The member that a peer becomes."""
    stack.enter_context(closing(peer))
    before = {member.number for member in port.members()}
    turning.turn_until(lambda: bool(port.members()) and port.members()[-1].number not in before)
    return port.members()[-1]


def test_a_subscriber_takes_the_place_of_one_that_wants_nothing_from_here(turning):
    port = turning.publisher.port
    with ExitStack() as stack:
        topics = [b"kv@a", b"kv@b", b"kv@a", b"kv@b"]
        members = [come(stack, turning, port, subscriber(turning, topic)) for topic in topics]
        listener = stack.enter_context(KvListener(turning.endpoint))
        turning.turn_until(lambda: not all(member.is_open for member in members))
        turning.now += TELL_ANEW_EVERY_S
        turning.listens(listener)
        assert [member.is_open for member in members] == [True, False, True, True], "the one that is here longest"
        come(stack, turning, port, subscriber(turning, b"kv@"))
        refused = stack.enter_context(KvListener(turning.endpoint))
        monitor = refused.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        turning.turn_until(lambda: bool(monitor.poll(0)))
        refused.socket.disable_monitor()
        assert [member.is_open for member in members] == [True, False, True, False]
        assert len(turning.publisher.subscribers()) == 4


def test_who_has_had_an_answer_makes_room_for_the_next_and_who_waits_for_one_does_not(turning):
    """The first one asks for all, which is much, and does not read; the others ask for what comes next."""
    port = turning.publisher.replay.port
    for first in range(0, 32 * 512, 512):
        turning.store(2**16 + first, 512, block_size=256)
        turning.publisher.turn()
    with ExitStack() as stack:
        waits = RawPeer(turning.replay_endpoint, greeting() + ready() + REQUEST)
        members = [come(stack, turning, port, waits)]
        turning.turn_until(lambda: not turning.publisher.has_more)
        for _ in range(5):
            peer = RawPeer(turning.replay_endpoint, greeting() + ready() + NEXT)
            members.append(come(stack, turning, port, peer))
            turning.turn_until(lambda: len(turning.publisher.replay.asked) == 1)
        assert [member.is_open for member in members] == [True, False, False, True, True, True]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs Linux")
def test_a_member_whose_machine_is_gone_is_noticed_within_half_a_minute(turning):
    with ExitStack() as stack:
        connected = come(stack, turning, turning.publisher.port, subscriber(turning, b"kv@a")).socket
        idle_s, every_s, probes, timeout_ms = (
            connected.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"))
            for name in ("KEEPIDLE", "KEEPINTVL", "KEEPCNT", "USER_TIMEOUT")
        )
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert idle_s + every_s * probes == 30 == timeout_ms / 1000
