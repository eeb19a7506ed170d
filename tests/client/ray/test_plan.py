"""What the manager of a fleet on Ray decides, on a cluster in virtual time."""

import pytest

from scheduler_svc.client.ray.facts import Goal, HostName, Leave, RemovePlace, StartExecutor
from scheduler_svc.client.ray.places import HAND_OVER_S, PATIENCE_S
from scheduler_svc.client.ray.plan import IDLE_S, RETRY_S, STRAY_STANDBY_S, FleetPlan
from tests.client.ray.fake_ray import FakeRay, next_revision

A, B, C = "a" * 8, "b" * 8, "c" * 8


def fleet(executors: int = 3, **goal) -> tuple[FakeRay, FleetPlan]:
    ray, plan = FakeRay(), FleetPlan(Goal(executors, **goal), A)
    ray.run_until_complete(plan)
    ray.min_ready = 99
    return ray, plan


def test_a_fleet_starts():
    ray, plan = fleet(3)
    assert ray.ready() == {"executor-0-0", "executor-1-0", "executor-2-0"}
    assert {name.where for name in ray.hosts if name.role == "keeper"} == {A, B}
    count = len(ray.actions)
    ray.run(plan, 60)
    assert len(ray.actions) == count, "nothing is left to be done"


def test_what_waits_for_resources_starts_when_they_come():
    ray = FakeRay(capacity={A: 1})
    plan = FleetPlan(Goal(2), A)
    ray.run(plan, 30)
    assert ray.ready() == {"executor-0-0"}
    ray.add_node()
    ray.run_until_complete(plan)


def test_an_executor_whose_actor_dies_is_started_again_in_its_place():
    ray, plan = fleet(3)
    ray.kill(HostName("executor", "1", 0, 1))
    assert ray.run_until_complete(plan) < 5
    assert ray.places == {0: A, 1: A, 2: B}


def test_one_that_dies_again_and_again_is_started_less_and_less_often():
    ray, plan = fleet(1)
    starts = len(ray.actions)
    for _ in range(240):
        for name in ray.executors():
            ray.kill(name)
        ray.run(plan, 0.5)
    assert 5 <= len(ray.actions) - starts <= 9


@pytest.mark.parametrize("node", [A, B])
def test_a_node_that_dies(node):
    ray, plan = fleet(4)
    ray.kill_node(node)
    ray.run_until_complete(plan)
    assert node not in ray.places.values()


def test_what_is_lost_with_the_schedulers_node_is_said():
    ray, plan = fleet(2)
    ray.kill_node(A)
    ray.run_until_complete(plan)
    assert [line for line in ray.said if "requests that were open are lost" in line]
    ray, plan = fleet(2, journal_is_shared=True)
    ray.kill_node(A)
    ray.run_until_complete(plan)
    assert not ray.said


def test_the_scheduler_comes_back_where_its_journal_is():
    ray, plan = fleet(2)
    scheduler = next(name for name in ray.hosts if name.role == "scheduler")
    ray.kill(scheduler)
    ray.run_until_complete(plan)
    assert ray.hosts[scheduler].node == A
    assert not ray.said


def test_a_node_that_is_to_go_is_left_when_others_serve():
    ray, plan = fleet(3)
    ray.drain_by[B] = ray.now + 100
    ray.run_until_complete(plan)
    assert ray.min_ready == 3, "the executor left before there was another one"
    assert B not in ray.places.values()


def test_a_node_that_is_to_go_is_left_in_time_when_there_is_no_room():
    ray, plan = fleet(6)
    ray.drain_by[B] = ray.now + 60
    ray.run(plan, 60 - HAND_OVER_S - 1)
    assert len(ray.ready()) == 6
    ray.run(plan, 3)
    assert len(ray.ready()) == 4
    ray.kill_node(B)
    ray.add_node()
    ray.run_until_complete(plan)


def test_a_node_that_is_to_go_at_no_known_time_is_left_after_a_while():
    ray, plan = fleet(6)
    ray.drain_by[B] = float("inf")
    ray.run(plan, PATIENCE_S - 5)
    assert len(ray.ready()) == 6
    ray.run(plan, 10)
    assert len(ray.ready()) == 4


def test_a_scheduler_with_a_shared_journal_leaves_a_node_that_is_to_go_at_once():
    ray, plan = fleet(2, journal_is_shared=True)
    ray.drain_by[A] = ray.now + 1000
    ray.run_until_complete(plan)
    ray.run(plan, 1)
    assert all(host.node != A for host in ray.hosts.values())


def test_a_scheduler_whose_journal_is_there_alone_stays_as_long_as_it_can():
    ray, plan = fleet(2)
    scheduler = next(name for name in ray.hosts if name.role == "scheduler")
    ray.drain_by[A] = ray.now + 60
    ray.run(plan, 60 - HAND_OVER_S - 1)
    assert ray.hosts[scheduler].leave_at is None
    ray.run(plan, 2)
    assert scheduler not in ray.hosts or ray.hosts[scheduler].leave_at is not None or ray.hosts[scheduler].node != A


def test_scaling_up_and_down_by_what_the_scheduler_wants():
    ray, plan = fleet(2, scales=True)
    ray.wanted, ray.drain_first = 4, ("executor-1-0", "executor-0-0")
    ray.run_until_complete(plan)
    ray.wanted = 3
    ray.run_until_complete(plan)
    assert ray.ready() == {"executor-0-0", "executor-2-0", "executor-3-0"}
    ray.wanted, ray.drain_first = 2, ()
    ray.run_until_complete(plan)
    assert ray.ready() == {"executor-0-0", "executor-2-0"}, "the youngest leaves where none is named"


@pytest.mark.parametrize("is_new", [False, True])
def test_a_scheduler_that_does_not_know_yet_how_many_it_wants_changes_nothing(is_new):
    ray, plan = fleet(1, scales=True)
    ray.wanted = 4
    ray.run_until_complete(plan)
    ray.min_ready, ray.wanted = 99, None
    if is_new:
        plan = FleetPlan(plan.goal, A)
    ray.run(plan, 30)
    assert ray.min_ready == 4
    ray.drain_by[B] = ray.now + 100
    ray.run_until_complete(plan)
    assert len(ray.ready()) == 4, "those that are replaced are not counted twice"


def test_a_place_without_resources_goes_before_one_that_serves():
    ray = FakeRay(capacity={A: 2})
    plan = FleetPlan(Goal(3, scales=True), A)
    ray.run(plan, 20)
    assert len(ray.ready()) == 2
    ray.wanted, ray.drain_first = 2, ("executor-0-0",)
    ray.run_until_complete(plan)
    assert len(ray.ready()) == 2
    assert not any(isinstance(action, Leave) for action in ray.actions)


def test_a_standby_for_each():
    ray, plan = fleet(2, standby=True)
    assert len(ray.executors()) == 4
    ray.kill(HostName("executor", "0", 0, 1))
    ray.run(plan, 1)
    assert ray.ready() == {"executor-0-1", "executor-1-0"}, "the standby goes on"
    ray.run_until_complete(plan)
    assert len(ray.executors()) == 4


@pytest.mark.parametrize("standby", [False, True])
def test_a_rollout_by_standby(standby):
    ray, plan = fleet(3, standby=standby)
    plan = next_revision(plan, by_standby=True)
    ray.run_until_complete(plan)
    assert {name.revision for name in ray.executors()} == {2}
    assert ray.min_ready >= 2  # one at a time, while its successor takes over
    assert ray.max_places == 3


def test_a_rollout_without_standbys():
    ray, plan = fleet(3)
    plan = next_revision(plan)
    ray.run_until_complete(plan)
    assert {name.revision for name in ray.executors()} == {2}
    assert ray.min_ready == 2, "one at a time"
    assert not any(isinstance(action, StartExecutor) and action.beside for action in ray.actions)


@pytest.mark.parametrize("by_standby", [False, True])
def test_a_rollout_to_what_cannot_run_ends_at_the_first(by_standby):
    ray, plan = fleet(3)
    ray.bad_revisions = {2}
    plan = next_revision(plan, by_standby=by_standby)
    ray.run(plan, 120)
    assert len(ray.ready()) == (3 if by_standby else 2)
    assert ray.min_ready == len(ray.ready())
    eventually_failed = [ray.run(plan, 1) or plan.failures(ray.look()) for _ in range(10)]
    assert max(map(len, eventually_failed)) == 1
    plan = next_revision(plan)
    assert plan.failures(ray.look()) == [], "what is to be replaced is no failure of this rollout"
    ray.run_until_complete(plan)
    assert {name.revision for name in ray.executors()} == {3}


@pytest.mark.parametrize("by_standby", [False, True])
def test_a_rollout_waits_for_a_scheduler_that_restarts(by_standby):
    """That nothing is known to serve does not mean that nothing would be lost."""
    ray, plan = fleet(4)
    plan = next_revision(plan, by_standby=by_standby)
    ray.run(plan, 3)
    ray.kill(next(name for name in ray.hosts if name.role == "scheduler"))
    least = 99
    for _ in range(200):
        ray.run(plan, 0.25)
        serving = sum(1 for host in ray.hosts.values() if host.name.role == "executor" and ray.serves(host))
        least = min(least, serving)
    assert least >= 3
    assert plan.is_complete(ray.look())


def test_a_node_that_is_to_go_with_the_scheduler_keeps_its_executors_where_there_is_no_room():
    ray = FakeRay(capacity={A: 2, B: 2})
    plan = FleetPlan(Goal(4, journal_is_shared=True), A)
    ray.run_until_complete(plan)
    ray.drain_by[A] = ray.now + 3600
    ray.run(plan, 600)
    assert len(ray.ready()) == 4
    assert all(host.node != A for host in ray.hosts.values() if host.name.role == "scheduler")


def test_a_rollout_does_not_wait_for_places_that_wait_for_resources():
    ray = FakeRay(capacity={A: 2})
    plan = FleetPlan(Goal(3), A)
    ray.run(plan, 20)
    plan = next_revision(plan)
    ray.run(plan, 60)
    assert [name.revision for name in ray.executors()] == [2, 2]


def test_an_executor_that_does_not_serve_is_replaced_first_and_not_at_once():
    ray, plan = fleet(3)
    last = HostName("executor", "2", 0, 1)
    ray.hosts[last].deaf = True
    plan = next_revision(plan)
    ray.run(plan, IDLE_S - 2)
    assert not any(isinstance(action, Leave) for action in ray.actions)
    ray.run(plan, 3)
    assert [action for action in ray.actions if isinstance(action, Leave)] == [Leave(last)]


def test_what_fails_is_tried_again_after_a_while():
    ray, plan = FakeRay(bad_revisions={1}), FleetPlan(Goal(1), A)
    ray.run(plan, RETRY_S / 2)
    (name,) = ray.executors()
    assert plan.failures(ray.look())
    ray.bad_revisions.clear()
    ray.run(plan, RETRY_S + 10)
    assert plan.is_complete(ray.look())
    assert name in ray.executors()


@pytest.mark.parametrize("role", ["scheduler", "keeper"])
def test_a_scheduler_or_keeper_that_fails_is_tried_again(role):
    ray, plan = fleet(1)
    host = next(host for host in ray.hosts.values() if host.name.role == role)
    host.failed = True
    ray.run(plan, RETRY_S + 20)
    assert plan.is_complete(ray.look())
    assert not any(host.failed for host in ray.hosts.values())


def test_a_standby_that_fails_does_not_keep_its_executor_from_starting_again():
    ray, plan = fleet(1, standby=True)
    standby = next(host for host in ray.hosts.values() if host.name.role == "executor" and not ray.serves(host))
    standby.failed = True
    ray.run(plan, 1)
    ray.kill(HostName("executor", "0", 0, 1))
    ray.run(plan, 10)
    assert len(ray.ready()) == 1


def test_a_successor_that_dies_at_once_is_started_less_and_less_often():
    ray, plan = fleet(1)
    plan = next_revision(plan, by_standby=True)
    for _ in range(240):
        ray.run(plan, 0.5)
        for name in ray.executors():
            if name.revision == 2:
                ray.kill(name)
    starts = sum(1 for action in ray.actions if isinstance(action, StartExecutor) and action.beside)
    assert 5 <= starts <= 9


def test_no_executor_starts_while_the_scheduler_leaves():
    ray, plan = fleet(2)
    scheduler = next(host for host in ray.hosts.values() if host.name.role == "scheduler")
    scheduler.leave_at = ray.now + 1000  # it takes its time
    count = len(ray.actions)
    ray.kill(HostName("executor", "1", 0, 1))
    ray.run(plan, 20)
    assert not any(isinstance(action, StartExecutor) for action in ray.actions[count:])


def test_a_place_that_is_too_many_is_not_taken_from_an_executor_that_hands_over():
    ray, plan = fleet(2, scales=True)
    ray.hosts[HostName("executor", "1", 0, 1)].leave_at = ray.now + 1000  # told by a rollout, and at it
    ray.wanted = 1
    ray.run(plan, 5)
    assert RemovePlace(1) not in ray.actions


def test_a_rollout_goes_on_under_another_manager():
    ray, plan = fleet(4)
    plan = next_revision(plan, by_standby=True)
    for _ in range(200):
        ray.run(plan, 0.5)
        plan = FleetPlan(plan.goal, A)  # knows nothing
        if plan.is_complete(ray.look()):
            break
    assert plan.is_complete(ray.look()), ray.story()
    assert ray.min_ready >= 3


def test_a_standby_whose_executors_memory_is_gone_is_replaced():
    ray, plan = fleet(1)
    plan = next_revision(plan, by_standby=True)
    ray.run(plan, 1)
    new = next(name for name in ray.executors() if name.revision == 2)
    ray.kill(HostName("executor", "0", 0, 1))
    for host in ray.hosts.values():
        host.active = False
    ray.serves = lambda host: host.active and ray.is_up(host)  # a keeper that has lost the pool
    ray.run(plan, STRAY_STANDBY_S + 15)
    assert new not in ray.hosts or ray.hosts[new].active
    assert plan.is_complete(ray.look()), ray.story()


def test_down():
    ray, plan = fleet(3, standby=True)
    plan.is_stopping = True
    ray.run(plan, 10)
    assert plan.is_down(ray.look())
    left = [str(action.name.role) for action in ray.actions if isinstance(action, Leave)]
    assert left == ["scheduler"] + ["executor"] * 6, "the executors finish its open answers"
