"""The scheduler's process, life after life: it drives the core as `scheduler_svc.engine` does, in virtual time."""

from dataclasses import replace

from common import messages as m
from scheduler_svc.core import Core, CoreConfig
from scheduler_svc.effects import Effect, Log, Peer, ToExecutor, ToFrontend
from scheduler_svc.engine import FULL_PAUSE_S, SETTLE_MS, TICK_MS
from scheduler_svc.ledger import JournalState
from scheduler_svc.records import replay
from scheduler_svc.router import Sent
from tests.sim.disk import Disk
from tests.sim.sockets import Port, Switch
from tests.sim.witness import Witness
from tests.sim.world import World

STARTED_AT_S = 1000.0  # wall-clock time at the start of the run
TURN_S = 0.0002  # from a message's arrival to the turn that takes it
TURNS_A_CHECK = 9
RESTART_S = 0.1
KILL_WITHIN_S = 0.004


class Service:
    """The process.

    Args:
        executors, frontends: where it listens.
        disk: its journal's; None runs without a journal.
        witness: is shown everything.

    Attributes:
        core: of the present life; None while the process is dead.
    """

    def __init__(
        self, world: World, config: CoreConfig, executors: Port, frontends: Port, disk: Disk | None, witness: Witness
    ) -> None:
        self.core: Core | None = None
        self._world = world
        self._rng = world.stream("service")
        self._config = config
        self._ports = (executors, frontends)
        self._disk = disk
        self._witness = witness
        self._num_turns = 0
        self._turn_at = 0.0
        self._frozen_until = 0.0
        self._is_stopping = False
        self._kill_when = ""

    def start(self) -> None:
        """Begin a life, when the one before has ended."""
        world = self._world
        if self.core is not None:
            if self._is_stopping:
                world.after(RESTART_S, self.start)
            return
        self._clock_s = self._rng.uniform(0.0, 1000.0) - world.now  # a monotonic clock starts anywhere
        self._full_until: dict[Peer, float] = {}
        self._journal_results: list[tuple[int, str]] = []
        batches = self._disk.open(self.wake) if self._disk is not None else []
        config = replace(
            self._config,
            first_epoch=int((STARTED_AT_S + world.now) * 1000),
            journal=JournalState.OFF if self._disk is None else JournalState.OK,
            first_batch=batches[-1][0] + 1 if batches else 1,
            wall_offset_s=STARTED_AT_S - self._clock_s,
        )
        self.core = Core(config, self.clock())
        self._executors = Switch(world, m.ExecutorToScheduler, self.wake)
        self._fronts = Switch(world, m.FrontendToCore, self.wake)
        self._ports[0].switch, self._ports[1].switch = self._executors, self._fronts
        self._witness.started(self.core)
        if self._disk is not None:
            self._do(self.core.desk.restore(replay([payload for _, payload in batches]), self.clock()))
            self._witness.restored(self.core)
            self._disk.write(self.core.desk.new_journal(self.clock()))
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
        self._do(self.core.shut_down(self.clock()))
        self._is_stopping = True
        self.wake()

    def kill_when(self, event: str) -> None:
        """kill -9, just after it logs something for the next time; it is back soon."""
        self._kill_when = event

    def freeze(self, until: float) -> None:
        """SIGSTOP, and SIGCONT at a time."""
        self._frozen_until = until

    def clock(self) -> float:
        """What the process takes for the time."""
        return self._world.now + self._clock_s

    def wake(self) -> None:
        """There is something to do."""
        self._turn_by(self._world.now + TURN_S)

    # --- inside ---

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
        """What `Engine.turn` does when its poll ends."""
        if self.core is None or due != self._turn_at:
            return
        if self._world.now < self._frozen_until:
            self._turn_at = self._frozen_until
            self._world.at(self._turn_at, self._turn, self._turn_at)
            return
        core, now = self.core, self.clock()
        if self._is_stopping:
            self._settle(core)
            return
        self._witness.turned(now)
        for peer, message in self._executors.receive():
            self._witness.heard(peer, now)
            self._do(core.from_executor(peer, message, now))
        if self._disk is not None:
            self._hear_journal(self._disk)
        for peer, request in self._fronts.receive():
            self._take_request(core, peer, request)
        for peer in self._executors.lost_connections():
            self._do(core.executor_gone(peer, now))
        for peer in self._fronts.lost_connections():
            self._do(core.frontend_gone(peer, now))
        self._witness.lost(core, self._executors.peers)
        self._do(core.tick(now))
        plans = core.plans(now)
        self._witness.planned(core, plans)
        self._do(plans)
        if self._disk is not None:
            self._write_journal(self._disk)
        self._flush()
        self._num_turns += 1
        if self._num_turns % TURNS_A_CHECK == 0:
            self._witness.look(core, now)
        patience_s = TICK_MS / 1000
        due_in_s = core.desk.ledger.due_in_s(now)
        self._turn_at = self._world.now + (patience_s if due_in_s is None else min(patience_s, due_in_s))
        self._world.at(self._turn_at, self._turn, self._turn_at)

    def _settle(self, core: Core) -> None:
        """What `Engine.close` does once the core is shut down."""
        if self._disk is not None:
            self._hear_journal(self._disk)
            self._write_journal(self._disk)
            self._do(core.desk.tick(self.clock()))
        if core.desk.ledger.is_settled:
            if self._disk is not None:
                self._disk.close()
            self._end()
        else:
            self._turn_at = self._world.now + SETTLE_MS / 1000
            self._world.at(self._turn_at, self._turn, self._turn_at)

    def _take_request(self, core: Core, peer: Peer, request: m.FrontendToCore) -> None:
        expected = self._witness.expected_refusal(core, request) if isinstance(request, m.Submit) else None
        effects = core.from_frontend(peer, request, self.clock())
        if isinstance(request, m.Submit):
            self._witness.submitted(request, expected, effects)
        self._do(effects)

    def _do(self, effects: list[Effect]) -> None:
        assert self.core is not None
        for effect in effects:
            match effect:
                case ToExecutor(peer, message):
                    self._send_to_executor(peer, message)
                case ToFrontend(peer, message):
                    if self._fronts.send(peer, message) is Sent.GONE:
                        self._do(self.core.frontend_gone(peer, self.clock()))
                case Log(_, event, facts):
                    self._world.say("scheduler", event, facts)
                    self._witness.logged(self.core, event, facts)
                    if event == self._kill_when:
                        self._kill_when = ""
                        self._world.after(self._rng.uniform(0.0, KILL_WITHIN_S), self.kill)
                        self._world.after(RESTART_S, self.start)

    def _send_to_executor(self, peer: Peer, message: m.SchedulerToExecutor) -> None:
        assert self.core is not None
        match self._executors.send(peer, message):
            case Sent.GONE:
                self._do(self.core.executor_gone(peer, self.clock()))
            case Sent.FULL if isinstance(message, m.Plan):
                self._do(self.core.executor_full(message.epoch, self.clock()))
            case _:
                pass

    def _flush(self) -> None:
        assert self.core is not None
        outbox, now = self.core.desk.outbox, self.clock()
        for peer in outbox.peers():
            if now < self._full_until.get(peer, 0.0):
                continue
            self._full_until.pop(peer, None)
            sent = Sent.OK
            while sent is Sent.OK and (message := outbox.peek(peer)) is not None:
                sent = self._fronts.send(peer, message)
                if sent is Sent.OK:
                    outbox.sent(peer)
            if sent is Sent.GONE:
                outbox.forget(peer)
                self._do(self.core.frontend_gone(peer, now))
            elif sent is Sent.FULL:
                self._full_until[peer] = now + FULL_PAUSE_S

    def _hear_journal(self, disk: Disk) -> None:
        assert self.core is not None
        desk = self.core.desk
        for number, reason in disk.results():
            self._do(desk.failed(number, reason, self.clock()) if reason else desk.saved(number))

    def _write_journal(self, disk: Disk) -> None:
        assert self.core is not None
        if (batch := self.core.desk.next_batch(self.clock())) is not None:
            disk.write(batch)
