"""A core with real sockets in a thread, and peers of both kinds that a test plays."""

import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from common import messages as m
from common.curve import ClientCurve
from common.heartbeats import HEARTBEAT_INTERVAL_S
from common.plan import ExecutorLimits
from common.wire import HEADER, Codec
from scheduler_svc.core.config import CoreConfig
from scheduler_svc.core.scheduling.config import SchedulerConfig
from scheduler_svc.server.core_process import CoreProcess
from scheduler_svc.server.journal import Journal
from scheduler_svc.server.kv_events import KvEventOptions
from scheduler_svc.store_options import StoreOptions
from tests.support.hello import LIMITS, hello
from tests.support.oracle import OracleExecutor
from tests.support.submits import submit


class Peer:
    """A DEALER that speaks one side of a link, or sends whatever frames a test likes. It takes no turn by itself.

    Args:
        curve: its keys; None for none.
    """

    def __init__(self, endpoint: str, incoming: Any, curve: ClientCurve | None = None) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        if curve is not None:
            curve.protect(self.socket)
        self.socket.connect(endpoint)
        self.codec: Codec[Any] = Codec(incoming)

    def send(self, message: m.Message) -> None:
        self.socket.send_multipart(self.codec.encode(message))

    def send_payload(self, payload: bytes, header: bytes = HEADER) -> None:
        self.socket.send_multipart([header, payload])

    def receive(self, kind: type, timeout_s: float = 60.0) -> Any:
        """The next message of a kind; others are passed over."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if self.socket.poll(int(left * 1000) + 1):
                message = self.codec.decode(self.socket.recv_multipart())
                if isinstance(message, kind):
                    return message
        raise TimeoutError(f"no {kind.__name__} within {timeout_s} s")

    def close(self) -> None:
        self.socket.close()


class FakeExecutor(threading.Thread):
    """An executor on a KV oracle: real socket, real plans, imaginary model.

    It has one epoch: when that is over, or its connection breaks, it does not come back. It has no pool, no keeper and
    no standby; these are in tests/sim.

    Args:
        obey: called with each plan before it is run; False leaves it unanswered.
        curve: its keys; None for none.
    """

    def __init__(
        self,
        endpoint: str,
        name: str = "fake",
        limits: ExecutorLimits = LIMITS,
        step_s: float = 0.0,
        obey: Callable[[m.Plan], bool] = lambda plan: True,
        curve: ClientCurve | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.endpoint, self.limits, self.step_s, self.obey, self.curve = endpoint, limits, step_s, obey, curve
        self.executor_name = name
        self.stopping = threading.Event()
        self.leaving = threading.Event()
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        peer = Peer(self.endpoint, m.SchedulerToExecutor, self.curve)
        try:
            self._serve(peer)
        except BaseException as error:
            self.error = error
            raise
        finally:
            peer.close()

    def _serve(self, peer: Peer) -> None:
        peer.send(hello(self.executor_name, self.limits))
        epoch = peer.receive(m.Welcome).epoch
        oracle, beat, left = OracleExecutor(self.limits), 0.0, False
        while not self.stopping.is_set():
            if time.monotonic() - beat > HEARTBEAT_INTERVAL_S:
                beat = time.monotonic()
                if peer.socket.poll(0, zmq.POLLOUT):  # else it was cut off
                    peer.send(m.ExecutorHeartbeat(epoch=epoch))
            if self.leaving.is_set() and not left:
                left = True
                peer.send(m.Leaving(epoch=epoch))
            if not peer.socket.poll(20):
                continue
            match peer.codec.decode(peer.socket.recv_multipart()):
                case m.Plan() as plan if self.obey(plan):
                    time.sleep(self.step_s)
                    peer.send(oracle.run(plan))
                case m.EpochOver():
                    return

    def kill(self) -> None:
        """Close the connection without a word."""
        self.stopping.set()
        self.join()


class RunningCore:
    """A CoreProcess that turns in a thread."""

    def __init__(
        self,
        run_dir: Path,
        config: CoreConfig,
        journal: Journal | None = None,
        kv_events: KvEventOptions | None = None,
        **others: Any,
    ) -> None:
        self.front = f"ipc://{run_dir}/core"
        others = {"kv_events": kv_events, **others}
        self.core_process = CoreProcess("tcp://127.0.0.1:0", self.front, config, journal, **others)
        self.back = self.core_process.executor_endpoint
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.core_process.turn()
        self.core_process.close()

    def frontend(self) -> "FakeFrontend":
        return FakeFrontend(self.front)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class FakeFrontend(Peer):
    """Submits requests and gathers what comes back. It knows no text and no HTTP, and sends no heartbeats."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint, m.CoreToFrontend)
        self.send(m.FrontendHello(pid=1))
        self.fleet: m.FleetState = self.receive(m.FleetState)
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.ends: dict[tuple[str, int], m.TokenDelta] = {}
        self.num_deltas = 0

    def submit(self, request_id: str, prompt: list[int], **fields: Any) -> None:
        """See `submit`."""
        self.send(submit(request_id, prompt, **fields))

    def gather(self, *streams: tuple[str, int], timeout_s: float = 60.0) -> None:
        """Wait until these sequences have ended."""
        deadline = time.monotonic() + timeout_s
        while not all(stream in self.ends for stream in streams):
            self.take(self.receive(m.Outputs, deadline - time.monotonic()))

    def take(self, outputs: m.Outputs) -> None:
        for delta in outputs.deltas:
            stream = (delta.request_id, delta.index)
            assert stream not in self.ends, f"{stream} goes on after its end"
            self.num_deltas += 1
            self.tokens.setdefault(stream, []).extend(array("i", delta.token_ids))
            if delta.finish_reason is not None:
                self.ends[stream] = delta

    def status(self) -> m.StatusReport:
        self.send(m.StatusQuery(query_id=7))
        while True:
            message = self.receive((m.Status, m.Outputs))  # type: ignore[arg-type]
            if isinstance(message, m.Status):
                return message.report
            self.take(message)


@contextmanager
def running_core(
    run_dir: Path,
    config: SchedulerConfig | None = None,
    journal: Journal | None = None,
    kv_events: KvEventOptions | None = None,
    store: StoreOptions | None = None,
    api_keys_file: Path | None = None,
    **settings: Any,
) -> Iterator[RunningCore]:
    config = config or SchedulerConfig(announced_salt=None if kv_events is None else "")
    others = {"store": store, "api_keys_file": api_keys_file}
    core = RunningCore(run_dir, CoreConfig("test-model", config, **settings), journal, kv_events, **others)
    try:
        yield core
    finally:
        core.close()
