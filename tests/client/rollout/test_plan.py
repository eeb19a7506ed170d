"""A rollout against a model of a fleet in virtual time: what it does, and when it stops."""

import random

import pytest

from scheduler_svc.client.rollout.plan import Drain, Rollout, RolloutSettings, Say, StartSuccessor, TurnState
from scheduler_svc.client.rollout.view import stop_report
from tests.client.fleet_model import FleetModel


class Operator:
    """Carries out what a rollout says, as the command does."""

    def __init__(self, fleet, names=(), **settings):
        self.fleet = fleet
        self.settings = RolloutSettings(**({"timeout_s": 60.0} | settings))
        self.rollout = Rollout(fleet.report(), names, self.settings, fleet.now)
        self.said = []

    def look(self):
        for action in self.rollout.see(self.fleet.report(), self.fleet.now):
            match action:
                case Say(line):
                    self.said.append(line)
                case Drain(epoch):
                    if self.fleet.drain(epoch, finish=self.settings.finish):
                        self.rollout.drain_accepted(epoch)
                case StartSuccessor():
                    start = self.fleet.start_standby if self.settings.starts_standbys else self.fleet.start
                    start("started")

    def run(self, disturb=None):
        """To the end. `disturb(step)` is called before each look."""
        for step in range(2000):
            if disturb is not None:
                disturb(step)
            self.look()
            if self.rollout.is_done:
                return self.rollout
            self.fleet.tick()
        raise AssertionError("it has no end")

    def until(self, turn_state, target):
        """Up to a turn_state of the turn of `target`."""
        while self.rollout.turn_state is not turn_state or self.rollout.queue[0].name != target:
            self.look()
            self.fleet.tick()


def pairs(rollout):
    return [(one.name, one.successor.name) for one in rollout.replaced]


@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize("same_pid", [False, True], ids=["", "same pid"])
@pytest.mark.parametrize("restart_s", [0.0, 4.0])
def test_each_is_replaced_in_turn(finish, same_pid, restart_s):
    restart_s = max(restart_s, 0.5 * (finish and same_pid))  # at once, it is not to be told from a failed step
    fleet = FleetModel(restart_s=restart_s, same_pid=same_pid)
    rollout = Operator(fleet, finish=finish).run()
    assert rollout.stopped == ""
    assert pairs(rollout) == [("a", "a"), ("b", "b"), ("c", "c")]
    assert [one.epoch for one in rollout.replaced] == fleet.drained == [1, 2, 3]
    assert {one.build for one in fleet.executors} == {"2"}
    assert fleet.min_ready == 2, "never two at a time"


def test_only_those_that_are_named():
    fleet = FleetModel()
    rollout = Operator(fleet, ("b",)).run()
    assert pairs(rollout) == [("b", "b")]
    assert fleet.drained == [2]


def test_successors_that_we_start_join_before_anyone_leaves():
    fleet = FleetModel(restart_s=None)
    rollout = Operator(fleet, starts_successors=True).run()
    assert pairs(rollout) == [("a", "started"), ("b", "started"), ("c", "started")]
    assert fleet.min_ready == 3
    assert len(fleet.ready) == 3


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c")])
def test_a_standby_of_the_old_release_is_replaced_as_well(names):
    """An executor leaves only while a standby waits. The old standby is the first successor, and its turn the last."""
    fleet = FleetModel(names=names, standby="1")
    operator = Operator(fleet)
    assert operator.rollout.targets == ", ".join([*names, "then the standby that waits"])
    rollout = operator.run()
    assert rollout.stopped == ""
    assert operator.said[0] == f"1/{len(names) + 1} a (epoch 1) is leaving", "the standby is counted from the start"
    assert operator.said[-1].startswith(f"{len(names) + 1}/{len(names) + 1} standby")
    assert pairs(rollout)[0] == ("a", "standby")
    assert [one.name for one in rollout.replaced] == [*names, "standby"]
    assert {one.build for one in fleet.executors} == {"2"}
    assert fleet.min_ready >= len(names) - 1


def test_standbys_that_we_start_wait_before_anyone_leaves():
    fleet = FleetModel(names=("a", "b"), restart_s=None)
    rollout = Operator(fleet, starts_successors=True, starts_standbys=True).run()
    assert rollout.stopped == ""
    assert pairs(rollout) == [("a", "started"), ("b", "started")]
    assert {one.build for one in fleet.executors} == {"2"}


def test_a_single_executor():
    """Its streams pause until its successor is there."""
    fleet = FleetModel(names=("a",))
    rollout = Operator(fleet).run()
    assert pairs(rollout) == [("a", "a")]
    assert rollout.replaced[0].pause_s >= 4.0
    assert fleet.min_ready == 0


def test_the_pause_of_the_streams_is_said_beside_the_length_of_the_turn():
    """Where others go on with the streams, or a standby, these are very different."""
    operator = Operator(FleetModel(standby="1"))
    (*_, last) = operator.run().replaced
    assert (last.pause_s, last.seconds) == (0.5, 5.0)
    assert operator.said[-1].endswith("its streams paused 0.50 s, the turn took 5.0 s")


def test_a_pause_that_is_not_over_holds_up_the_next_turn_for_some_seconds_only():
    operator = Operator(FleetModel(tells_pauses=False))
    assert [one.pause_s for one in operator.run().replaced] == [None] * 3
    assert "how long its streams paused is not known" in operator.said[-1]


def test_it_stops_where_no_successor_comes():
    fleet = FleetModel()
    operator = Operator(fleet)
    operator.until(TurnState.LEAVING, "b")
    fleet.restart_s = None
    rollout = operator.run()
    assert rollout.stopped == "no successor of b came within 60 s (2 of 3 executors are ready)"
    assert fleet.drained == [1, 2]
    *facts, advice = stop_report(rollout).splitlines()[1:]
    assert facts == [
        "  replaced:     a",
        "  stopped at:   b (gone, without a successor)",
        "  not touched:  c",
    ]
    assert advice.startswith("See why its supervisor starts none")
    assert advice.endswith("then go on with: baton rollout c")


def test_it_stops_where_one_does_not_leave():
    fleet = FleetModel(leave_s=1e9)
    rollout = Operator(fleet, finish=True).run()
    assert rollout.stopped == "a did not leave within 60 s (finishing, 0 sequences)"
    assert "go on with: baton rollout a b c" in stop_report(rollout)


def test_it_stops_where_a_started_one_does_not_join():
    fleet = FleetModel(restart_s=None)
    operator = Operator(fleet, starts_successors=True)
    fleet.start = lambda name: None
    rollout = operator.run()
    assert rollout.stopped == "the successor that was started did not join within 60 s"
    assert "a (not touched; a successor was started)" in stop_report(rollout)
    assert fleet.drained == []


def test_a_standby_that_no_supervisor_starts_is_asked_for_soon_and_named_at_the_end():
    operator = Operator(FleetModel(names=("a", "b"), standby="1", restart_s=None))
    operator.until(TurnState.JOINING, "b")
    begun = operator.fleet.now
    while "waits" not in operator.said[-1]:
        operator.look()
        operator.fleet.tick()
    assert operator.said[-1].endswith(
        "b (epoch 2) waits for a standby: this command starts none; a supervisor has to, or --replace-with"
    )
    assert operator.fleet.now - begun < 12
    rollout = operator.run()
    assert len([line for line in operator.said if "waits" in line]) == 1
    assert rollout.stopped == "no standby came for b within 60 s, and this command starts none"
    report = stop_report(rollout)
    assert "stopped at:   b (not touched; no standby waits)" in report
    assert "or start one yourself (`baton-executor --standby`)" in report
    assert "successor" not in report


@pytest.mark.parametrize(
    ("state", "settings", "words"),
    [
        ("LEAVING", {"finish": True}, "waits until it has left (0 sequences)"),
        ("SUCCESSION", {}, "waits for a successor: this command starts none; a supervisor has to, or --replace-with"),
        ("JOINING", {"starts_successors": True}, "waits for the successor that was started to join"),
    ],
)
def test_each_long_wait_is_told_once(state, settings, words):
    fleet = FleetModel(names=("a",), restart_s=None, leave_s=1e9 if state == "LEAVING" else 1.0)
    operator = Operator(fleet, **settings)
    fleet.start = lambda name: None
    assert operator.run().turn_state is TurnState[state]
    assert [line for line in operator.said if "waits" in line] == [f"1/1 a (epoch 1) {words}"]


def test_it_stops_where_the_scheduler_stays_away():
    fleet = FleetModel()
    operator = Operator(fleet)
    operator.until(TurnState.SUCCESSION, "a")
    for _ in range(200):
        operator.rollout.see(None, fleet.now)
        fleet.tick()
    assert operator.rollout.stopped == "the scheduler does not answer, and the turn of a was not over within 60 s"


@pytest.mark.parametrize(
    ("expected", "objection"),
    [({"build": "3"}, "build 2, expected is 3"), ({"fingerprint": "f3"}, "fingerprint f2, expected is f3")],
)
@pytest.mark.parametrize("starts", [False, True])
def test_it_stops_at_a_successor_that_is_not_what_was_expected(expected, objection, starts):
    fleet = FleetModel(restart_s=None if starts else 4.0)
    rollout = Operator(fleet, starts_successors=starts, **expected).run()
    assert objection in rollout.stopped
    assert fleet.drained == ([] if starts else [1]), "one that is started first is looked at first"
    report = stop_report(rollout)
    assert ("end started, then go on with" if starts else "a (replaced by a (epoch 4), which is not as exp") in report
    assert "go on with: baton rollout a b c" in report, "the one that came instead has its turn, too"
    assert "Install the release, or the weights" in report
    assert "without" not in report


def test_one_that_was_expected_passes():
    assert len(Operator(FleetModel(), build="2", fingerprint="f").run().replaced) == 3


@pytest.mark.parametrize("starts", [False, True])
def test_one_that_dies_before_its_turn_is_replaced_and_not_waited_for(starts):
    fleet = FleetModel(restart_s=None if starts else 4.0)
    operator = Operator(fleet, starts_successors=starts)
    operator.until(TurnState.LEAVING, "a")
    fleet.kill(fleet.named("b"))
    rollout = operator.run()
    assert rollout.stopped == ""
    assert [one.name for one in rollout.replaced] == ["a", "b", "c"]
    assert fleet.drained == [1, 3]
    assert len(fleet.ready) == 3
    assert any("b (epoch 2) has gone by itself" in line for line in operator.said)


def test_one_that_dies_and_nobody_replaces_stops_it():
    fleet = FleetModel()
    operator = Operator(fleet)
    operator.until(TurnState.SUCCESSION, "a")
    fleet.restart_s = None
    fleet.kill(fleet.named("c"))
    assert operator.run().stopped == "no successor of a came within 60 s (2 of 3 executors are ready)"
    assert fleet.drained == [1], "the fleet is not made smaller still"


@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("turn_state", [TurnState.LEAVING, TurnState.SUCCESSION])
def test_a_scheduler_restart_is_survived(name, turn_state, finish):
    fleet = FleetModel(leave_s=3.0)
    operator = Operator(fleet, finish=finish)
    operator.until(turn_state, name)
    fleet.restart_scheduler()
    rollout = operator.run()
    assert rollout.stopped == ""
    assert pairs(rollout) == [("a", "a"), ("b", "b"), ("c", "c")]
    assert {one.build for one in fleet.executors} == {"2"}
    assert [line for line in operator.said if "the scheduler was restarted" in line]


def test_a_failed_step_is_no_successor():
    """It gives an executor a new epoch, and leaves it as old as it was."""
    fleet = FleetModel()
    operator = Operator(fleet)
    operator.until(TurnState.SUCCESSION, "a")
    fleet.blink(fleet.named("b"))
    fleet.blink(fleet.named("c"), seconds=0.1)
    rollout = operator.run()
    assert pairs(rollout) == [("a", "a"), ("b", "b"), ("c", "c")]
    assert {one.build for one in fleet.executors} == {"2"}


def test_a_refusal_stops_it_unless_the_executor_is_leaving_anyway():
    fleet = FleetModel()
    operator = Operator(fleet)
    operator.until(TurnState.LEAVING, "a")
    operator.look()
    operator.rollout.drain_refused("it is leaving")
    assert operator.rollout.stopped == "", "another operator was quicker"
    operator.until(TurnState.LEAVING, "b")
    operator.rollout.drain_refused("it must not")
    assert operator.rollout.stopped == "the scheduler refused: it must not"


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_none_is_left_out_and_the_fleet_stays_whole(seed):
    """Random kills, lost connections and scheduler restarts: in the end every process that was there at the start has
    gone and as many are ready; and no executor was ever told to leave while another one was missing."""
    rng = random.Random(seed)
    names = tuple("abcde"[: rng.randint(1, 5)])
    starts = rng.random() < 0.3
    fleet = FleetModel(
        names=names,
        restart_s=None if starts else rng.uniform(0, 6),
        leave_s=rng.uniform(0, 5),
        same_pid=rng.random() < 0.3,
    )
    kinds = ["kill"] * rng.randint(0, 4) + ["blink"] * rng.randint(0, 4) + ["restart"] * rng.randint(0, 2)
    faults = {rng.randrange(100): kind for kind in kinds}
    first = list(fleet.executors)
    operator = Operator(fleet, finish=rng.random() < 0.3, starts_successors=starts, timeout_s=600.0)

    def drain(epoch, *, finish, drain=fleet.drain):
        missing = len(names) - len(fleet.ready)
        waiting = [process for process in operator.rollout.queue if not process.is_present]
        assert missing <= (len(waiting) if starts else 0)
        return drain(epoch, finish=finish)

    def disturb(step):
        if step in faults and fleet.executors:
            victim = rng.choice(fleet.executors)
            match faults[step]:
                case "kill" if victim in first or not starts:  # no supervisor replaces those that we started
                    fleet.kill(victim)
                case "blink" if victim.epoch and victim.leaves_at is None:
                    fleet.blink(victim)
                case "restart":
                    fleet.restart_scheduler()

    fleet.drain = drain
    rollout = operator.run(disturb)
    assert rollout.stopped == ""
    assert [one.name for one in rollout.replaced] == list(names)
    assert not [one for one in first if one in fleet.executors], "an old one was taken for a successor"
    for _ in range(20):
        fleet.tick()
    assert len(fleet.ready) >= len(names)
