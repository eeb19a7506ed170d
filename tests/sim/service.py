"""The scheduler's process, life after life: the very event loop and core that `CoreProcess` runs, in virtual time."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from common import messages as m
from scheduler_svc.core.actions import Action, Peer, SendToExecutor, WriteLog
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.event_loop import EventLoop
from scheduler_svc.core.fleet import fleet as f
from scheduler_svc.core.requests.group_commit import JournalState
from scheduler_svc.core.requests.recovery import RESUME_WITHIN_S, Legacy, Loaded
from scheduler_svc.server.core_process import SETTLE_MS
from tests.sim.disk import Disk
from tests.sim.machine import Machine
from tests.sim.sockets import Port, Switch
from tests.sim.witness import Witness
from tests.sim.world import World

TURN_S = 0.0002  # from a message's arrival to the turn that takes it
SHORTEST_WAIT_S = 1e-6  # a wait that is lost in the rounding of the time would be waited for ever
TURNS_A_CHECK = 9  # of a few executors; the more there are, the longer a check takes
LONGEST_TURN_S = 0.02
FEW = 4  # executors: the more there are, the more seldom what they leave is looked at
RESTART_S = 0.1

# CPU seconds of operations, as a slow machine needs them: a turn takes virtual time, and a seed stays the same run.
MESSAGE_S, HELLO_S, RESULT_S, SUBMIT_S, CANCEL_S, LOST_S, PLAN_S = 5e-5, 1e-3, 3e-4, 2e-4, 1e-4, 1e-3, 3e-4
TICK_S, MEMBER_S, CHORE_S, EPOCH_END_S, SEQUENCE_END_S = 2e-4, 1e-5, 2e-5, 1e-3, 1e-4
KILL_WITHIN_S = 0.004
BATCHES = (1, 1, 2, 128)  # records that a batch takes of one kind: few requests make several pieces


class Service:
    """The process.

    Args:
        executors, frontends: where it listens.
        disk: its journal's; None runs without a journal.
        machine: that it runs on.
        witness: is shown everything.
        kill_frontend: kills the process with this number.

    Attributes:
        core: of the present life; None while the process is dead.
    """

    def __init__(
        self,
        world: World,
        config: CoreConfig,
        executors: Port,
        frontends: Port,
        disk: Disk | None,
        machine: Machine,
        witness: Witness,
        kill_frontend: Callable[[int], object],
    ) -> None:
        self.core: Core | None = None
        self._world = world
        self._rng = world.stream("service")
        self._config = config
        self._ports = (executors, frontends)
        self._disk = disk
        self._machine = machine
        self._witness = witness
        self._kill_frontend = kill_frontend
        self._num_turns = 0
        self._turn_at = 0.0
        self._free_at = 0.0  # when the last turn has used its CPU time
        self._frozen_until = 0.0
        self._is_stopping = False
        self._kill_when = ""
        self._kill_within_s = KILL_WITHIN_S
        self._batch = tuple(world.stream("pieces").choices(BATCHES, k=2))

    def start(self) -> None:
        """Begin a life, when the one before has ended."""
        world = self._world
        if self.core is not None:
            if self._is_stopping:
                world.after(RESTART_S, self.start)
            return
        self._clock_s = self._rng.uniform(0.0, 1000.0) - world.now  # a monotonic clock starts anywhere
        loaded = self._load()
        config = replace(
            self._config,
            first_epoch=int((self.clock() + loaded.wall_offset_s) * 1e3),
            first_arrival=int((self.clock() + loaded.wall_offset_s) * 1e6),
            journal=JournalState.OFF if self._disk is None else JournalState.OK,
            first_batch=loaded.next_number,
            wall_offset_s=loaded.wall_offset_s,
        )
        self._executors = Switch(world, m.ExecutorToScheduler, self.wake)
        self._fronts = Switch(world, m.FrontendToCore, self.wake)
        self._ports[0].switch, self._ports[1].switch = self._executors, self._fronts
        self.core = _WatchedCore(config, self.clock(), self._witness, self._executors)
        ports = (self._executors, self._fronts)
        self.core.requests.group_commit.max_records, self.core.requests.group_commit.max_requests = self._batch
        clocks = self.clock, self.core.cpu_clock
        self._event_loop = EventLoop(self.core, *ports, self._disk, *clocks, self._write_log, self._kill_frontend)
        self._witness.started(self.core, self.clock())
        if self._disk is not None:
            legacy = Legacy.of(loaded)
            world.say("scheduler", "takes up", len(legacy.requests), legacy.damage, "too old:", legacy.num_too_old)
            last = self._disk.last_stamp
            is_old = last is not None and self._machine.true_age_s(last) > RESUME_WITHIN_S
            self._witness.took_up(legacy, is_true=self._disk.false_since is None, is_old=is_old)
            self._event_loop.carry_out(self.core.restore(legacy.requests, self.clock(), legacy.life, legacy.shares))
            self._witness.restored(self.core)
            self._disk.write(self.core.new_journal(self.clock()))
        world.say("scheduler", "starts with", sum(1 for _ in self.core.scheduler), "sequences")
        self._turn_at = world.now
        world.at(self._turn_at, self._turn, self._turn_at)

    def kill(self) -> None:
        """kill -9."""
        if self.core is None:
            return
        self._world.say("scheduler", "is killed")
        if self._disk is not None:
            self._disk.crash()
        self._end()

    def stop(self) -> None:
        """SIGTERM: it ends when its journal is on disk."""
        if self.core is None or self._is_stopping:
            return
        self._world.say("scheduler", "stops")
        self._event_loop.carry_out(self.core.shut_down(self.clock()))
        self._is_stopping = True
        self.wake()

    def kill_when(self, event: str, within_s: float = KILL_WITHIN_S) -> None:
        """kill -9, just after it logs something for the next time; it is back soon."""
        self._kill_when, self._kill_within_s = event, within_s

    @property
    def is_frozen(self) -> bool:
        """Whether it stands still, and has not taken in what happened since."""
        return self._world.now < self._frozen_until

    @property
    def num_lost(self) -> int:
        """Connections that broke, which the core has not heard."""
        return self._executors.num_lost + self._fronts.num_lost

    def freeze(self, until: float) -> None:
        """SIGSTOP, and SIGCONT at a time."""
        self._frozen_until = until

    def clock(self) -> float:
        """What the process takes for the time."""
        return self._world.now + self._clock_s

    def wake(self) -> None:
        """There is something to do."""
        self._turn_by(max(self._world.now + TURN_S, self._free_at))

    # --- inside ---

    def _load(self) -> Loaded:
        if self._disk is None:
            clocks = self._machine.clocks(self.clock())
            return Loaded([], 0.0, clocks.wall_s - clocks.monotonic_s)
        return self._disk.open(self.wake, lambda: self._machine.clocks(self.clock()))

    def _end(self) -> None:
        assert self.core is not None
        self._witness.ended(self.core)
        self.core, self._is_stopping = None, False
        self._executors.close()
        self._fronts.close()
        self._ports[0].switch = self._ports[1].switch = None

    def _turn_by(self, when: float) -> None:
        if self.core is not None and when < self._turn_at:
            self._turn_at = when
            self._world.at(when, self._turn, when)

    def _turn(self, due: float) -> None:
        """What `CoreProcess.turn` does when its poll ends."""
        if self.core is None or due != self._turn_at:
            return
        if self._world.now < self._frozen_until:
            self._turn_at = self._frozen_until
            self._world.at(self._turn_at, self._turn, self._turn_at)
            return
        if self._is_stopping:
            self._settle()
            return
        self._witness.turned(self.clock())
        before_s = self.core.cpu_clock()
        self._event_loop.turn()
        took_s = self.core.cpu_clock() - before_s
        assert took_s <= LONGEST_TURN_S, f"a turn takes {1000 * took_s:.1f} ms of CPU time"
        self._num_turns += 1
        if self._num_turns % (TURNS_A_CHECK + len(self.core.fleet)) == 0:
            self._witness.look(self.core, self.clock(), is_behind=self._event_loop.is_behind)
            if self._disk is not None:
                self._witness.look_at_journal(self.core, self._disk.false_since)
        self._free_at = self._world.now + took_s
        self._turn_at = max(self._world.now + self._event_loop.max_wait_s, self._free_at + SHORTEST_WAIT_S)
        self._world.at(self._turn_at, self._turn, self._turn_at)

    def _settle(self) -> None:
        """What `CoreProcess.close` does once the core is shut down."""
        if self._event_loop.settle():
            if self._disk is not None:
                self._disk.close()
            self._end()
        else:
            self._turn_at = self._world.now + SETTLE_MS / 1000
            self._world.at(self._turn_at, self._turn, self._turn_at)

    def _write_log(self, line: WriteLog) -> None:
        assert self.core is not None
        self._world.say("scheduler", line.event, line.facts)
        self._witness.logged(self.core, line.event, line.facts)
        if line.event == self._kill_when:
            self._kill_when = ""
            self._world.after(self._rng.uniform(0.0, self._kill_within_s), self.kill)
            self._world.after(RESTART_S, self.start)


class _WatchedCore(Core):
    """The core, with a witness at its side.

    Args:
        switch: the executors' socket.
    """

    def __init__(self, config: CoreConfig, now: float, witness: Witness, switch: Switch) -> None:
        super().__init__(config, now, placement=witness.placements.place)
        self._witness = witness
        self._switch = switch
        self._cpu_s = 0.0
        self._num_looks = 0

    def cpu_clock(self) -> float:
        """CPU seconds that this life has used."""
        return self._cpu_s

    def executor_gone(self, peer: Peer, now: float) -> list[Action]:
        self._cpu_s += LOST_S
        return super().executor_gone(peer, now)

    def from_executor(self, peer: Peer, message: m.ExecutorToScheduler, now: float) -> list[Action]:
        self._cpu_s += {m.Hello: HELLO_S, m.StepResult: RESULT_S}.get(type(message), MESSAGE_S)
        self._witness.heard(peer, now)
        return super().from_executor(peer, message, now)

    def from_frontend(self, peer: Peer, message: m.FrontendToCore, now: float) -> list[Action]:
        self._cpu_s += {m.Submit: SUBMIT_S, m.Cancel: CANCEL_S}.get(type(message), MESSAGE_S)
        if isinstance(message, m.Revoke):
            self._witness.revoked(self, message.client, now)
        if not isinstance(message, m.Submit):
            return super().from_frontend(peer, message, now)
        expected = self._witness.expected_refusal(self, message, now)
        actions = super().from_frontend(peer, message, now)
        self._witness.submitted(self, message, expected, actions)
        return actions

    def chores(self, now: float) -> Iterator[list[Action]]:
        """The core has just heard which connections broke, or of some of them."""
        self._witness.lost(self, self._switch.peers)
        sequences = self.scheduler.sequences
        num_members, num_open = len(self.fleet), len(sequences)
        for actions in super().chores(now):
            ends_s = EPOCH_END_S * (num_members - len(self.fleet)) + SEQUENCE_END_S * (num_open - len(sequences))
            self._cpu_s += CHORE_S + ends_s
            num_members, num_open = len(self.fleet), len(sequences)
            yield actions

    def tick(self, now: float) -> list[Action]:
        self._cpu_s += TICK_S + MEMBER_S * len(self.fleet)
        actions = super().tick(now)
        self._witness.libraries.ticked(actions)
        self._witness.pools.told_fleet(self._fleet_state, now)
        return actions

    def plans(self, now: float) -> Iterator[list[SendToExecutor]]:
        for plans in super().plans(now):
            for action in plans:
                self._cpu_s += PLAN_S
                self._witness.planned(self, action)
            yield plans
        self._num_looks += 1
        if self._num_looks % max(1, len(self.fleet) // FEW) == 0:
            self._witness.planned_all(self, now)

    def _ended(self, ended: f.EpochEnded, now: float) -> list[Action]:
        self._witness.adoptions.ended(self.scheduler.executor(ended.epoch), ended.cause)
        return super()._ended(ended, now)

    def _follow(self, consequences: list[f.Consequence], now: float) -> list[Action]:
        actions = super()._follow(consequences, now)
        self._witness.pools.follow(self, now)
        self._witness.adoptions.follow(self)
        return actions
