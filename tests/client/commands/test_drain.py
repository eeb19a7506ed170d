"""`baton drain`."""

import pytest

from tests.client.fake_server import Refuse
from tests.client.fleet_model import FleetModel


@pytest.fixture(autouse=True)
def fleet(server):
    server.fleet = FleetModel(names=("a", "b"), leave_s=3.0, same_pid=True)
    return server.fleet


@pytest.mark.parametrize("executor", ["b", "2"], ids=["name", "epoch"])
def test_waits_until_it_has_left(baton, fleet, executor):
    leaving = fleet.named("b")
    result = baton("drain", executor)
    assert result.exit_code == 0
    assert result.stdout.startswith("b (epoch 2) has left after ")
    assert result.stdout.count("\n") == 1
    assert fleet.drained == [2]
    assert leaving not in fleet.executors


def test_no_wait_only_asks(baton, fleet):
    result = baton("drain", "a", "--no-wait")
    assert (result.exit_code, result.stdout) == (0, "a (epoch 1) is leaving; it ran 0 sequences\n")
    assert fleet.named("a").leaves_at is not None


@pytest.mark.parametrize("finish", [False, True])
def test_finish_is_passed_on(baton, fleet, finish):
    assert baton("drain", "a", "--no-wait", *["--finish"] * finish).exit_code == 0
    assert fleet.named("a").is_finishing == finish


def test_an_unknown_executor_is_a_failure(baton, fleet):
    result = baton("drain", "c")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: no executor 'c' is in the fleet (HTTP 404)\n"


@pytest.mark.parametrize(
    "refusal", [Refuse(403, "not an administrator's key"), Refuse(409, "two are called b")], ids=str
)
def test_a_refusal_is_a_failure(baton, server, refusal):
    server.admin_script.extend([None, refusal])
    result = baton("drain", "b")
    assert (result.exit_code, result.stderr) == (1, f"Error: {refusal.message} (HTTP {refusal.status})\n")


@pytest.mark.parametrize("command", ["drain b", "rollout"])
def test_a_key_that_may_not_even_look_is_told_of_the_right_one(baton, server, command):
    server.admin_script.append(Refuse(403, "'baton keys api NAME --metrics' makes one that may.", code="forbidden"))
    result = baton(*command.split())
    assert result.exit_code == 1
    assert "`baton keys api NAME --admin`" in result.stderr
    assert "--metrics" not in result.stderr


def test_time_is_limited_and_it_says_how_things_are(baton, fleet):
    fleet.leave_s = 1e9
    result = baton("drain", "b", "--finish", "--timeout", 5)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "has not left within 5 s: it is finishing and runs 0 sequences" in result.stderr


def test_a_service_that_is_away_for_a_moment_is_waited_for(baton, server):
    server.admin_script.extend([None, None, Refuse(503), Refuse(502)])
    assert baton("drain", "b").exit_code == 0
    assert not server.admin_script


@pytest.mark.parametrize(("finish", "came_back"), [(False, False), (True, True)], ids=["left", "came back"])
def test_a_scheduler_restart_does_not_pass_for_a_departure(baton, server, fleet, finish, came_back):
    """New epochs all round say nothing; an executor that was only finishing knows of nothing and comes back."""
    fleet.leave_s, fleet.restart_s = 100.0, None
    tick, looks = fleet.tick, iter(range(10_000))

    def tick_and_restart():
        tick()
        if next(looks) == 2:
            fleet.restart_scheduler()

    fleet.tick = tick_and_restart
    result = baton("drain", "b", *["--finish"] * finish)
    assert result.exit_code == came_back
    if came_back:
        assert "Error: the scheduler was restarted, and b (epoch 2) is back, with epoch" in result.stderr
    else:
        assert "has left" in result.stdout
