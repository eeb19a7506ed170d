"""A wall clock that jumps ahead lets nothing expire for a day, whichever process asks and whatever is started again."""

import asyncio
from contextlib import closing

import pytest

from common.clocks import NO_BOOT, Clocks
from scheduler_svc.frontend.api_keys import ApiKeys
from scheduler_svc.frontend.storing.sweeping import Sweeper
from scheduler_svc.store import responses, store_clock
from scheduler_svc.store.errors import NotFound
from scheduler_svc.store.store_clock import HOLD_S, KEEP_S, MAX_AWAY_S, MAX_JUMP_S, StoreTime
from scheduler_svc.store.store_thread import StoreThread
from tests.store.rows import response

START, MONTH, MINUTE = 1.7e9, 30 * 86_400.0, 60.0


class Machine:
    """Clocks that a test turns."""

    def __init__(self):
        self.wall_s, self.uptime_s, self.boot = START, 5000.0, b"b" * 16

    def __call__(self) -> Clocks:
        return Clocks(self.wall_s, self.uptime_s, self.uptime_s, self.boot)

    def passes(self, seconds: float) -> None:
        self.wall_s += seconds
        self.uptime_s += seconds

    def restarts(self, off_s: float) -> None:
        self.wall_s += off_s
        self.uptime_s, self.boot = 10.0, bytes([self.boot[0] + 1]) * 16


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def said(monkeypatch):
    """What was logged of the clock."""
    lines = []
    for level in ("warning", "info"):
        monkeypatch.setattr(store_clock.log, level, lambda event, **facts: lines.append((event, facts)))
    return lines


class Process:
    """One that uses the store and sweeps it, with what it finds there."""

    def __init__(self, folder, machine):
        self.thread = StoreThread(folder, clocks=machine)
        self._sweeper = Sweeper(self.thread, ApiKeys())

    def sweeps(self):
        while asyncio.run(self._sweeper._sweep()):
            pass

    def has(self, record_id="r"):
        try:
            asyncio.run(self.thread.run("ann", responses.measure, "ann", record_id, self.thread.clock.now()))
        except NotFound:
            return False
        return True

    def add(self, record_id="r", expires_at=START + 7 * 86_400.0):
        asyncio.run(self.thread.run("ann", responses.add, response(record_id, expires_at=expires_at)))

    def count(self):
        return asyncio.run(
            self.thread.run("ann", lambda store: store.execute("SELECT count(*) FROM responses").fetchone()[0])
        )

    def close(self):
        self.thread.close()


@pytest.fixture
def start(tmp_path, machine):
    """Starts processes on one store."""
    running = []

    def start() -> Process:
        running.append(Process(tmp_path, machine))
        return running[-1]

    yield start
    for process in running:
        process.close()


def test_nothing_goes_for_a_day_after_a_jump_and_all_of_it_is_found(start, machine, said):
    one, other = start(), start()
    one.add()
    for process in (one, other):
        process.sweeps()
    machine.wall_s += MONTH
    assert other.has(), "at once, before any process has swept"
    for hour in range(24):
        for process in (one, other):
            process.sweeps()
            assert process.has(), f"after {hour} hours"
        machine.passes(3590.0)
    assert start().has(), "a process that is started meanwhile judges alike"
    [(event, facts)] = said
    assert "has jumped ahead" in event
    assert facts == {"ahead_s": MONTH, "until": "2023-12-15T22:13:20+00:00"}
    machine.passes(MINUTE * 10)
    for process in (other, one):
        process.sweeps()
        assert not process.has(), "the wall is believed"
    assert (one.count(), len(said)) == (0, 2)
    assert said[1][0] == "the clock is believed again"


def test_a_restart_of_the_service_and_of_the_machine_ends_no_hold(start, machine, said):
    one = start()
    one.add()
    machine.wall_s += MONTH
    one.sweeps()
    for off_s in (1.0, 3600.0, 20.0):
        machine.passes(3600.0)
        one.sweeps()
        one.close()
        machine.restarts(off_s)
        one = start()
        assert one.has()
    assert len(said) == 1
    machine.passes(HOLD_S)
    one.sweeps()
    assert not one.has()


def test_a_clock_that_is_set_back_is_right_again_at_once(start, machine, said):
    one = start()
    one.add()
    machine.wall_s += MONTH
    one.sweeps()
    machine.passes(MINUTE)
    machine.wall_s -= MONTH
    one.sweeps()
    assert one.thread.clock.now() == machine.wall_s
    assert [event for event, _ in said][1:] == ["the clock is believed again"]
    assert one.has()
    machine.passes(8 * 86_400.0)
    one.sweeps()
    assert one.count() == 0, "no hold is left"


def test_a_jump_that_was_noticed_by_no_sweep_is_noticed_at_the_next_start(start, machine):
    one = start()
    one.add()
    one.close()
    machine.wall_s += MONTH
    one = start()
    one.sweeps()
    assert one.has()


@pytest.mark.parametrize(("off_s", "is_held"), [(MAX_AWAY_S - 60, False), (MONTH, True)])
def test_a_machine_that_was_off_for_long_is_the_same_as_a_jump(start, machine, off_s, is_held):
    """But not one that is off at night: it would never forget anything."""
    one = start()
    one.add(expires_at=START + 100.0)
    one.sweeps()
    one.close()
    machine.restarts(off_s)
    one = start()
    one.sweeps()
    assert (one.has(), one.count()) == (is_held, int(is_held))


def test_a_service_that_was_away_while_the_machine_ran_forgets_at_once(start, machine, said):
    one = start()
    one.add()
    one.close()
    machine.passes(MONTH)
    one = start()
    one.sweeps()
    assert one.count() == 0
    assert said == []


@pytest.mark.parametrize("step_s", [MAX_JUMP_S - 1, 1.0, -30.0, -MONTH])
def test_small_steps_and_steps_back_hold_nothing(machine, step_s):
    before = StoreTime(machine.wall_s, machine.uptime_s, machine.boot)
    machine.passes(MINUTE)
    machine.wall_s += step_s
    after = before.at(machine())
    assert (after.now, after.held_s) == (machine.wall_s, 0.0)


def test_jumps_add_up_and_each_begins_a_day(machine):
    time = StoreTime(machine.wall_s, machine.uptime_s, machine.boot)
    for _ in range(3):
        machine.wall_s += MONTH
        time = time.at(machine())
        machine.passes(HOLD_S - 10)
        time = time.at(machine())
    assert (time.held_s, time.hold_left_s) == (3 * MONTH, 10.0)
    machine.passes(10.0)
    assert time.at(machine()).now == machine.wall_s


def test_a_clock_without_a_battery_is_set_after_each_boot_and_holds_nothing(machine):
    """It begins at some time that has long passed, until the network tells it the right one."""
    time = StoreTime(machine.wall_s, machine.uptime_s, machine.boot, latest_s=machine.wall_s)
    for number in range(3):
        right_s = machine.wall_s + 3600.0
        machine.boot, machine.uptime_s, machine.wall_s = bytes([number + 1]) * 16, 5.0, 1e9
        time = time.at(machine())
        machine.passes(MINUTE)
        machine.wall_s = right_s
        time = time.at(machine())
        assert (time.now, time.held_s) == (right_s, 0.0)
    machine.wall_s += MONTH
    assert time.at(machine()).held_s == MONTH, "and nobody was there yet"


def test_a_machine_without_a_boot_id_notices_large_jumps(machine):
    machine.boot, machine.uptime_s = NO_BOOT, 0.0
    time = StoreTime(machine.wall_s, 0.0, NO_BOOT)
    machine.wall_s += MINUTE
    time = time.at(machine())
    assert time.held_s == 0.0
    machine.wall_s += MONTH
    time = time.at(machine())
    assert time.held_s == MONTH
    for _ in range(24):
        machine.wall_s += 3600.0
        time = time.at(machine())
    assert time.held_s == 0.0


def test_what_the_clocks_show_is_written_now_and_then(tmp_path, machine):
    """Not with each sweep of each process: every write wakes the worker."""
    with (
        closing(StoreThread(tmp_path, clocks=machine)) as thread,
        closing(StoreThread(tmp_path, clocks=machine)) as reader,
    ):

        def version():
            return asyncio.run(reader.run("", lambda store: store.execute("PRAGMA data_version").fetchone()[0]))

        first = version()
        for _ in range(9):
            machine.passes(MINUTE)
            asyncio.run(thread.run("", thread.clock.keep))
        assert version() == first
        machine.passes(KEEP_S)
        asyncio.run(thread.run("", thread.clock.keep))
        assert version() != first
