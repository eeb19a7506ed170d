"""The executor's process: one thread owns the socket, the main thread launches steps, a third collects their tokens.

A forward pass can take seconds, and heartbeats must go out meanwhile; torch releases the interpreter's lock while it
computes. Plans go to the main thread through a queue. A GPU is still busy with a step when its launch returns, so the
main thread takes the next plan while the collector waits for the tokens. Answers go back through another queue, and a
byte in the `wakeup` socket pair ends the I/O thread's poll. Signals wake it in the same way (`signal.set_wakeup_fd`),
so they are noticed at once even in the middle of a step.
"""

import os
import queue
import signal
import socket
import threading
import time
from typing import Any

import zmq

from common import messages as m
from common.curve import HANDSHAKE_TIMEOUT_MS, ClientCurve
from common.errors import WireError
from common.exit_codes import EXIT_CRASHED
from common.logging import DropLog, get_logger
from common.plan import parse_plan
from common.wire import MAX_MESSAGE_BYTES, Codec, VersionError
from executor_svc.keeper.kept_pool import KeptPool
from executor_svc.keeper.link import KeeperLink
from executor_svc.service.handshakes import Handshakes
from executor_svc.service.health_file import HealthFile
from executor_svc.service.registration import (
    DropMessage,
    LogEvent,
    Reconnect,
    Registration,
    RunPlan,
    SendToScheduler,
    StopProcess,
    TagPool,
)
from executor_svc.service.scheduler_address import SchedulerAddress
from executor_svc.service.step_loop import QueuedPlan, StepAnswer, StepLoop, StepRunner

RECONNECT_INTERVAL_MS = 100
LINGER_MS = 300
HIGH_WATER_MARK = 64  # messages; a healthy connection holds fewer than ten
MAX_WAIT_S = 1.0  # between two looks at the clock
STOP_GRACE_S = 2.0  # for the step that is being computed when the process is to end
_ANSWER_READY = b"\0"  # in the wakeup pair; every other byte is a signal's number

log = get_logger("executor")


def serve(
    runner: StepRunner,
    hello: m.Hello,
    address: SchedulerAddress,
    health_file: HealthFile,
    curve: ClientCurve | None = None,
    keeper: KeeperLink | None = None,
    pool: KeptPool | None = None,
) -> int:
    """Serve plans until told to stop, and return the process's exit code. Call it in the main thread.

    Args:
        runner: ready to run a plan at once.
        hello: what to tell the scheduler; its limits are the runner's.
        address: the scheduler's.
        health_file: for probes.
        curve: this executor's keys, and the scheduler's public one; None connects without encryption.
        keeper: keeps what this executor has; None if nothing is kept.
        pool: the runner's memory, if the keeper keeps it.
    """
    wake_io, woken = socket.socketpair()
    wake_io.setblocking(False)
    woken.setblocking(False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the I/O thread acts on it; here it must only not kill
    signal.set_wakeup_fd(wake_io.fileno(), warn_on_full_buffer=False)
    io = _SocketThread(runner, hello, address, curve, woken, health_file, keeper, pool)

    def answer(answer: StepAnswer) -> None:
        io.answers.put(answer)
        wake_io.send(_ANSWER_READY)

    io.start()
    try:
        StepLoop(runner, io.steps, lambda: io.live_epoch, answer, pool).run()
    finally:
        io.computing_ended.set()
        io.join()
        signal.set_wakeup_fd(-1)
        wake_io.close()
        woken.close()
    return io.exit_code


class _SocketThread(threading.Thread):
    """Owns the DEALER socket and the `Registration`, and carries out the registration's actions.

    Attributes:
        steps: to the main thread; None ends it.
        answers: one for each step, in their order, each followed by a byte in the wakeup pair.
        live_epoch: plans of another one need not be run.
        computing_ended: set by the main thread when every step has been answered.
        exit_code: of the process; valid once the thread has ended.
    """

    def __init__(
        self,
        runner: StepRunner,
        hello: m.Hello,
        address: SchedulerAddress,
        curve: ClientCurve | None,
        woken: socket.socket,
        health_file: HealthFile,
        keeper: KeeperLink | None,
        pool: KeptPool | None,
    ) -> None:
        super().__init__(name="socket", daemon=True)
        self.steps: queue.SimpleQueue[QueuedPlan | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[StepAnswer] = queue.SimpleQueue()
        self.live_epoch: int | None = None
        self.computing_ended = threading.Event()
        self.exit_code = EXIT_CRASHED
        self._stopping = False
        self._limits = runner.limits
        self._address = address
        self._curve = curve
        self._woken = woken
        self._health_file = health_file
        self._keeper = keeper
        self._pool = pool
        self._registration = Registration(hello, time.monotonic())
        self._codec: Codec[m.SchedulerToExecutor] = Codec(m.SchedulerToExecutor)
        self._drops = DropLog(log, "scheduler")
        self._zmq: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._handshakes = Handshakes(log, has_keys=curve is not None)
        self._connect()

    def run(self) -> None:
        """Serve the socket until the registration says StopProcess; then make sure that the process ends."""
        try:
            while not self._stopping:
                self._turn()
        except Exception:
            log.exception("the socket thread crashed")
        self.steps.put(None)
        self._disconnect(LINGER_MS)
        self._zmq.term()
        if not self.computing_ended.wait(STOP_GRACE_S):
            log.warning("stopped in the middle of a step", exit_code=self.exit_code)
            os._exit(self.exit_code)

    def _turn(self) -> None:
        """Wait for an event, and handle it."""
        now = time.monotonic()
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        hello_due = self._registration.hello_due(now)
        poller.register(self._socket, zmq.POLLIN | (zmq.POLLOUT if hello_due else 0))
        due = now + MAX_WAIT_S if hello_due else self._registration.next_tick()
        if self._keeper is not None:
            due = min(due, self._keeper.next_tick())
            if self._keeper.fileno() >= 0:
                poller.register(self._keeper.fileno(), zmq.POLLIN)
        wait_s = min(MAX_WAIT_S, max(0.0, due - now))
        events = dict(poller.poll(int(wait_s * 1000) + 1))
        socket_events = events.get(self._socket, 0)
        if self._woken.fileno() in events:
            self._on_wakeup()
        if socket_events & zmq.POLLIN:
            self._receive()
        now = time.monotonic()
        self._handshakes.take(self._monitor, now)
        if self._handshakes.retry_is_due(now):
            self._reconnect()
        elif hello_due and self._address.has_changed():
            log.info("the scheduler has moved", scheduler=self._address.endpoint)
            self._reconnect()
        self._do(self._registration.tick(now, writable=bool(socket_events & zmq.POLLOUT)))
        if self._registration.seeks:
            self._handshakes.has_none(now)
        else:
            self._handshakes.has_scheduler()
        self._talk_to_keeper(now)

    def _on_wakeup(self) -> None:
        for byte in self._woken.recv(4096):
            now = time.monotonic()
            if byte == _ANSWER_READY[0]:
                self._do(self._registration.plan_answered(self.answers.get_nowait(), now))
            elif self._registration.leaving:
                log.warning("stopped by a second signal", signal=signal.Signals(byte).name)
                os._exit(128 + byte)
            else:
                self._do(self._registration.leave_requested(now))

    def _talk_to_keeper(self, now: float) -> None:
        if self._keeper is not None:
            for standbys in self._keeper.receive():
                self._registration.has_standby = standbys.count > 0
            self._keeper.tick(now, self._registration.holder_state)

    def _receive(self) -> None:
        """Take in what has arrived, a bounded number of messages so that heartbeats keep going out."""
        for _ in range(HIGH_WATER_MARK):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = self._codec.decode(frames)
            except VersionError as error:  # most likely a Reject, which only its own version can decode
                self._do(self._registration.version_differs(str(error), time.monotonic()))
                continue
            except WireError as error:
                self._drops.dropped("scheduler", error)
                continue
            self._do(self._registration.message_received(message, time.monotonic()))
            if isinstance(message, m.SchedulerHeartbeat) and self.live_epoch is not None:
                self._health_file.touch()

    def _do(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case SendToScheduler(message):
                    self._send(message)
                case RunPlan(plan):
                    self._hand_over(plan)
                case TagPool(epoch):
                    assert self._pool is not None and self._pool.tag is not None, "a Hello without a pool"  # noqa: PT018
                    self._pool.tag.epoch = epoch
                case Reconnect():
                    self._reconnect()
                case DropMessage(reason):
                    self._drops.dropped("scheduler", reason)
                case LogEvent(event, facts, level):
                    getattr(log, level)(event, **facts)
                case StopProcess(exit_code):
                    self.exit_code = exit_code
                    self._stopping = True
        self.live_epoch = self._registration.epoch
        if self.live_epoch is None:
            self._health_file.remove()

    def _send(self, message: m.ExecutorToScheduler) -> None:
        try:
            self._socket.send_multipart(self._codec.encode(message), zmq.NOBLOCK)
            if isinstance(message, m.Hello):
                self._handshakes.said_hello()
        except zmq.Again:
            self._do(self._registration.connection_lost(time.monotonic()))

    def _hand_over(self, plan: m.Plan) -> None:
        try:
            columns = parse_plan(plan, self._limits)
        except WireError as error:
            self._drops.dropped("scheduler", f"plan {plan.step}: {error}")
            failed = m.StepFailed(epoch=plan.epoch, step=plan.step, error=f"the plan is malformed: {error}"[:4096])
            self._do(self._registration.plan_answered(failed, time.monotonic()))
            return
        self.live_epoch = plan.epoch
        self.steps.put(QueuedPlan(plan.epoch, plan.step, columns))

    def _connect(self) -> None:
        """Make a socket that connects to the scheduler. Nothing is queued until it is connected (IMMEDIATE)."""
        self._socket = self._zmq.socket(zmq.DEALER)
        for option, value in (
            (zmq.IMMEDIATE, 1),
            (zmq.SNDHWM, HIGH_WATER_MARK),
            (zmq.RCVHWM, HIGH_WATER_MARK),
            (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES),
            (zmq.LINGER, LINGER_MS),
            (zmq.RECONNECT_IVL, RECONNECT_INTERVAL_MS),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_TIMEOUT_MS),
            (zmq.TCP_KEEPALIVE, 1),
            (zmq.TCP_KEEPALIVE_IDLE, 10),
        ):
            self._socket.setsockopt(option, value)
        if self._curve is not None:
            self._curve.protect(self._socket)
        self._monitor = self._handshakes.watch(self._socket, self._address.endpoint)
        self._socket.connect(self._address.endpoint)

    def _disconnect(self, linger_ms: int) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)

    def _reconnect(self) -> None:
        self._disconnect(linger_ms=0)
        self._connect()
