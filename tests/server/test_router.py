"""The core's socket: what peers that speak ZeroMQ as libzmq would not can do to it, which is nothing."""

import os
import random
import resource
import select
import selectors
import socket
import subprocess
import sys
import tracemalloc
from contextlib import ExitStack, closing, contextmanager, suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import messages as m
from common.wire import Codec
from scheduler_svc.core.actions import Sent
from scheduler_svc.server.doorway import STRANGER_MESSAGE_BYTES, Doorway
from scheduler_svc.server.listener import TURNED_AWAY_AT_ONCE, Listener
from scheduler_svc.server.peer import HIGH_WATER_MARK
from scheduler_svc.server.router import MESSAGES_A_PEER, MESSAGES_A_TURN
from scheduler_svc.server.strangers import (
    ADMIT,
    BURST,
    MAX_STRANGERS,
    PATIENCE_S,
    TURN_AWAY,
    UNITS_A_SECOND,
    StrangerBudget,
)
from tests.server.door import ANY_PORT, opened
from tests.support.core import Peer
from tests.support.effort import examples
from tests.support.eventually import eventually
from tests.support.hello import hello
from tests.support.raw_zmtp import COMMAND, MORE, RawPeer, frame, greeting, message, prop, ready

BEAT = m.ExecutorHeartbeat(epoch=1)
MIB = 2**20


@pytest.fixture
def door():
    with opened() as door:
        yield door


def members_beside(door, *peers):
    """A member of the fleet, who is heard and answered while others do what they like."""
    member = Peer(door.endpoint, m.SchedulerToExecutor)
    member.send(hello("member"))
    [number] = [peer for peer, said in door.turn_until(lambda f: any(is_hello(s) for _, s in f)) if is_hello(said)]
    door.router.admit(number)
    return member, number


def raw_member(door):
    """Another member, who can say what libzmq never would."""
    peer = RawPeer(door.endpoint)
    peer.send(message(hello("raw")))
    [(number, _)] = door.hear()
    door.router.admit(number)
    return peer, number


def is_hello(said):
    return isinstance(said, m.Hello) and said.executor == "member"


def is_served(door, member, number):
    """Whether the member can still speak and hear."""
    member.send(BEAT)
    assert (number, BEAT) in door.turn_until(lambda found: (number, BEAT) in found)
    assert door.router.send(number, m.SchedulerHeartbeat(epoch=7)) is Sent.OK
    return member.receive(m.SchedulerHeartbeat).epoch == 7


def test_no_peer_chooses_or_predicts_what_another_is_called(door):
    """libzmq's ROUTER ends its process when a peer has the name that it makes up for another one."""
    member, number = members_beside(door)
    claims = [b"\0" + (base + i).to_bytes(4, "big") for base in (0, 1804289383, 2**31) for i in range(20)]
    claims += [number, (int.from_bytes(number, "big") + 1).to_bytes(8, "big"), b"", b"x" * 255]
    peers = [RawPeer(door.endpoint, identity=claim) for claim in claims]
    peers += [RawPeer(door.endpoint) for _ in range(60)]
    for i, peer in enumerate(peers):
        peer.send(message(hello(f"peer {i}")))
    found = door.hear(len(peers))
    called = {said.executor: sender for sender, said in found}
    assert len({number, *called.values()}) == len(peers) + 1
    assert not any(called[f"peer {i}"] == claim for i, claim in enumerate(claims))
    assert is_served(door, member, number)
    for peer in peers:
        peer.close()
    lost = []
    door.turn_until(lambda _: lost.extend(door.router.lost_connections()) or len(lost) == len(peers))
    assert sorted(lost) == sorted(sender for sender, _ in found)


@pytest.mark.parametrize(
    "endless",
    [
        frame(b"", MORE) * (4 * MIB),
        frame(b"x" * 200, MORE) * (8 * MIB // 202),
        frame(b"x" * (STRANGER_MESSAGE_BYTES + 1)),
        bytes((2,)) + (2**62).to_bytes(8, "big") + bytes(4 * MIB),
        frame(b"\x04PING\0\0" + bytes(16), COMMAND) * (4 * MIB // 25),
    ],
    ids=["empty frames", "full frames", "one byte too long", "announced", "pings"],
)
def test_what_has_no_end_costs_nothing(door, endless):
    member, number = members_beside(door)
    peer = RawPeer(door.endpoint)
    peer.socket.settimeout(0)
    door.turn()
    sent, heard = 0, 0
    tracemalloc.start()
    try:
        for _ in range(100):
            with suppress(BlockingIOError):
                sent += peer.socket.send(memoryview(endless)[sent : sent + MIB])
            heard += len(door.turn())
    except OSError:  # cut off
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert heard == 0
    assert peak < MIB, f"{peak} bytes for {sent} bytes of a stranger"
    assert is_served(door, member, number)


def test_a_member_has_more_room_and_no_endless_one(door):
    peer, number = raw_member(door)
    peer.send(message(m.StepFailed(epoch=1, step=1, error="e" * 4096)) + frame(b"", MORE) * 20_000)
    door.turn_until(lambda _: number in door.router.lost_connections())
    assert peer.is_closed()
    assert door.drops.count == 1


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x01\x00\x02\x00hi",
        greeting(version=1),
        greeting(b"CURVE"),
        greeting(b"PLAIN"),
        greeting() + frame(b"hello"),
        greeting() + frame(b"\x05READY", COMMAND),
        greeting() + frame(b"\x05READY\xff", COMMAND),
        greeting() + frame(b"\x05READY" + prop(b"Socket-Type", b"DEALER")[:-3], COMMAND),
        greeting() + ready(socket_type=b"ROUTER"),
        greeting() + frame(b"\xffREADY", COMMAND),
        greeting() + frame(b"", COMMAND),
        greeting() + frame(bytes(2000), COMMAND),
        greeting() + b"\xf8\x01x",
    ],
)
def test_what_is_not_a_handshake_ends_the_connection(door, start):
    peer = RawPeer(door.endpoint, start)
    door.turn_until(lambda _: not len(door.connections))
    assert peer.is_closed()
    assert (door.drops.count, door.router.lost_connections()) == (0, [])


@given(data=st.data())
@settings(max_examples=examples(200, quick=30))
def test_any_bytes_at_all(data):
    """A valid start that goes wrong somewhere: no exception, and the next peer is served."""
    valid = greeting() + ready(b"me") + message(hello("one")) + message(BEAT)
    cut = data.draw(st.integers(0, len(valid)))
    junk = data.draw(st.binary(max_size=40))
    skip = data.draw(st.integers(0, 5))
    with opened() as door:
        peer = RawPeer(door.endpoint, valid[:cut] + junk + valid[cut + skip :])
        peer.socket.shutdown(socket.SHUT_WR)
        door.turn_until(lambda _: not len(door.connections))
        peer.close()
        assert is_served(door, *members_beside(door))


def test_strangers_take_few_files_and_not_for_long(door):
    member, number = members_beside(door)
    before = len(os.listdir("/proc/self/fd"))
    crowd = [
        RawPeer(door.endpoint, start) for start in (b"", greeting(), None, None) for _ in range(MAX_STRANGERS // 2)
    ]
    door.turn_until(lambda _: not has_waiting(door))
    taken = len(os.listdir("/proc/self/fd")) - before - len(crowd)
    assert taken == MAX_STRANGERS
    assert is_served(door, member, number)
    door.clock.now += PATIENCE_S + 1
    door.turn()
    assert len(os.listdir("/proc/self/fd")) - before - len(crowd) == 0
    assert all(peer.is_closed() for peer in crowd)
    assert is_served(door, member, number), "a member is not asked to hurry"
    newcomer = Peer(door.endpoint, m.SchedulerToExecutor)
    newcomer.send(hello("late"))
    assert door.hear()


def has_waiting(door):
    """Whether a connection waits to be accepted."""
    with selectors.DefaultSelector() as selector:
        selector.register(door.doorway.socket, selectors.EVENT_READ)
        return bool(selector.select(0))


def test_of_few_files_most_are_left():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        with opened() as door, ExitStack() as stack:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)  # the crowd lives in this process, too
            for _ in range(400):
                stack.enter_context(closing(RawPeer(door.endpoint)))
            door.turn_until(lambda _: not has_waiting(door))
            assert len(door.connections) == 128
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_member_that_is_dismissed_is_a_stranger_again(door):
    _, number = members_beside(door)
    door.router.dismiss(number)
    door.clock.now += PATIENCE_S + 1
    door.turn()
    assert door.router.lost_connections() == [number]
    assert door.router.send(number, m.SchedulerHeartbeat(epoch=1)) is Sent.GONE


@pytest.mark.parametrize(
    "unfinished",
    [frame(b"x" * 300_000, MORE) * 3, frame(b"x" * 900_000)[:-1], frame(b"x" * 5000, MORE) + frame(b"x" * 5000)[:-1]],
    ids=["frames", "a frame", "both"],
)
def test_a_member_that_is_dismissed_keeps_no_more_than_a_stranger(door, unfinished):
    member, number = members_beside(door)
    other, guest = raw_member(door)
    other.send(unfinished)
    connection = door.connections.get(guest).connection
    door.turn_until(lambda _: connection.num_kept_bytes > len(unfinished) - 100)
    door.router.dismiss(guest)
    assert door.router.lost_connections() == [guest]
    assert other.is_closed()
    assert is_served(door, member, number)


def test_the_memory_of_a_members_last_message_is_given_back_when_it_is_dismissed(door):
    peer, number = raw_member(door)
    peer.send(message(m.StepResult(epoch=1, step=1, token_ids=bytes(200_000), compute_us=1)))
    tracemalloc.start()
    door.hear()
    kept, _ = tracemalloc.get_traced_memory()
    assert kept > 200_000
    door.router.dismiss(number)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 4 * STRANGER_MESSAGE_BYTES


def test_what_a_member_has_said_before_it_was_dismissed_is_heard(door):
    peer, number = raw_member(door)
    connection = door.connections.get(number).connection
    said = message(BEAT) * (STRANGER_MESSAGE_BYTES // len(message(BEAT)) + 3 * MESSAGES_A_PEER)
    peer.send(said)
    found = door.hear()
    assert connection.num_kept_bytes > STRANGER_MESSAGE_BYTES
    door.router.dismiss(number)
    while (len(found) + 1) * len(message(BEAT)) <= len(said):
        found += door.hear()
    assert door.router.lost_connections() == []
    peer.close()


def test_what_a_member_has_said_before_it_was_disconnected_is_heard_no_more(door):
    peer, number = raw_member(door)
    peer.send(message(BEAT) * (3 * MESSAGES_A_PEER))
    found = door.turn_until(lambda _: door.connections.get(number).has_unread)
    assert len(found) < 3 * MESSAGES_A_PEER
    door.router.disconnect(number)
    assert door.turn() == []
    assert door.router.lost_connections() == [number]
    assert peer.is_closed()


class Failing(Doorway):
    """A port that says, while it fails, that no connection can be accepted."""

    def __init__(self):
        super().__init__(ANY_PORT, None)
        self.fails, self.failures = False, []

    def accept(self, now):
        if not self.fails:
            return super().accept(now)
        self.failures.append(now)
        raise OSError(24, "Too many open files")


def test_when_no_connection_can_be_accepted_the_others_go_on():
    with opened(StrangerBudget(), Failing()) as door:
        check_others_go_on(door)


def check_others_go_on(door):
    doorway, failures = door.doorway, door.doorway.failures
    member, number = members_beside(door)
    silent = RawPeer(door.endpoint)
    door.turn_until(lambda _: len(door.connections) == 2)
    doorway.fails = True
    late = Peer(door.endpoint, m.SchedulerToExecutor)
    late.send(hello("late"))
    door.turn_until(lambda _: failures)
    assert silent.is_closed(), "who has been here longest without a word gives its file back"
    for _ in range(20):  # within a moment
        list(door.router.receive())
    assert len(failures) == 1, "it is not tried again in every turn"
    assert is_served(door, member, number)
    doorway.fails = False
    door.clock.now += 1
    assert door.hear()


@pytest.fixture
def frugal():
    with opened(StrangerBudget()) as door:
        yield door


def arrives(door, number):
    """Wait until something that this peer has sent is here, and not read."""
    assert select.select([door.connections.get(number).socket], [], [], 60)[0]


def test_who_joins_again_and_again_does_so_in_the_time_of_strangers(frugal):
    _, number = members_beside(frugal)
    peer = frugal.connections.get(number)
    for _ in range(int(BURST / ADMIT) + 1):
        frugal.router.dismiss(number)
        frugal.router.admit(number)
    frugal.router.dismiss(number)
    assert frugal.connections.has_to_wait(peer)


def test_strangers_have_a_bounded_share_of_the_time(frugal):
    """Counted in what is looked at, while no time passes: a burst, and then so much a second."""
    door = frugal
    member, number = members_beside(door)
    peers = [RawPeer(door.endpoint) for _ in range(4)]
    for peer in peers:
        peer.send(message(BEAT) * 1000)
    heard = 0
    for _ in range(200):
        heard += len(list(door.router.receive()))
    assert heard <= BURST + len(peers) * MESSAGES_A_PEER
    member.send(BEAT)
    eventually(lambda: (number, BEAT) in list(door.router.receive()))
    for _ in range(3):
        door.clock.now += 1
        heard = sum(len(list(door.router.receive())) for _ in range(200))
        assert heard <= UNITS_A_SECOND + len(peers) * MESSAGES_A_PEER


def test_a_flood_of_some_members_leaves_a_turn_short_and_keeps_nobody_waiting(door):
    flooding = []
    for i in range(MESSAGES_A_TURN // MESSAGES_A_PEER + 4):
        peer = RawPeer(door.endpoint)
        peer.send(message(hello(f"flood {i}")))
        flooding.append((peer, door.hear()[0][0]))
    member, number = members_beside(door)
    for peer, flooder in flooding:
        door.router.admit(flooder)
        peer.send(message(BEAT) * 2000)
    member.send(BEAT)
    arrives(door, number)
    counts, turns = {}, 0
    while number not in counts:
        turns += 1
        assert turns < 100
        found = door.turn()
        assert len(found) <= MESSAGES_A_TURN
        for sender, _ in found:
            counts[sender] = counts.get(sender, 0) + 1
    assert turns <= 6
    while door.router.has_unread:
        door.turn()


def test_a_peer_that_does_not_read_fills_its_own_queue_alone(door):
    member, number = members_beside(door)
    deaf = RawPeer(door.endpoint)
    deaf.send(message(hello("deaf")))
    [(other, _)] = door.hear()
    news = m.EpochOver(epoch=1, reason="r" * 4096)
    sent = 0
    while door.router.send(other, news) is Sent.OK:
        sent += 1
        assert sent < 100_000
    peer = door.connections.get(other)
    size = len(peer.connection.encode(Codec(m.SchedulerToExecutor).encode(news)))
    assert 0 < peer.num_unsent_bytes <= size, "nothing is kept for a stranger but the message that was under way"
    door.router.admit(other)
    while door.router.send(other, news) is Sent.OK:
        pass
    assert (HIGH_WATER_MARK - 1) * size < peer.num_unsent_bytes <= HIGH_WATER_MARK * size
    assert is_served(door, member, number)


def test_many_bytes_leave_in_order_when_the_peer_reads(door):
    """Larger than what the kernel keeps, to several peers at once, through libzmq."""
    peers = []
    for i in range(3):
        peer = Peer(door.endpoint, m.SchedulerToExecutor)
        peer.send(hello(f"peer {i}"))
        number = door.hear()[0][0]
        door.router.admit(number)
        peers.append((peer, number))
    plan = m.Plan(
        epoch=1, step=0, **dict.fromkeys(("lanes", "query_lens", "context_lens", "token_ids", "slot_mapping"), b""),
        block_counts=b"", block_ids=random.Random(1).randbytes(4 * MIB), sample_rows=b"",
    )  # fmt: skip
    for _, number in peers:
        for step in range(5):
            assert door.router.send(number, msgspec.structs.replace(plan, step=step)) is Sent.OK
    got = {number: [] for _, number in peers}

    def read():
        door.turn()
        for peer, number in peers:
            while peer.socket.poll(1):
                got[number].append(peer.codec.decode(peer.socket.recv_multipart()))
        return all(len(plans) == 5 for plans in got.values())

    eventually(read)
    for plans in got.values():
        assert [p.step for p in plans] == [0, 1, 2, 3, 4]
        assert all(p.block_ids == plan.block_ids for p in plans)


def test_a_ping_is_answered(door):
    peer = RawPeer(door.endpoint)
    peer.send(frame(b"\x04PING\0\0context", COMMAND) + message(hello("one")))
    door.hear()
    data = b""
    while b"PONG" not in data:
        data += peer.socket.recv(1000)
    assert data.endswith(frame(b"\x04PONGcontext", COMMAND))


def test_pings_of_a_member_that_does_not_read_make_nothing_pile_up(door):
    deaf, number = raw_member(door)
    peer = door.connections.get(number)
    while not peer.has_unsent:
        door.router.send(number, m.EpochOver(epoch=1, reason="r" * 4096))
    before = peer.num_unsent_bytes
    for _ in range(200):
        deaf.send(frame(b"\x04PING\0\0" + bytes(16), COMMAND) * 16)
        arrives(door, number)
        assert door.turn() == []
    assert peer.num_unsent_bytes == before
    while peer.has_unsent:
        deaf.socket.recv(2**20)
        door.turn()
    deaf.send(frame(b"\x04PING\0\0now", COMMAND))
    arrives(door, number)
    door.turn()
    data = b""
    while not data.endswith(frame(b"\x04PONGnow", COMMAND)):
        more = deaf.socket.recv(2**20)
        assert more, "it was cut off"
        data = data[-100:] + more


def test_the_last_words_of_a_peer_are_heard(door):
    peer = RawPeer(door.endpoint)
    peer.send(message(BEAT) * (3 * MESSAGES_A_PEER))
    peer.socket.shutdown(socket.SHUT_WR)
    found, lost = [], []
    eventually(lambda: found.extend(door.turn()) or lost.extend(door.router.lost_connections()) or lost)
    assert len(found) == 3 * MESSAGES_A_PEER
    assert lost == [found[0][0]]


def local_door(endpoint, peer_of=None):
    """That of frontends, at which strangers may do as much as usually."""
    doorway = Doorway(endpoint, None, listener=Listener(endpoint, peer_of))
    return opened(StrangerBudget(), doorway, m.FrontendToCore, trusts_all=True)


ANOTHER_USER = """
import os, socket, sys
os.setuid(65534)
connection = socket.socket(socket.AF_UNIX)
connection.connect(chr(0) + sys.argv[1])
connection.settimeout(20)
sys.exit(len(connection.recv(100)))
"""


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root can be another user")
def test_another_user_of_the_machine_is_turned_away_from_a_local_socket():
    name = f"baton-test-{os.getpid()}"
    with local_door(f"ipc://@{name}") as door:
        friend = Peer(door.endpoint, m.CoreToFrontend)
        friend.send(m.FrontendHello(pid=1))
        door.hear()
        other = subprocess.Popen([sys.executable, "-c", ANOTHER_USER, name])
        door.turn_until(lambda found: found or other.poll() is not None)
        assert other.returncode == 0, "it was told something"
        assert len(door.connections) == 1


CROWD = """
import os, socket, sys
os.setuid(65534)
crowd = []
while True:
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    if connection.connect_ex(chr(0) + sys.argv[1]):
        break
    crowd.append(connection)
print(len(crowd), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root can be another user")
def test_a_crowd_of_another_user_at_a_local_socket_hides_nobody_and_costs_little_in_a_turn():
    """It fills the backlog; no time passes."""
    name = f"baton-test-crowd-{os.getpid()}"
    command = [sys.executable, "-c", CROWD, name]
    with (
        local_door(f"ipc://@{name}") as door,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crowd,
    ):
        waiting = int(crowd.stdout.readline())
        assert waiting > 2 * TURNED_AWAY_AT_ONCE, "the kernel's limit is lower than ours"
        friend = socket.socket(socket.AF_UNIX)
        friend.setblocking(False)
        with pytest.raises(BlockingIOError):
            friend.connect("\0" + name)
        assert door.turn() == []
        assert door.doorway.num_turned_away == TURNED_AWAY_AT_ONCE
        friend.connect("\0" + name)
        friend.sendall(greeting() + ready() + message(m.FrontendHello(pid=1)))
        turns, heard = 1, []
        while not heard:
            before = door.doorway.num_turned_away
            heard += door.turn()
            turns += 1
            assert door.doorway.num_turned_away - before <= TURNED_AWAY_AT_ONCE
            assert turns <= waiting // TURNED_AWAY_AT_ONCE + 2
        assert door.doorway.num_turned_away == waiting
        assert len(door.connections) == 1
        crowd.stdin.close()


def test_turning_away_is_work_for_strangers(tmp_path):
    """While no time passes, they cannot keep the core at it."""
    with local_door(f"ipc://{tmp_path}/core", peer_of=lambda connection: (1, 65534)) as door:
        counts = []
        while not counts or counts[-1]:
            before = door.doorway.num_turned_away
            for _ in range(TURNED_AWAY_AT_ONCE - 1):
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.setblocking(False)
                    connection.connect_ex(f"{tmp_path}/core")
            door.turn()
            counts.append(door.doorway.num_turned_away - before)
            assert sum(counts) <= BURST / TURN_AWAY + TURNED_AWAY_AT_ONCE
        door.clock.now += 1
        door.turn()
        assert door.doorway.num_turned_away > sum(counts)


class Crowded(Doorway):
    """A port at which, once it is full, a crowd waits that is turned away for ever."""

    is_full, num_turned_away = False, 0

    def accept(self, now):
        if not self.is_full:
            return super().accept(now)
        self.num_turned_away += TURNED_AWAY_AT_ONCE
        return None


def test_who_has_come_in_is_heard_while_a_crowd_waits_at_the_door():
    with opened(StrangerBudget(), Crowded(ANY_PORT, None)) as door:
        check_is_heard(door)


def check_is_heard(door):
    inside, doorway = RawPeer(door.endpoint, b""), door.doorway
    door.turn_until(lambda _: len(door.connections) == 1)
    doorway.is_full = True
    waiting = RawPeer(door.endpoint, b"")
    door.turn_until(lambda _: door.connections.are_strangers_waiting)
    inside.send(greeting() + ready() + message(BEAT))
    number = (1).to_bytes(8, "big")  # the first that came
    arrives(door, number)
    turns, heard = 0, []
    while not heard:
        door.clock.now += 2 / UNITS_A_SECOND
        heard = door.turn()
        turns += 1
        assert turns < 100
    assert turns * 2 < 5 * TURN_AWAY * TURNED_AWAY_AT_ONCE
    before = doorway.num_turned_away
    for _ in range(100):
        door.clock.now += 1 / UNITS_A_SECOND
        inside.send(message(BEAT))
        arrives(door, number)
        door.turn()
    assert doorway.num_turned_away > before, "nor does who is in keep the others out"
    waiting.close()
    inside.close()


class ShortOfWatches(selectors.DefaultSelector):
    """A selector that, while the kernel's limit is reached, watches no more, and forgets what it cannot change."""

    is_limit_reached, num_failures = False, 0

    def register(self, *arguments):
        self._check()
        return super().register(*arguments)

    def modify(self, fileobj, events, data=None):
        if ShortOfWatches.is_limit_reached:
            self.unregister(fileobj)
        self._check()
        return super().modify(fileobj, events, data)

    @classmethod
    def _check(cls):
        if cls.is_limit_reached:
            cls.num_failures += 1
            raise OSError(28, "No space left on device")


@contextmanager
def short_of_watches():
    ShortOfWatches.is_limit_reached, ShortOfWatches.num_failures = True, 0
    try:
        yield
    finally:
        ShortOfWatches.is_limit_reached = False


@pytest.fixture
def watched():
    with opened(StrangerBudget(), new_selector=ShortOfWatches) as door:
        yield door


def test_a_connection_that_cannot_be_watched_ends_nobody(watched):
    member, number = members_beside(watched)
    with short_of_watches():
        late = RawPeer(watched.endpoint)
        watched.turn_until(lambda _: ShortOfWatches.num_failures)
    assert late.is_closed()
    assert is_served(watched, member, number)


@pytest.mark.parametrize("change", ["admit", "dismiss", "send"])
def test_a_peer_that_cannot_be_watched_any_more_is_dropped(watched, change):
    door = watched
    member, number = members_beside(door)
    peer = RawPeer(door.endpoint)
    peer.send(message(hello("other")))
    [(other, _)] = door.hear()
    if change == "dismiss":
        door.router.admit(other)
    with short_of_watches():
        match change:
            case "admit":
                door.router.admit(other)
            case "dismiss":
                door.router.dismiss(other)
            case "send":
                while door.router.send(other, m.EpochOver(epoch=1, reason="r" * 4096)) is Sent.OK:
                    pass
    assert door.router.send(other, m.SchedulerHeartbeat(epoch=1)) is Sent.GONE
    assert door.router.lost_connections() == [other]
    assert peer.is_closed()
    assert is_served(door, member, number)


def test_strangers_that_cannot_be_watched_now_are_watched_later(watched):
    watched.turn()
    watched.budget.exhaust()
    late = RawPeer(watched.endpoint)
    late.send(message(hello("late")))
    watched.turn_until(lambda _: watched.connections.are_strangers_waiting)
    watched.clock.now += 1
    with short_of_watches():
        assert watched.turn() == []
        assert ShortOfWatches.num_failures
    assert watched.hear()
