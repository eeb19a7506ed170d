"""The pure keeper in any order of events: leases, room and handles stay right."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common import messages as m
from keeper_svc.readers import READER_TIMEOUT_S
from tests.keeper_svc.world import NUM_BLOCKS, OTHER_POOL, POOL, WEIGHTS, Executor, World
from tests.support.effort import examples

MAX_BYTES = 500
KINDS = st.sampled_from([POOL, OTHER_POOL])
SIZES = st.sampled_from([50, 100, 200, 501])
FINGERPRINTS = st.sampled_from(["f", "g"])
SOURCES = st.sampled_from(["", "files 1", "files 2"])


class Events(RuleBasedStateMachine):
    """Beside the keeper, what its messages let each process believe."""

    @initialize()
    def begin(self):
        self.world = World(MAX_BYTES, keep_for_s=20.0)
        self.living: list[Executor] = []
        self.holds: dict[Executor, str] = {}  # pools that a living process may write
        self.leases: dict[str, int] = {}
        self.seen: dict[int, int] = {}

    @rule(can_signal=st.booleans())
    def start(self, can_signal):
        if len(self.living) < 6:
            self.living.append(Executor(self.world, can_signal=can_signal))

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def end(self, data):
        executor = data.draw(st.sampled_from(self.living))
        self.living.remove(executor)
        self.holds.pop(executor, None)
        executor.end()
        self.world.do(self.world.keeper.connection_closed(executor.connection, self.world.now))

    @precondition(lambda self: self.living)
    @rule(data=st.data(), is_killed=st.sampled_from(["", "before", "after"]))
    def release(self, data, is_killed):
        """The process writes its pool no more, and says so; it may be killed while the message is on its way."""
        executor = self._some(data)
        self.holds.pop(executor, None)
        if is_killed:
            self.living.remove(executor)
        if is_killed == "before":
            executor.end()
        self.world.send(executor.connection, m.ReleaseLease())
        if is_killed == "after":
            executor.end()
        assert is_killed or executor.last == m.LeaseReleased()
        assert all(
            pool.holder is None or pool.holder.instance != executor.instance for pool in self.world.keeper.shelf.pools
        )

    @precondition(lambda self: self.living)
    @rule(data=st.data(), kind=KINDS, wait=st.booleans())
    def lease(self, data, kind, wait):
        self._some(data).lease(kind=kind, wait=wait)

    @precondition(lambda self: self.living)
    @rule(data=st.data(), kind=KINDS)
    def ask_role(self, data, kind):
        self._some(data).send(m.AskRole(kind=kind))

    @precondition(lambda self: self.living)
    @rule(data=st.data(), kind=KINDS, num_bytes=SIZES)
    def deposit(self, data, kind, num_bytes):
        executor = self._some(data)
        self.holds.pop(executor, None)  # the process lets go of the old one
        executor.deposit(kind=kind, num_bytes=num_bytes)

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def give_up(self, data):
        executor = self._some(data)
        self.holds.pop(executor, None)
        executor.send(m.GivePoolUp())

    @precondition(lambda self: self.living and self.leases)
    @rule(data=st.data(), lease=st.integers(1, 9))
    def deposit_a_name_that_was_seen(self, data, lease):
        executor = self._some(data)
        pool = data.draw(st.sampled_from(sorted(self.leases)))
        if any(kept.name == pool for kept in self.world.keeper.shelf.pools):
            executor.deposit(pool, lease)
            answers = [type(message) for message in executor.received if not isinstance(message, m.Standbys)]
            assert answers[-1] is (m.PoolLeased if self.holds.get(executor) == pool else m.Refused)
        elif pool not in self.holds.values():
            self.holds.pop(executor, None)  # the process lets go of the old one
            self.leases.pop(pool)  # to the keeper it is new
            executor.deposit(pool, lease)

    @precondition(lambda self: self.living)
    @rule(data=st.data(), fingerprint=FINGERPRINTS, source=SOURCES, num_bytes=SIZES, find=st.booleans())
    def weights(self, data, fingerprint, source, num_bytes, find):
        executor = self._some(data)
        if find:
            executor.find_weights("" if source else fingerprint, source, reads=data.draw(st.booleans()))
        else:
            executor.deposit_weights(fingerprint, source, num_bytes)

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def reconnect(self, data):
        executor = data.draw(st.sampled_from(self.living))
        if executor.connection in self.world.inboxes and data.draw(st.booleans()):
            executor.disconnect()
        executor.register_again()

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def disconnect(self, data):
        self._some(data).disconnect()

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def watch(self, data):
        executor = data.draw(st.sampled_from(self.living))
        message = m.Watch(version=m.KEEPER_VERSION, instance=executor.instance)
        self.world.send(self.world.connect(), message)

    @precondition(lambda self: self.living)
    @rule(data=st.data(), state=st.sampled_from(["serving", "seeking", "stuck"]))
    def alive(self, data, state):
        self._some(data).send(m.Alive(state=state))

    @precondition(lambda self: self.living)
    @rule(data=st.data(), num_beside=st.integers(0, 2))
    def nonsense(self, data, num_beside):
        executor = self._some(data)
        message = data.draw(
            st.sampled_from(
                [
                    m.DepositWeights(kind=WEIGHTS, fingerprint="f", num_bytes=1),
                    m.LeasePool(kind=POOL, num_blocks=NUM_BLOCKS),
                    m.Register(version=m.KEEPER_VERSION, instance=executor.instance, name="n", pid=1),
                ]
            )
        )
        self.world.send(executor.connection, message, *(self.world.process() for _ in range(num_beside)))

    @rule(name=st.sampled_from(["", "0", "f"]), device=st.sampled_from(["", "cpu", "GPU-1"]))
    def drop(self, name, device):
        connection = self.world.connect()
        self.world.send(connection, m.DropKept(name=name, device=device))
        self.world.send(connection, m.KeeperQuery())
        self.world.close(connection)

    @rule(seconds=st.sampled_from([0.2, 0.9, 2.0, 30.0, 400.0]))
    def wait(self, seconds):
        self.world.now += seconds
        self.world.tick()

    @precondition(lambda self: self.world.killed)
    @rule()
    def kill_fails(self):
        self.world.do(self.world.keeper.kill_failed(self.world.killed.pop(), self.world.now))

    @invariant()
    def a_pool_has_one_living_holder(self):
        for executor in self.living:
            inbox = self.world.inboxes.get(executor.connection, [])
            for message, _ in inbox[self.seen.get(executor.connection, 0) :]:
                if isinstance(message, m.PoolLeased):
                    others = [other for other, pool in self.holds.items() if pool == message.pool]
                    assert others in ([], [executor]), "two living processes may write a pool"
                    assert message.lease >= self.leases.get(message.pool, 0) + (not others)
                    self.holds[executor] = message.pool
                    self.leases[message.pool] = message.lease
            self.seen[executor.connection] = len(inbox)

    @invariant()
    def what_is_held_is_kept(self):
        shelf = self.world.keeper.shelf
        assert shelf.num_bytes <= MAX_BYTES
        kept = {pool.name: pool.holder.instance for pool in shelf.pools if pool.holder is not None}
        for executor, pool in self.holds.items():
            assert kept[pool] == executor.instance

    @invariant()
    def a_source_is_read_by_one_connected_executor(self):
        readers = [executor for executor in self.world.keeper.executors if executor.reads]
        assert all(executor.connection is not None for executor in readers)
        counted = [each.reads.wanted for each in readers if self.world.now - each.reads.since <= READER_TIMEOUT_S]
        assert len(set(counted)) == len(counted)

    @invariant()
    def handles_are_closed_when_nothing_needs_them(self):
        kept = self.world.kept_handles()
        assert len(set(kept)) == len(kept)
        assert self.world.open == set(kept)

    def teardown(self):
        for executor in self.living:
            executor.end()
        for connection in list(self.world.inboxes):
            self.world.close(connection)
        self.world.now += 100.0
        self.world.tick()
        assert self.world.open == set()

    def _some(self, data) -> Executor:
        """One that is connected: it registers again if need be."""
        executor = data.draw(st.sampled_from(self.living))
        if executor.connection not in self.world.inboxes:
            executor.register_again()
        return executor


TestEvents = Events.TestCase
TestEvents.settings = settings(max_examples=examples(400), stateful_step_count=40)
