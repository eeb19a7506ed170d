"""`baton rollout` against a fleet in virtual time behind a real HTTP server."""

import os
import re
import shlex
import signal
import sys
from types import SimpleNamespace

import pytest

from tests.client.fake_server import Refuse
from tests.client.fleet_model import FleetModel
from tests.support.eventually import eventually
from tests.support.processes import is_running


@pytest.fixture(autouse=True)
def fleet(server, monkeypatch):
    monkeypatch.setattr("scheduler_svc.client.commands.rollout._POLL_INTERVAL_S", 0.001)
    server.fleet = FleetModel()
    return server.fleet


def rows(stdout):
    """The final table: a dict for each replaced executor."""
    words = re.sub(r"(\d) s\b", r"\1s", re.sub("(old|new) epoch", r"\1", stdout))
    header, *lines = words.splitlines()
    return [dict(zip(header.split(), line.split(), strict=True)) for line in lines]


def test_replaces_all_and_shows_what_came_of_it(baton, fleet):
    result = baton("rollout", "--expect-build", "2", "--expect-fingerprint", "f2")
    assert result.exit_code == 0, result.output
    table = rows(result.stdout)
    assert [(row["executor"], row["successor"], row["build"], row["weights"]) for row in table] == [
        ("a", "a", "2", "f2"), ("b", "b", "2", "f2"), ("c", "c", "2", "f2"),
    ]  # fmt: skip
    assert [int(row["old"]) for row in table] == fleet.drained == [1, 2, 3]
    assert {int(row["new"]) for row in table} == {one.epoch for one in fleet.executors}
    lines = result.stderr.splitlines()
    assert lines[0] == "replacing a, b, c"
    assert lines[1] == "1/3 a (epoch 1) is leaving"
    assert re.fullmatch(
        r"1/3 a \(epoch 1\) → a \(epoch 4\), build 2; (its streams paused \d+\.\d\d s|no stream paused), "
        r"the turn took \d+\.\d s",
        lines[2],
    )
    assert len(lines) == 7


@pytest.mark.parametrize(("expected", "exit_code"), [("2", 0), ("2+gabc1234567", 0), ("2+gdef1234567", 1), ("3", 1)])
def test_a_build_is_expected_with_or_without_its_commit(baton, fleet, expected, exit_code):
    fleet.build = "2+gabc1234567"
    assert baton("rollout", "--expect-build", expected).exit_code == exit_code


@pytest.fixture
def fleet_time(fleet, monkeypatch):
    """Let the command read the fleet's clock, so that a timeout is as many reports on a busy machine as elsewhere."""
    clock = SimpleNamespace(monotonic=lambda: fleet.now, sleep=lambda _: None)
    monkeypatch.setattr("scheduler_svc.client.commands.rollout.time", clock)


@pytest.mark.usefixtures("fleet_time")
def test_a_successor_that_does_not_come_is_a_clear_failure(baton, fleet):
    fleet.restart_s = None
    result = baton("rollout", "--timeout", 20)
    assert result.exit_code == 1
    assert result.stdout == ""
    said = result.stderr.split("Error: ")[1].splitlines()
    assert said[:4] == [
        "no successor of a came within 20 s (2 of 3 executors are ready)",
        "  replaced:     none",
        "  stopped at:   a (gone, without a successor)",
        "  not touched:  b, c",
    ]
    assert said[4].endswith("baton rollout b c")
    assert fleet.drained == [1]


@pytest.mark.usefixtures("fleet_time")
def test_what_was_replaced_is_shown_even_then(baton, fleet):
    drain = fleet.drain

    def drain_and_lose(epoch, *, finish):
        fleet.restart_s = 4.0 if epoch == 1 else None
        return drain(epoch, finish=finish)

    fleet.drain = drain_and_lose
    result = baton("rollout", "--timeout", 20)
    assert result.exit_code == 1
    assert [row["executor"] for row in rows(result.stdout)] == ["a"]
    assert "  replaced:     a\n" in result.stderr


@pytest.mark.parametrize("arguments", [["b"], ["b", "--finish"]], ids=" ".join)
def test_names_and_finish(baton, fleet, arguments):
    finished = []
    drain = fleet.drain
    fleet.drain = lambda epoch, *, finish: finished.append(finish) or drain(epoch, finish=finish)
    result = baton("rollout", *arguments)
    assert [row["executor"] for row in rows(result.stdout)] == ["b"]
    assert finished == ["--finish" in arguments]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["x", "b"], 1, "no executor x is ready"),
        (["--replace-with", "no-such-program --x"], 2, "there is no such program"),
        (["--replace-with", "a 'b"], 2, "No closing quotation"),
        (["--replace-with", ""], 2, "there is no such program"),
    ],
)
def test_what_cannot_be_done_is_not_begun(baton, fleet, arguments, exit_code, message):
    result = baton("rollout", *arguments)
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert message in result.stderr
    assert fleet.drained == []


def test_an_empty_fleet_is_a_failure(baton, fleet):
    fleet.executors.clear()
    result = baton("rollout")
    assert (result.exit_code, result.stderr) == (1, "Error: there is no executor that is ready; see `baton status`\n")


def test_a_key_that_may_not_drain_stops_it(baton, server, fleet):
    server.admin_script.extend([None, None, Refuse(403, "not an administrator's key")])
    result = baton("rollout")
    assert result.exit_code == 1
    assert "Error: not an administrator's key (HTTP 403)\n  replaced:     none\n" in result.stderr
    assert fleet.drained == []


def test_an_answer_that_makes_no_sense_stops_it_and_says_how_things_stand(baton, server, fleet):
    server.admin_script.extend([None, None, None, Refuse(500, "a bug")])
    result = baton("rollout")
    assert result.exit_code == 1
    assert "Error: a bug (HTTP 500)\n  replaced:     none\n  stopped at:   a (asked to leave" in result.stderr


def test_a_log_folder_that_cannot_be_made_stops_it(baton, fleet, tmp_path):
    (tmp_path / "file").touch()
    result = baton("rollout", "--replace-with", "sleep 1", "--log-dir", tmp_path / "file" / "logs")
    assert result.exit_code == 1
    assert "Error: no successor can be started: " in result.stderr
    assert fleet.drained == []


def test_a_service_that_is_away_for_a_moment_is_waited_for(baton, server, fleet):
    server.admin_script.extend([None, Refuse(503), None, Refuse(503), None, None, Refuse(502)])
    result = baton("rollout")
    assert result.exit_code == 0, result.output
    assert fleet.drained == [1, 2, 3]


@pytest.fixture
def successor(fleet, tmp_path):
    """A command line that starts a process; it joins the fleet when it has written its pid."""
    pids = tmp_path / "pids"
    pids.touch()
    fleet.restart_s = None
    tick, seen = fleet.tick, []

    def tick_and_join():
        for pid in pids.read_text().split():
            if pid not in seen:
                seen.append(pid)
                fleet.start("new", pid=int(pid))
        tick()

    fleet.tick = tick_and_join
    script = f"import os, time; open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n'); print('hello', flush=True); "
    yield lambda then: shlex.join([sys.executable, "-c", script + then])
    for pid in pids.read_text().split():
        if is_running(int(pid)):
            os.kill(int(pid), signal.SIGKILL)


def test_successors_are_started_first_and_outlive_the_command(baton, fleet, successor, tmp_path):
    logs = tmp_path / "new" / "logs"
    result = baton("rollout", "--replace-with", successor("time.sleep(60)"), "--log-dir", logs)
    assert result.exit_code == 0, result.output
    assert [row["successor"] for row in rows(result.stdout)] == ["new"] * 3
    assert fleet.min_ready == 3
    assert len(fleet.ready) == 3
    assert all(is_running(one.pid) for one in fleet.executors)
    assert all(os.getsid(one.pid) == one.pid for one in fleet.executors), "a Ctrl-C at our terminal is none of theirs"
    assert sorted(log.read_text() for log in logs.iterdir()) == ["hello\n"] * 3


def test_a_successor_that_ends_at_once_stops_it(baton, fleet, tmp_path):
    result = baton("rollout", "--replace-with", f"{sys.executable} -c exit(7)", "--log-dir", tmp_path)
    assert result.exit_code == 1
    assert "Error: the successor exited with code 7 before it had joined; its log is " in result.stderr
    assert "stopped at:   a (not touched; a successor was started)" in result.stderr
    assert fleet.drained == []


def test_a_successor_of_the_wrong_build_stops_it_before_anyone_leaves(baton, fleet, successor, tmp_path):
    command = successor("time.sleep(60)")
    result = baton("rollout", "--replace-with", command, "--log-dir", tmp_path, "--expect-build", "3")
    assert result.exit_code == 1
    assert "has build 2, expected is 3" in result.stderr
    assert fleet.drained == []


@pytest.mark.timeout(30)
def test_ctrl_c_says_how_things_stand(start_baton, fleet):
    fleet.restart_s = None
    process = start_baton("rollout")
    eventually(lambda: fleet.drained and len(fleet.executors) == 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    said = process.stderr.read()
    assert "interrupted\n  replaced:     none\n  stopped at:   a (" in said
    assert "Traceback" not in said
