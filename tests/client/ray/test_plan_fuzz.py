"""Whatever happens to a cluster, its fleet is complete again some time after."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler_svc.client.ray.facts import Goal
from scheduler_svc.client.ray.plan import FleetPlan
from tests.client.ray.fake_ray import FakeRay, next_revision

SETTLE_S = 600.0
MAX_EXECUTORS = 6


class Cluster(RuleBasedStateMachine):
    """Nodes come and go, actors and managers die, operators scale and roll out; the fake asserts what must not be."""

    def __init__(self):
        super().__init__()
        self.ray = FakeRay()
        self.plan = FleetPlan(Goal(3, scales=True), "a" * 8)

    @property
    def staying(self):
        return sorted(node for node in self.ray.capacity if node not in self.ray.drain_by)

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.0, 10.0, 40.0]))
    def time_passes(self, seconds):
        end = self.ray.now + seconds
        while self.ray.now < end:
            for node in [node for node, at in self.ray.drain_by.items() if at <= self.ray.now]:
                self.ray.kill_node(node)
            self.ray.run(self.plan, 0.25)

    @rule(data=st.data())
    @precondition(lambda self: len(self.staying) > 1)
    def a_node_dies(self, data):
        self.ray.kill_node(data.draw(st.sampled_from(sorted(self.ray.capacity))))

    @rule(room=st.integers(1, 3))
    @precondition(lambda self: len(self.ray.ever) < 20)
    def a_node_comes(self, room):
        self.ray.add_node(room)

    @rule(data=st.data(), seconds=st.sampled_from([1.0, 15.0, 60.0, float("inf")]))
    @precondition(lambda self: len(self.staying) > 1)
    def a_node_is_to_go(self, data, seconds):
        self.ray.drain_by[data.draw(st.sampled_from(self.staying))] = self.ray.now + seconds

    @rule(data=st.data())
    @precondition(lambda self: self.ray.hosts)
    def an_actor_dies(self, data):
        self.ray.kill(data.draw(st.sampled_from(sorted(self.ray.hosts, key=str))))

    @rule()
    def the_manager_dies(self):
        self.plan = FleetPlan(self.plan.goal, "a" * 8)

    @rule(wanted=st.one_of(st.none(), st.integers(0, MAX_EXECUTORS)))
    def the_scheduler_wants(self, wanted):
        self.ray.wanted = wanted

    @rule(by_standby=st.booleans(), standby=st.booleans(), bad=st.booleans())
    def an_operator_rolls_out(self, by_standby, standby, bad):
        self.plan = next_revision(self.plan, by_standby=by_standby, standby=standby)
        if bad:
            self.ray.bad_revisions.add(self.plan.goal.revision)

    @invariant()
    def no_more_places_than_wanted_but_those_that_are_left(self):
        ray = self.ray
        left = {slot for slot, node in ray.places.items() if node in ray.drain_by or slot in ray.lost}
        left |= {name.slot for name in ray.executors() if ray.hosts[name].leave_at is not None}
        assert len(ray.places.keys() - left) <= MAX_EXECUTORS

    def teardown(self):
        self.ray.drain_by = {node: at for node, at in self.ray.drain_by.items() if at < float("inf")}
        if self.plan.goal.revision in self.ray.bad_revisions:
            self.plan = next_revision(self.plan)
        for _ in range(4):
            self.ray.add_node(2)
        end = self.ray.now + SETTLE_S
        while not (self.plan.is_complete(self.ray.look()) and not self.ray.drain_by):
            assert self.ray.now < end, self.ray.story()
            self.time_passes(1.0)


TestCluster = Cluster.TestCase
