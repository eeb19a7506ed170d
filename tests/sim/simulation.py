"""One run: a seed and a profile make everything else."""

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from common import messages as m
from common.plan import ExecutorLimits
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.fleet.fleet import MAX_MEMBERS
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.core.scheduling.pools import LONGEST_WAIT_S
from tests.sim.checks import check_abandoned, check_end, check_ghosts, is_quiet
from tests.sim.clients import Client
from tests.sim.disk import Disk
from tests.sim.faults.injector import Injector
from tests.sim.frontends import FrontendProcess
from tests.sim.intruder import Intruder
from tests.sim.keeper_link import pool_bytes
from tests.sim.keepers import ROOM_FOR_ALL, KeeperHost
from tests.sim.machine import Machine
from tests.sim.models import HIDDEN_SIZE, LIBRARIES, LIBRARY, VOCAB_SIZE, Build, capacity
from tests.sim.network import Network
from tests.sim.pool_book import TOO_LATE_S
from tests.sim.profiles import PROFILES, Profile
from tests.sim.rack import Machines, Rack
from tests.sim.service import Service
from tests.sim.sockets import Port
from tests.sim.steps import Pace
from tests.sim.witness import Patience, Witness
from tests.sim.workload import LONGEST_PROMPT, Shares, Workload
from tests.sim.world import World
from tests.support.pool_limits import TASKS

FLEET = 64  # executors of a large fleet; the largest has as many as there may be
FLEETS_EVERY = 200  # seeds
LARGEST_EVERY = 16  # of these
LIMIT_S = 400.0  # of virtual time: by then the longest wait is over, that for a first step that never ends
LOOK_S = 0.15  # between two looks whether the run is over
NEAR_CAPACITIES = (6, 1000)  # messages on their way to a frontend
ROOMS = 40  # more sequences than come
SPAN_S = 1.2  # in which requests and faults come


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        failure: why it failed, empty if it did not.
        endings: of the sequences, as clients heard of them.
        clients: how they ended.
        moments: what happened in the core, and how often.
    """

    seed: int
    profile: str
    requests: int
    faults: Counter[str]
    virtual_s: float
    digest: str
    failure: str = ""
    endings: Counter[str] = field(default_factory=Counter)
    clients: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)


def simulate(seed: int, profile: str = "", trace: Callable[[str], None] | None = None) -> Outcome:
    """Run a seed.

    Args:
        profile: name of a mix of faults; empty lets the seed choose.
        trace: is given the run's story line by line.
    """
    name = profile or profile_of(seed)
    simulation = Simulation(seed, PROFILES[name], trace)
    failure = ""
    try:
        simulation.run()
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        failure = f"{type(error).__name__}: {error} (at {simulation.world.now:.4f} s, {where.name}:{where.lineno})"
        simulation.world.say("failure", traceback.format_exc())
    world = simulation.world
    return Outcome(
        seed=seed,
        profile=name,
        requests=len(simulation.clients),
        faults=world.faults,
        virtual_s=world.now,
        digest=world.digest.hexdigest(),
        failure=failure,
        endings=simulation.endings,
        clients=Counter(client.state.value for client in simulation.clients),
        moments=simulation.witness.moments,
    )


def profile_of(seed: int) -> str:
    """The mix of faults that a seed chooses: a large fleet, which takes as long as a hundred others, in few."""
    if seed % FLEETS_EVERY == FLEETS_EVERY - 1:
        return "fleets"
    names = [name for name in PROFILES if name != "fleets"]
    return names[seed % len(names)]


class Simulation:
    """Everything of one run. It is the `Scene` of faults and checks."""

    def __init__(self, seed: int, profile: Profile, trace: Callable[[str], None] | None = None) -> None:
        self.world = world = World(seed, trace)
        self.profile = profile
        self._rng = rng = world.stream("settings")
        grace_s = rng.choice([0.0, 0.1, 0.1, 0.5, 2.0, 5.0, 5.0])
        self.patience = Patience(grace_s, world.stream("returns").choice([0.1, 0.4, 1.0, 5.0]))
        keeps = world.stream("keeps")
        self._adoption_wait_s = keeps.choice([0.2, 1.0, LONGEST_WAIT_S])
        waits_s = (profile.pool_grace_s, self._adoption_wait_s)
        self.witness = Witness(world, self.patience, *waits_s, is_roomy=profile.is_roomy)
        has_pools = world.stream("pools").random() < profile.pools
        has_libraries = world.stream("libraries").random() < profile.libraries
        self.builds = self._pools() if has_pools else self._builds()
        if has_libraries:
            self.builds = self._with_libraries(self.builds)
        tasks = world.stream("tasks")
        has_tasks = tasks.random() < profile.tasks
        if has_tasks:
            self.builds = _with_tasks(tasks, self.builds)
        self.models = list(dict.fromkeys(build.model for build in self.builds))
        far = Network(world, rng.choice([(0.0001, 0.001), (0.001, 0.004), (0.0, 0.03)]), rng.choice([16, 64]))
        near = Network(world, (0.00005, 0.001), rng.choice(NEAR_CAPACITIES))
        self.executor_port, self.frontend_port = Port(far), Port(near)
        self.disk = Disk(world) if rng.random() < profile.journal else None
        ports = (self.executor_port, self.frontend_port)
        self.machine = Machine(world)
        processes = (self.disk, self.machine, self.witness, self._kill_frontend)
        self.service = Service(world, self._config(), *ports, *processes)
        num_executors = rng.randint(*profile.executors)
        if num_executors == FLEET and seed // FLEETS_EVERY % LARGEST_EVERY == LARGEST_EVERY - 1:
            num_executors = MAX_MEMBERS
        builds = [self.builds[i % len(self.builds)] for i in range(num_executors)]
        pace = Pace(rng.choice(profile.step_s), rng.choice([0.0, 0.0005]), late_s=rng.uniform(0.3, 3.0))
        self.keepers = self._keepers(keeps, builds) if keeps.random() < profile.keeps else []
        num_standbys = tuple(keeps.randint(*profile.standbys) for _ in builds) if self.keepers else ()
        asks = bool(self.keepers) and world.stream("roles").random() < 0.3
        machines = Machines(tuple(self.keepers), num_standbys, asks)
        self.rack = Rack(world, self.executor_port, builds, pace, machines)
        self.frontends = [FrontendProcess(world, self.frontend_port, i) for i in range(rng.randint(1, 3))]
        self.clients: list[Client] = []
        sizes = sorted((capacity(build.limits) for build in self.builds), reverse=True) if has_pools else []
        shares = Shares(grammars=0.6 if has_libraries else 0.0, pooled=tasks.choice([0.3, 0.6]) if has_tasks else 0.0)
        self._workload = Workload(world.stream("workload"), profile.max_tokens, sizes, shares)
        self._clients_rng = world.stream("clients")
        self._num_expected = 0
        self._is_over = False
        self._expect_clients()
        self._injector = Injector(self, profile, SPAN_S)

    @property
    def endings(self) -> Counter[str]:
        """How sequences ended."""
        stories = [story for client in self.clients for story in client.stories]
        return Counter("none" if s.ending is None else s.ending.finish_reason for s in stories)

    def run(self) -> None:
        """Run it to its end, and check what there is to check then."""
        self.service.start()
        self.world.after(LOOK_S, self._look)
        self.world.run(LIMIT_S, lambda: self._is_over)
        check_end(self, is_over=self._is_over)

    # --- what faults need ---

    def add_client(self) -> Client:
        """A client comes, with a request like any other."""
        odd = self._clients_rng.random() < 0.02
        return self._start(self._workload.odd() if odd else self._workload.request())

    def ask_again(self, client: Client) -> None:
        """A client comes, with a new request for what another one had asked for."""
        self._start(self._workload.again(client.submit))

    def restart_frontend(self, frontend: FrontendProcess, after_s: float | None = None) -> None:
        """A frontend dies, and another takes its place, by default soon."""
        frontend.kill()
        self.frontends.remove(frontend)
        wait_s = self._clients_rng.uniform(0.05, 0.8) if after_s is None else after_s
        self.world.after(wait_s, self._start_frontend, frontend.number)
        if not self.frontends and after_s is None:
            self._start_frontend(9)

    def call_unknown(self) -> None:
        """A client attaches to a request that never was."""
        Intruder(self.world, self.frontends, "nobody").attach()

    def call_twin(self, client: Client) -> None:
        """A client submits a request with the id of another."""
        Intruder(self.world, self.frontends, client.id).submit(client.submit)

    # --- inside ---

    def _kill_frontend(self, pid: int) -> None:
        """The core ends a frontend that hangs."""
        for frontend in [frontend for frontend in self.frontends if frontend.pid == pid]:
            self.restart_frontend(frontend)

    def _builds(self) -> list[Build]:
        """Releases of the executor: of other models, and of other sizes. The first can hold every request."""
        rng, longest = self._rng, LONGEST_PROMPT + self.profile.max_tokens
        builds = []
        for i in range(self.profile.num_builds):
            fingerprint, dtype = rng.choice([("a", "bf16"), ("a", "f32"), ("b", "f32")]) if i else ("a", "f32")
            is_large = i == 0 or rng.random() < 0.7
            positions = longest + rng.choice([0, 8, 40, 100]) if is_large else longest * 2 // 3
            block_size = rng.choice([1, 2, 3, 4, 8, 16])
            limits = ExecutorLimits(
                num_blocks=-(-positions // block_size) * (ROOMS if self.profile.is_roomy else 1) + rng.randint(0, 3),
                block_size=block_size,
                max_num_seqs=rng.choice([1, 2, 4, 8]),
                max_batch_tokens=rng.choice(self.profile.budgets),
                max_model_len=positions,
                vocab_size=VOCAB_SIZE,
                hidden_size=HIDDEN_SIZE,
            )
            builds.append(Build(fingerprint, dtype, limits, is_large))
        return builds

    def _pools(self) -> list[Build]:
        """Releases whose pools differ, some by one block. Any of them may come anywhere."""
        rng = self._rng
        longest = LONGEST_PROMPT + self.profile.max_tokens
        most = longest + rng.choice([0, 8, 40, 100])
        sizes = [most, *rng.choices([most, most, longest, most // 2, 12], k=self.profile.num_builds - 1)]
        block_size = rng.choice([1, 2, 3, 4, 8, 16])
        builds = []
        for i, size in enumerate(sizes):
            num_blocks = max(2, -(-size // block_size) - (i > 0 and rng.random() < 0.6))
            limits = ExecutorLimits(
                num_blocks=num_blocks,
                block_size=block_size,
                max_num_seqs=rng.choice([1, 2, 4, 8]),
                max_batch_tokens=rng.choice(self.profile.budgets),
                max_model_len=num_blocks * block_size + rng.choice([-1, 0, 0, 100]),
                vocab_size=VOCAB_SIZE,
                hidden_size=HIDDEN_SIZE,
            )
            model = rng.choice([("a", "f32"), ("a", "f32"), ("a", "f32"), ("b", "f32")])
            builds.append(Build(*model, limits))
        return builds

    def _with_libraries(self, builds: list[Build]) -> list[Build]:
        """The releases with one, two or three libraries, one of which may be none."""
        rng = self.world.stream("versions")
        versions = rng.sample(LIBRARIES, rng.randint(1, 3))
        return [replace(build, library=rng.choice(versions)) for build in builds]

    def _keepers(self, rng: Random, builds: list[Build]) -> list[KeeperHost]:
        """A keeper on each machine; some have no room for all pools."""
        largest = max(map(pool_bytes, self.builds))
        max_bytes = [rng.choice([ROOM_FOR_ALL] * 5 + [largest, 2 * largest]) for _ in builds[: rng.randint(1, 2)]]
        return [KeeperHost(self.world, i, each, self.witness.moments) for i, each in enumerate(max_bytes)]

    def _config(self) -> CoreConfig:
        rng, profile = self._rng, self.profile
        scheduler = SchedulerConfig(
            window=rng.choice([1, 2, 2, 2, 3]),
            max_waiting=profile.max_waiting,
            look_ahead=rng.random() < 0.7,
            pool_grace_s=profile.pool_grace_s,
            task_grace_s=profile.pool_grace_s,
            grammars=LIBRARY,
            adoption_wait_s=self._adoption_wait_s,
        )
        return CoreConfig(
            model="sim",
            scheduler=scheduler,
            step_floor_s=rng.choice([0.4, 1.0]),
            reconnect_grace_s=self.patience.grace_s,
            return_within_s=self.patience.return_within_s,
        )

    def _expect_clients(self) -> None:
        rng, profile = self._clients_rng, self.profile
        span_s = max(SPAN_S, profile.spacing_s * profile.num_faults[1])
        self._num_expected = rng.randint(*profile.requests)
        for _ in range(self._num_expected):
            self.world.at(rng.choice([0.0, 0.2, rng.uniform(0.0, span_s)]), self._expected_client)
        for _ in range(rng.randint(min(1, profile.num_poisoned), profile.num_poisoned)):
            self._num_expected += 1
            self.world.at(rng.uniform(0.0, 1.0), self._expected_client, self._workload.poison())

    def _expected_client(self, submit: m.Submit | None = None) -> None:
        self._num_expected -= 1
        if submit is None:
            self.add_client()
        else:
            self._start(submit)

    def _start(self, submit: m.Submit) -> Client:
        rng = self.world.stream(f"client {submit.request_id}")
        client = Client(self.world, rng, submit, self.frontends, self.witness, self.models)
        self.clients.append(client)
        client.start()
        return client

    def _start_frontend(self, number: int) -> None:
        self.frontends.append(FrontendProcess(self.world, self.frontend_port, number))

    def _look(self) -> None:
        """The run is over when nothing will happen any more that matters."""
        if self.service.core is not None:
            if self.profile.keeps_promptly:
                since = self.world.now - self.patience.grace_s - LOOK_S - TOO_LATE_S
                check_abandoned(self.service.core, self.clients, since)
            if not self.service.is_frozen:
                check_ghosts(self.service.core, self.clients, self.witness)
        expected = self._num_expected == 0 and self._injector.is_done
        settled = expected and all(client.is_settled for client in self.clients)
        self._is_over = settled and is_quiet(self)
        self.world.after(LOOK_S, self._look)


def _with_tasks(rng: Random, builds: list[Build]) -> list[Build]:
    """The releases with tasks, of which the first has all, and others of the first one's model. A release counts as
    large only if it takes all tasks: where one has to hold what the others cannot, none waits for ever."""
    several: list[tuple[m.Task, ...]] = [TASKS, ("generate", "score"), ("embed",), ("generate",), ("embed", "score")]
    chosen = [TASKS, *rng.choices(several, k=len(builds) - 1 + 2)]
    pairs = zip([*builds, builds[0], builds[0]], chosen, strict=True)
    return [
        replace(build, limits=replace(build.limits, tasks=tasks), is_large=build.is_large and tasks == TASKS)
        for build, tasks in pairs
    ]
