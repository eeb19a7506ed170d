"""A core made of a script: a real ROUTER and the real codec, but the answers are whatever a test wants."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import zmq

from common import messages as m
from common.wire import Codec

# What a script yields: seconds to wait, a message to send, raw frames to send.
Step = float | m.CoreToFrontend | list[bytes]
Script = Callable[[m.Submit], Iterator[Step]]

FINGERPRINT = "0123456789abcdef"
MAX_MODEL_LEN = 2048
REPORT = m.StatusReport(
    version="0.1.0",
    model="baton-demo",
    uptime_s=1.5,
    waiting=0,
    running=0,
    requests_finished=3,
    requests_failed=0,
    preemptions=0,
    executors_lost=0,
    messages_dropped=0,
    prompt_tokens=10,
    cached_prompt_tokens=4,
    output_tokens=20,
    recomputed_tokens=0,
    sequences_resumed=0,
    journal="off",
    journal_lag_s=0.0,
    output_tokens_per_s=2.0,
    prefill_tokens_per_s=1.0,
    executors=[],
)


def int32(token_ids: Sequence[int]) -> bytes:
    """Token ids as they travel."""
    return np.asarray(token_ids, dtype="<i4").tobytes()


def tokens_of(data: bytes) -> list[int]:
    """The reverse."""
    return np.frombuffer(data, dtype="<i4").tolist()


def delta(submit: m.Submit, token_ids: Sequence[int], reason: m.FinishReason | None = None, **more) -> m.TokenDelta:
    """A delta of sequence 0, or of `index`."""
    fields = {"index": 0, **more}
    return m.TokenDelta(request_id=submit.request_id, token_ids=int32(token_ids), finish_reason=reason, **fields)


def outputs(*deltas: m.TokenDelta) -> m.Outputs:
    """One step's deltas."""
    return m.Outputs(deltas=deltas)


def refuse(error: str, code: str) -> Script:
    """Refuses every request as the core does."""

    def script(submit: m.Submit) -> Iterator[Step]:
        yield outputs(delta(submit, [], "error", error=error, code=code))

    return script


def say(
    token_ids: Sequence[int], reason: m.FinishReason = "length", *, pause_s: float = 0.0, per_step: int = 1
) -> Script:
    """Gives every sequence these tokens, some at a step, or all at the end if the request does not stream."""

    def script(submit: m.Submit) -> Iterator[Step]:
        size = per_step if submit.stream else max(len(token_ids), 1)
        groups = [token_ids[i : i + size] for i in range(0, len(token_ids), size)] or [[]]
        for number, group in enumerate(groups, start=1):
            end = reason if number == len(groups) else None
            yield outputs(*[delta(submit, group, end, index=i, num_cached_tokens=2) for i in range(submit.n)])
            if pause_s:
                yield pause_s

    return script


def echo(submit: m.Submit) -> Iterator[Step]:
    """Says the prompt again, up to max_tokens."""
    yield from say(tokens_of(submit.prompt)[: submit.params.max_tokens])(submit)


def silence(submit: m.Submit) -> Iterator[Step]:
    """Never answers."""
    yield 3600.0


class FakeCore:
    """Runs in a thread of its own until closed. What arrived lies in `submits`, `cancels` and `num_hellos`."""

    def __init__(self, folder: Path, *, script: Script = echo) -> None:
        self.endpoint = f"ipc://{folder}/core.sock"
        self.script = script
        self.fleet = m.FleetState(num_ready=1, fingerprint=FINGERPRINT, max_model_len=MAX_MODEL_LEN)
        self.answers_hellos = True
        self.answers_queries = True
        self.submits: list[m.Submit] = []
        self.cancels: list[m.Cancel] = []
        self.num_hellos = 0
        self._codec: Codec[m.FrontendToCore] = Codec(m.FrontendToCore)
        self._due: list[tuple[float, int, bytes, str, Iterator[Step]]] = []
        self._order = itertools.count()
        self._cancelled: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Go away, as a core does that crashed."""
        self._stopping.set()
        self._thread.join()

    def forget(self) -> None:
        """Start a new test: nothing has arrived yet, and everything is echoed."""
        self.script = echo
        self.answers_hellos = True
        self.submits.clear()
        self.cancels.clear()

    def wait_for(self, condition: Callable[[], object], timeout_s: float = 5.0) -> bool:
        """Whether `condition` came true in time."""
        deadline = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        return bool(condition())

    def _run(self) -> None:
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.bind(self.endpoint)
        while not self._stopping.is_set():
            wait_ms = 20
            if self._due:
                wait_ms = min(20, max(0, int(1000 * (self._due[0][0] - time.monotonic()))))
            if router.poll(wait_ms):
                sender, *frames = router.recv_multipart()
                self._take(router, sender, self._codec.decode(frames))
            self._advance(router)
        router.close(linger=0)
        context.term()

    def _take(self, router: zmq.Socket, sender: bytes, message: m.FrontendToCore) -> None:
        match message:
            case m.FrontendHello():
                self.num_hellos += 1
                if self.answers_hellos:
                    self._send(router, sender, self.fleet)
            case m.Submit():
                self.submits.append(message)
                script = self.script(message)
                heapq.heappush(self._due, (time.monotonic(), next(self._order), sender, message.request_id, script))
            case m.Cancel():
                self.cancels.append(message)
                if message.index < 0:
                    self._cancelled.add(message.request_id)
            case m.StatusQuery() | m.MetricsQuery() if not self.answers_queries:
                pass
            case m.StatusQuery():
                self._send(router, sender, m.Status(query_id=message.query_id, report=REPORT))
            case m.MetricsQuery():
                self._send(router, sender, m.Metrics(query_id=message.query_id, text=b"baton_running 0\n"))

    def _advance(self, router: zmq.Socket) -> None:
        """Run the scripts that are due, each to its next pause."""
        while self._due and self._due[0][0] <= time.monotonic():
            _, _, sender, request_id, script = heapq.heappop(self._due)
            if request_id in self._cancelled:
                continue
            for step in script:
                if isinstance(step, float):
                    due = time.monotonic() + step
                    heapq.heappush(self._due, (due, next(self._order), sender, request_id, script))
                    break
                self._send(router, sender, step)

    def _send(self, router: zmq.Socket, sender: bytes, message: m.CoreToFrontend | list[bytes]) -> None:
        frames = message if isinstance(message, list) else self._codec.encode(message)
        router.send_multipart([sender, *frames])
