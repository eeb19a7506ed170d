"""A core under its event loop with executors, in virtual time that advances by the CPU time that its turns take.

Real are the event loop, the core, the codecs, and the executors' side of registration. Executors, the network and the
disk take no CPU time of the core's: executors answer `STEP_S` after a plan reaches them.
"""

import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import numpy as np

from common import messages as m
from common.wire import Codec
from executor_svc.service.registration import Reconnect, Registration, RegistrationAction, RunPlan, SendToScheduler
from scheduler_svc.core.actions import Peer, Sent, WriteLog
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.core import Core
from scheduler_svc.core.event_loop import EventLoop
from scheduler_svc.core.requests.group_commit import BatchFailed, BatchSaved, JournalBatch, JournalResult, JournalState
from scheduler_svc.core.requests.journal_records import RequestRecord
from scheduler_svc.core.scheduling.config import SchedulerConfig

STEP_S = 0.05
BEAT_S = 1.0  # of the frontend
WEB = b"web"
PROMPT_TOKENS, MAX_TOKENS = 50, 400
VOCAB_SIZE = 1000
LIMITS = {"num_blocks": 4096, "block_size": 16, "max_num_seqs": 16, "max_batch_tokens": 2048, "max_model_len": 4096}

Incoming = TypeVar("Incoming")


class StormPort(Generic[Incoming]):
    """A port whose messages are bytes in this process.

    Attributes:
        incoming: messages that have arrived, by peer: what one has said is read in a row.
        lost: peers whose connections broke.
        inboxes: of the peers that are connected; messages for other peers go nowhere. None keeps no message.
    """

    def __init__(self, incoming: object, inboxes: dict[Peer, deque[m.Message]] | None) -> None:
        self.incoming: dict[Peer, deque[list[bytes]]] = {}
        self.lost: list[Peer] = []
        self.inboxes = inboxes
        self._heard: set[Peer] = set()
        self._codec: Codec[Incoming] = Codec(incoming)

    def put(self, peer: Peer, message: m.Message) -> None:
        """A peer has said something."""
        self.incoming.setdefault(peer, deque()).append(self._codec.encode(message))

    def lose(self, peer: Peer) -> None:
        """A peer closes its connection. One that was never heard has said nothing: the handshake takes both sides."""
        if peer in self._heard:
            self.lost.append(peer)
        else:
            self.incoming.pop(peer, None)

    def receive(self) -> Iterator[tuple[Peer, Incoming]]:
        """See `event_loop.Port`."""
        while self.incoming:
            peer, waiting = next(iter(self.incoming.items()))
            frames = waiting.popleft()
            if not waiting:
                del self.incoming[peer]
            self._heard.add(peer)
            yield peer, self._codec.decode(frames)

    def send(self, peer: Peer, message: m.Message) -> Sent:
        """See `event_loop.Port`."""
        self._codec.encode(message)
        if self.inboxes is not None:
            if peer not in self.inboxes:
                return Sent.GONE
            self.inboxes[peer].append(message)
        return Sent.OK

    def admit(self, peer: Peer) -> None:
        """See `event_loop.Port`."""

    def dismiss(self, peer: Peer) -> None:
        """See `event_loop.Port`."""

    def disconnect(self, peer: Peer) -> None:
        """See `event_loop.Port`."""

    def lost_connections(self) -> list[Peer]:
        """See `event_loop.Port`."""
        lost, self.lost = self.lost, []
        return lost


class StormDisk:
    """Saves each batch at once.

    Attributes:
        is_stopped: no batch is answered.
    """

    def __init__(self) -> None:
        self.is_stopped = False
        self._written: list[int] = []
        self._failed: list[int] = []

    def write(self, batch: JournalBatch) -> None:
        """See `event_loop.JournalWriter`."""
        self._written.append(batch.number)

    def fail(self) -> None:
        """What is being written fails, and the disk goes on."""
        self.is_stopped, self._failed, self._written = False, self._written, []

    def results(self) -> list[JournalResult]:
        """See `event_loop.JournalWriter`."""
        results: list[JournalResult] = [BatchFailed(number, "it was to fail") for number in self._failed]
        self._failed = []
        if not self.is_stopped:
            results += map(BatchSaved, self._written)
            self._written = []
        return results


class StormExecutor:
    """The executor's side: the real registration, and steps that give token 7."""

    def __init__(self, name: str, port: StormPort[m.ExecutorToScheduler], now: float) -> None:
        tasks: dict[str, object] = {"tasks": ("generate",), "hidden_size": 64, "pool": None, "vocab_size": VOCAB_SIZE}
        texts = dict.fromkeys(("tokenizer", "grammars", "node"), "")
        facts = {"build": "bench", "fingerprint": "f", "dtype": "float32", "device": "cpu", "pid": 1, "start_s": 1.0}
        hello = m.Hello(executor=name, **LIMITS, **facts, **texts, **tasks)  # type: ignore[arg-type]
        self._has_plan = False
        self._port = port
        self._registration = Registration(hello, now)
        self._connections = 0
        self._name = name.encode()
        self._work: deque[tuple[float, m.Plan]] = deque()
        self._connect()

    @property
    def is_planned(self) -> bool:
        """Whether it has joined, and been sent a plan since."""
        return self._has_plan and self._registration.epoch is not None

    @property
    def due(self) -> float:
        """When it has something to do without being told."""
        due = self._registration.next_tick()
        return min(due, self._work[0][0]) if self._work else due

    def run(self, now: float) -> None:
        """Take in what has come, and do what is due."""
        inbox = self._inboxes[self._peer]
        while inbox:
            message = inbox.popleft()
            self._has_plan = isinstance(message, m.Plan) or (self._has_plan and not isinstance(message, m.Welcome))
            self._do(self._registration.message_received(message, now), now)  # type: ignore[arg-type]
            inbox = self._inboxes[self._peer]
        while self._work and self._work[0][0] <= now:
            _, plan = self._work.popleft()
            tokens = np.full(len(plan.sample_rows) // 4, 7, np.int32).tobytes()
            took_us = int(1e6 * STEP_S)
            result = m.StepResult(epoch=plan.epoch, step=plan.step, token_ids=tokens, compute_us=took_us)
            self._do(self._registration.plan_answered(result, now), now)
        while self._registration.next_tick() <= now and (actions := self._registration.tick(now, writable=True)):
            self._do(actions, now)

    def lose_connection(self, now: float) -> None:
        """The connection breaks; the executor makes another."""
        if not (actions := self._registration.connection_lost(now)):
            self._disconnect()
            self._connect()
        self._do(actions, now)

    @property
    def _inboxes(self) -> dict[Peer, deque[m.Message]]:
        assert self._port.inboxes is not None
        return self._port.inboxes

    def _do(self, actions: Iterable[RegistrationAction], now: float) -> None:
        for action in actions:
            match action:
                case SendToScheduler(message):
                    self._port.put(self._peer, message)
                case RunPlan(plan):
                    begins = max(now, self._work[-1][0]) if self._work else now
                    self._work.append((begins + STEP_S, plan))
                case Reconnect():
                    self._disconnect()
                    self._connect()

    def _connect(self) -> None:
        self._connections += 1
        self._peer = b"%s/%d" % (self._name, self._connections)
        self._inboxes[self._peer] = deque()

    def _disconnect(self) -> None:
        del self._inboxes[self._peer]
        self._port.lose(self._peer)


class StormMachine:
    """The core and all that is around it.

    Args:
        num_executors: they say Hello with the first turn, or `run_executors`.
        max_waiting: see `SchedulerConfig`.
        speed: how much virtual time a second of the core's CPU time is.
        journal: whether there is one.

    Attributes:
        core: for reading.
        web: the port of frontends.
        has_web: whether the frontend `WEB` is alive.
        phase: what happens.
        turns: of each, the phase and its milliseconds of CPU time.
    """

    def __init__(self, num_executors: int, max_waiting: int, speed: float, journal: JournalState) -> None:
        self.turns: list[tuple[str, float]] = []
        self.has_web = True
        self.phase = ""
        self.now, self._speed = 0.0, speed
        self._began: float | None = None  # when the present turn did, by the CPU clock
        self._beat_due = 0.0
        scheduler = SchedulerConfig(max_waiting=max_waiting)
        self.core = Core(CoreConfig(scheduler=scheduler, journal=journal), self.now)
        self.disk = StormDisk()
        self.web: StormPort[m.FrontendToCore] = StormPort(m.FrontendToCore, None)
        self.port: StormPort[m.ExecutorToScheduler] = StormPort(m.ExecutorToScheduler, {})
        self.executors = [StormExecutor(f"e{i}", self.port, self.now) for i in range(num_executors)]
        disk = None if journal is JournalState.OFF else self.disk
        self.loop = EventLoop(self.core, self.port, self.web, disk, self._clock, time.thread_time, _ignore)

    def submit(self, count: int, *, is_resumable: bool = False, timeout_s: float | None = None) -> None:
        """A frontend sends so many requests."""
        for i in range(count):
            prompt = array("i", [i % 900] * PROMPT_TOKENS).tobytes()
            params = m.SamplingParams(max_tokens=MAX_TOKENS)
            submit = m.Submit(
                request_id=f"r{i}", prompt=prompt, params=params, is_resumable=is_resumable, timeout_s=timeout_s
            )
            self.web.put(WEB, submit)

    def turn(self) -> None:
        """Take a turn; then executors do what they have to, and time goes by until the next turn."""
        if self.has_web and self.now >= self._beat_due:
            self._beat_due = self.now + BEAT_S
            self.web.put(WEB, m.FrontendHello(pid=1))
        self._began = began = time.thread_time()
        self.loop.turn()
        took = time.thread_time() - began
        self._began = None
        self.turns.append((self.phase, 1e3 * took))
        self.now += took * self._speed
        self.run_executors()
        if (wait_s := self.loop.max_wait_s) and not (self.port.incoming or self.port.lost or self.web.incoming):
            due = min((executor.due for executor in self.executors), default=self.now + wait_s)
            self.now = max(self.now, min(due, self.now + wait_s))
            self.run_executors()

    def run_executors(self) -> None:
        """Executors do what they have to."""
        for executor in self.executors:
            executor.run(self.now)

    def cut_off(self, seconds: float) -> None:
        """Executors go on, and nothing that is said reaches either side."""
        until = self.now + seconds
        while self.now < until:
            for inbox in self.port.inboxes.values() if self.port.inboxes else []:
                inbox.clear()
            self.turn()
            self.port.incoming.clear()

    def freeze(self, seconds: float) -> None:
        """The core does not run for so long; executors do."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, max(self.now + 1e-3, min(executor.due for executor in self.executors)))
            self.run_executors()

    @property
    def is_planning(self) -> bool:
        """Whether each executor has joined and had a plan."""
        return len(self.core.fleet) == len(self.executors) and all(each.is_planned for each in self.executors)

    def records(self) -> list[RequestRecord]:
        """What the journal would have of all requests."""
        return [each.record(self.core.scheduler.output_of, 0.0) for each in self.core.requests.table.all()]

    def _clock(self) -> float:
        return self.now if self._began is None else self.now + (time.thread_time() - self._began) * self._speed


def _ignore(line: WriteLog) -> None:
    pass
