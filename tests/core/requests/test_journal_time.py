"""How old a journal is, and what time it is for its requests, whatever was done to the clocks and to the file."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from common import messages as m
from common.clocks import NO_BOOT, Clocks, read_clocks
from scheduler_svc.core.requests.group_commit import BatchSaved
from scheduler_svc.core.requests.journal_time import Stamp
from scheduler_svc.core.requests.recovery import RESUME_WITHIN_S
from scheduler_svc.server.journal import Journal
from tests.support.core import running_core
from tests.support.journals import load, read, save, writing

HERE, OTHER = b"this boot's id..", b"another one's..."
NOW = Clocks(wall_s=2e9, uptime_s=5000.0, monotonic_s=77.0, boot=HERE)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.db"


def later(seconds, **changes):
    """So much later, in another process."""
    passed = Clocks(NOW.wall_s + seconds, NOW.uptime_s + seconds, monotonic_s=3.0, boot=NOW.boot)
    return replace(passed, **changes)


@pytest.mark.parametrize(
    ("clocks", "age_s"),
    [
        (later(60.0), 60.0),
        (later(60.0, wall_s=NOW.wall_s + 1e6), 60.0),  # the wall's clock was set
        (later(60.0, wall_s=0.0), 60.0),
        (later(60.0, uptime_s=4.0, boot=OTHER), 60.0),  # the machine was started anew
        (later(86_400.0, uptime_s=1e7, boot=OTHER), 86_400.0),  # a copy of yesterday's, on another machine
        (later(60.0, wall_s=NOW.wall_s - 1e6, boot=OTHER), 0.0),  # and its clock was not set yet
        (later(60.0, uptime_s=NOW.uptime_s - 5.0), 0.0),
        (later(60.0, boot=NO_BOOT), 60.0),
    ],
)
def test_the_age_of_a_row(clocks, age_s):
    stamp = Stamp.at(NOW, 1000.0)
    assert stamp.age_s(clocks) == age_s
    assert clocks.monotonic_s + stamp.wall_offset_s(clocks) == pytest.approx(NOW.monotonic_s + 1000.0 + age_s)


def test_where_there_is_no_boot_the_wall_tells():
    stamp = Stamp.at(replace(NOW, boot=NO_BOOT, uptime_s=0.0), 0.0)
    assert stamp.age_s(later(60.0, boot=NO_BOOT, uptime_s=0.0)) == 60.0


@given(st.integers(0, 2**62), st.floats(0, 1e10), st.integers(0, 47), st.integers(0, 7))
def test_a_stamp_comes_back_and_damage_is_noticed(number, wall_s, at, bit):
    stamp = Stamp.at(replace(NOW, wall_s=wall_s), 5.0)
    packed = stamp.pack(number)
    assert Stamp.unpack(packed, number) == stamp
    assert Stamp.unpack(packed, number + 1) is None, "it is that of another row"
    assert Stamp.unpack(packed[:-1], number) is None
    damaged = packed[:at] + bytes([packed[at] ^ 1 << bit]) + packed[at + 1 :]
    assert Stamp.unpack(damaged, number) is None


def test_the_machines_clocks():
    first, second = read_clocks(), read_clocks()
    assert first.boot == second.boot
    assert len(first.boot) == 16
    assert first.monotonic_s <= second.monotonic_s
    if first.boot != NO_BOOT:
        assert 0.0 < first.uptime_s <= second.uptime_s


# --- on files ---


def test_the_age_counts_from_the_last_row_and_a_copy_is_as_old_as_it(path):
    with writing(path, clocks=lambda: NOW) as journal:
        save(journal, 1)
    with writing(path, clocks=lambda: later(500.0)) as journal:
        save(journal, 2)
    os.utime(path)  # copied just now
    assert read(path, clocks=lambda: later(500.0)).age_s == 0.0
    assert read(path, clocks=lambda: later(86_400.0, boot=OTHER)).age_s == 85_900.0
    os.utime(path, (0, 0))
    assert read(path, clocks=lambda: later(520.0)).age_s == 20.0


def test_a_new_journal_begins_with_the_time_of_the_wall(path):
    assert read(path, clocks=lambda: NOW).wall_offset_s == NOW.wall_s - NOW.monotonic_s
    assert read(path, clocks=lambda: NOW).age_s == 0.0


def test_life_after_life_goes_on_with_the_same_timeline(path):
    """Each of 60 s, and the wall is set before each."""
    expected = NOW.wall_s
    for life, jump_s in enumerate([0.0, 1e6, -3e6, 5.0]):
        begun = later(60.0 * life, wall_s=NOW.wall_s + jump_s, monotonic_s=life * 9.0)
        journal = Journal(path, clocks=lambda begun=begun: begun)
        assert begun.monotonic_s + journal.load().wall_offset_s == pytest.approx(expected)
        journal.start()
        assert save(journal, life) == BatchSaved(life)
        journal.close()
        expected += 60.0


# --- a service ---


@pytest.fixture
def left(path):
    """A journal with a request that has a deadline in 30 s, written at NOW."""
    clocks = replace(read_clocks(), wall_s=NOW.wall_s)
    with running_core(path.parent, journal=Journal(path, clocks=lambda: clocks)) as core:
        front = core.frontend()
        front.submit("a", [1], max_tokens=5, timeout_s=30.0, is_resumable=True)
        front.send(m.Attach(request_id="a"))
        assert front.receive(m.Attached).found
        front.close()
    assert load(path)
    return clocks


@pytest.mark.parametrize(
    ("passed_s", "changes", "is_found"),
    [
        (1.0, {}, True),
        (1.0, {"wall_s": NOW.wall_s + 86_400.0}, True),
        (1.0, {"wall_s": 0.0}, True),
        (1.0, {"wall_s": 0.0, "boot": OTHER}, True),
        (RESUME_WITHIN_S + 1.0, {}, False),
        (RESUME_WITHIN_S + 1.0, {"wall_s": NOW.wall_s}, False),
        (1.0, {"wall_s": NOW.wall_s + 86_400.0, "boot": OTHER}, False),
    ],
)
def test_requests_are_taken_up_unless_they_are_too_old(path, left, passed_s, changes, is_found):
    passed = replace(read_clocks(), uptime_s=left.uptime_s + passed_s, wall_s=left.wall_s + passed_s, boot=left.boot)
    os.utime(path)
    with running_core(path.parent, journal=Journal(path, clocks=lambda: replace(passed, **changes))) as core:
        front = core.frontend()
        front.send(m.Attach(request_id="a"))
        assert front.receive(m.Attached).found == is_found
        if is_found:
            (sequence,) = core.core_process.core.scheduler
            left_s = sequence.deadline - read_clocks().monotonic_s
            age_s = 0.0 if changes.get("boot") else passed_s
            assert left_s == pytest.approx(30.0 - age_s, abs=5.0), "a clock that was set moves no deadline"
        front.close()
