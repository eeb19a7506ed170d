"""A core made of a script: a real ROUTER and the real codec, but the answers are whatever a test wants."""

import contextlib
import heapq
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import zmq

from common import messages as m
from common.wire import Codec
from tests.support.status_reports import status_report

# What a script yields: seconds to wait, a message to send, raw frames to send.
Step = float | m.CoreToFrontend | list[bytes]
Script = Callable[[m.Submit], Iterator[Step]]

FINGERPRINT = "0123456789abcdef"
COMPUTED_BY = f"{FINGERPRINT}/float32"
MAX_MODEL_LEN = 2048
VOCAB_SIZE = 2048
HIDDEN_SIZE = 256  # as the demo model
TASKS = tuple(
    m.TaskState(task=task, num_ready=1, max_model_len=MAX_MODEL_LEN) for task in ("generate", "embed", "score")
)
REPORT = status_report(
    requests_finished=3,
    prompt_tokens=10,
    cached_prompt_tokens=4,
    output_tokens=20,
    output_tokens_per_s=2.0,
    prefill_tokens_per_s=1.0,
)


def int32(token_ids: Sequence[int]) -> bytes:
    """Token ids as they travel."""
    return np.asarray(token_ids, dtype="<i4").tobytes()


def tokens_of(data: bytes) -> list[int]:
    """The reverse."""
    return np.frombuffer(data, dtype="<i4").tolist()


def logprobs_of(token_ids: Sequence[int], count: int) -> tuple[list[list[int]], list[list[float]]]:
    """Made-up log-probabilities, `count` of each token: its own, then those of other tokens in descending order."""
    others = range(count - 1)
    ids = [[token, *((7 * token + 13 * i + 1) % VOCAB_SIZE for i in others)][:count] for token in token_ids]
    values = [[-(token % 97) / 3, *(-(token % 5) / 7 - i for i in others)][:count] for token in token_ids]
    return ids, np.asarray(values, "<f4").tolist()


def logprob_columns(token_ids: Sequence[int], count: int) -> dict[str, bytes]:
    """The same as a delta's fields."""
    ids, values = logprobs_of(token_ids, count)
    return {
        "logprob_ids": int32([token_id for row in ids for token_id in row]),
        "logprobs": np.asarray([value for row in values for value in row], "<f4").tobytes(),
    }


def prompt_rows(token_ids: Sequence[int], count: int) -> dict[str, bytes]:
    """The same of tokens of a prompt, as a delta's fields: with minus the rank of each in the place of its id."""
    columns = logprob_columns(token_ids, count)
    ids = np.frombuffer(columns["logprob_ids"], "<i4").reshape(len(token_ids), count).copy()
    if count:
        ids[:, 0] = [-rank_of(token) for token in token_ids]
    return {"prompt_logprob_ids": ids.tobytes(), "prompt_logprobs": columns["logprobs"]}


def rank_of(token: int) -> int:
    """A made-up rank of a token of a prompt."""
    return 30 + token % 100


def prompt_columns(submit: m.Submit, start: int = 0, end: int | None = None) -> dict[str, bytes]:
    """Made-up log-probabilities of the prompt's tokens after the first one, or of some of them, as a delta's fields."""
    return prompt_rows(tokens_of(submit.prompt)[1:][start:end], submit.params.prompt_logprobs)


def delta(submit: m.Submit, token_ids: Sequence[int], reason: m.FinishReason | None = None, **more) -> m.TokenDelta:
    """A delta of sequence 0, or of `index`, with log-probabilities if the request wants some."""
    fields = {"index": 0, **logprob_columns(token_ids, submit.params.logprobs), **more}
    return m.TokenDelta(request_id=submit.request_id, token_ids=int32(token_ids), finish_reason=reason, **fields)


def outputs(*deltas: m.TokenDelta) -> m.Outputs:
    """One step's deltas."""
    return m.Outputs(number=0, deltas=deltas)  # `_send` counts them


def hidden_of(token_ids: Sequence[int]) -> np.ndarray:
    """A made-up hidden state after these tokens, float32 [HIDDEN_SIZE]; equal for equal tokens only."""
    return np.random.default_rng(list(token_ids)).normal(0, 3, HIDDEN_SIZE).astype("<f4")


def logits_of(token_ids: Sequence[int], answers: Sequence[int]) -> np.ndarray:
    """Made-up logits of some tokens after these, float32 [answers]."""
    return np.random.default_rng([*token_ids, *answers]).normal(0, 3, len(answers)).astype("<f4")


def pool(submit: m.Submit) -> Iterator[Step]:
    """Gives a request's pooled result."""
    tokens, params = tokens_of(submit.prompt), submit.params
    result = hidden_of(tokens) if params.pooling == "hidden" else logits_of(tokens, params.pooled_token_ids)
    yield outputs(delta(submit, [], "stop", pooled=result.tobytes(), num_cached_tokens=1))


def refuse(error: str, code: str) -> Script:
    """Refuses every request as the core does."""

    def script(submit: m.Submit) -> Iterator[Step]:
        yield outputs(delta(submit, [], "error", error=error, code=code))

    return script


def say(
    token_ids: Sequence[int],
    reason: m.FinishReason = "length",
    *,
    pause_s: float = 0.0,
    per_step: int = 1,
    prompt_per_step: int = 3,
) -> Script:
    """Gives every sequence these tokens, some at a step, or all at the end if the request does not stream. The prompt's
    log-probabilities come before, if the request wants some."""

    def script(submit: m.Submit) -> Iterator[Step]:
        if submit.params.prompt_logprobs:
            for start in range(0, len(submit.prompt) // 4 - 1, prompt_per_step):
                yield outputs(delta(submit, [], **prompt_columns(submit, start, start + prompt_per_step)))
        size = per_step if submit.stream else max(len(token_ids), 1)
        groups = [token_ids[i : i + size] for i in range(0, len(token_ids), size)] or [[]]
        for number, group in enumerate(groups, start=1):
            end = reason if number == len(groups) else None
            yield outputs(*[delta(submit, group, end, index=i, num_cached_tokens=2) for i in range(submit.n)])
            if pause_s:
                yield pause_s

    return script


def echo(submit: m.Submit) -> Iterator[Step]:
    """Says the prompt again, up to max_tokens; gives what is asked for instead of tokens."""
    if submit.params.pooling != "none":
        yield from pool(submit)
        return
    yield from say(tokens_of(submit.prompt)[: submit.params.max_tokens])(submit)


class Prompter:
    """A script for one request, which says what a test has it say, when the test does."""

    def __init__(self) -> None:
        self._said: queue.SimpleQueue[tuple[Sequence[int], m.FinishReason | None]] = queue.SimpleQueue()

    def say(self, token_ids: Sequence[int], reason: m.FinishReason | None = None) -> None:
        """Say these tokens next."""
        self._said.put((token_ids, reason))

    def __call__(self, submit: m.Submit) -> Iterator[Step]:
        """Be the script."""
        while True:
            with contextlib.suppress(queue.Empty):
                yield outputs(delta(submit, *self._said.get_nowait()))
                continue
            yield 0.002


def silence(submit: m.Submit) -> Iterator[Step]:
    """Never answers."""
    yield 3600.0


@dataclass
class KnownSequence:
    """What a core remembers of one sequence, for a frontend that attaches."""

    token_ids: list[int] = field(default_factory=list)
    logprob_ids: bytes = b""
    logprobs: bytes = b""
    prompt_logprob_ids: bytes = b""
    prompt_logprobs: bytes = b""
    model: str = ""
    num_cached_tokens: int = 0
    end: m.TokenDelta | None = None


@dataclass
class KnownRequest:
    """What a core remembers of one request. `reader` is the frontend that gets its deltas."""

    submit: m.Submit
    reader: bytes | None
    told: list[KnownSequence]

    def tell(self, delta: m.TokenDelta) -> m.TokenDelta | None:
        """Remember a delta, as it is to be sent; None after the end of its sequence."""
        told = self.told[min(delta.index, len(self.told) - 1)]
        if told.end is not None:
            return None
        if not delta.model and not told.model:
            delta = msgspec.structs.replace(delta, model=COMPUTED_BY)
        told.token_ids += tokens_of(delta.token_ids[: len(delta.token_ids) // 4 * 4])
        told.logprob_ids += delta.logprob_ids
        told.logprobs += delta.logprobs
        told.prompt_logprob_ids += delta.prompt_logprob_ids
        told.prompt_logprobs += delta.prompt_logprobs
        told.model = delta.model or told.model
        told.num_cached_tokens = delta.num_cached_tokens
        if delta.finish_reason is not None:
            told.end = delta
        return delta

    def again(self, per_delta: int) -> list[m.TokenDelta]:
        """All of it from the first token, with so many tokens in a delta, and so many of the prompt."""
        deltas = []
        size, prompt_size = 4 * self.submit.params.logprobs, 4 * self.submit.params.prompt_logprobs
        for index, told in enumerate(self.told):
            for start in range(0, len(told.prompt_logprob_ids), per_delta * (prompt_size or 1)):
                some = slice(start, start + per_delta * prompt_size)
                columns = {
                    "prompt_logprob_ids": told.prompt_logprob_ids[some],
                    "prompt_logprobs": told.prompt_logprobs[some],
                }
                deltas.append(delta(self.submit, [], index=index, model="" if start else told.model, **columns))
            for start in range(0, len(told.token_ids), per_delta):
                end = start + per_delta
                group = told.token_ids[start:end]
                more = {
                    "index": index,
                    "num_cached_tokens": told.num_cached_tokens,
                    "model": "" if start else told.model,
                    "logprob_ids": told.logprob_ids[start * size : end * size],
                    "logprobs": told.logprobs[start * size : end * size],
                }
                deltas.append(delta(self.submit, group, **more))
            if told.end is not None:
                last = deltas.pop() if deltas and told.token_ids else delta(self.submit, [], index=index)
                end = {name: getattr(told.end, name) for name in ("finish_reason", "error", "code")}
                deltas.append(msgspec.structs.replace(last, **end))
        return deltas


class FakeCore:
    """Stands in for the core of a service at the frontend's end. Runs in a thread of its own until closed. What arrived
    lies in `submits`, `cancels`, `detaches`, `attaches`, `revoked`, `drains`, `counts`, `life_queries`, `num_hellos`.

    It has no executors, limits or journal, checks nothing that it is sent, forgets no request, and numbers nothing by
    time: what its answers are, a script decides alone.

    Args:
        stories: requests of an earlier life, which go on as `script` says.

    Attributes:
        answers_attaches: those that come before are answered as soon as this is true.
        replay_size: tokens in a delta when a request is attached to.
        refusal: of drains.
        tell_life: tells what became of the request with an id, where the core's time is now.
    """

    def __init__(self, folder: Path, *, script: Script = echo, stories: dict[str, KnownRequest] | None = None) -> None:
        self.endpoint = f"ipc://{folder}/core.sock"
        self.script = script
        self.fleet = m.FleetState(num_ready=1, fingerprint=FINGERPRINT, max_model_len=MAX_MODEL_LEN, tasks=TASKS)
        self.answers_hellos = True
        self.answers_queries = True
        self.answers_attaches = True
        self.replay_size = 10**9
        self.refusal = ""
        self.tell_life: Callable[[str, float], tuple[m.SequenceLife, ...]] = lambda request_id, now: ()
        self.report = REPORT
        self.stories = stories or {}
        self.num_hellos = 0
        self._codec: Codec[m.FrontendToCore] = Codec(m.FrontendToCore)
        self._due: list[tuple[float, int, str, Iterator[Step]]] = []
        self._order = itertools.count()
        self._unanswered: deque[tuple[bytes, str]] = deque()
        self._stopping = threading.Event()
        self._num_outputs: dict[bytes, int] = {}
        self._earlier: set[str] = set()
        self._empty()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Go away, as a core does that crashed."""
        self._stopping.set()
        self._thread.join()

    def forget(self) -> None:
        """Start a new test: nothing has arrived yet, and everything is echoed.

        A frontend may notice late that a client of the test before has gone: what it says of that request is answered,
        and not listed.
        """
        self._earlier.update(submit.request_id for submit in self.submits)
        self.script = echo
        self.answers_hellos = True
        self.replay_size = 10**9
        self.refusal = ""
        self._empty()

    def _empty(self) -> None:
        self.submits: list[m.Submit] = []
        self.cancels: list[m.Cancel] = []
        self.attaches: list[m.Attach] = []
        self.detaches: list[m.Detach] = []
        self.revoked: list[str] = []
        self.drains: list[m.DrainExecutor] = []
        self.counts: list[m.FrontendCounts] = []
        self.life_queries: list[str] = []

    def _run(self) -> None:
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.bind(self.endpoint)
        for story in self.stories.values():
            self._begin(story.submit)
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
                self._earlier.discard(message.request_id)
                self._submit(router, sender, message)
                self.submits.append(message)  # last: a test that has waited for it may change the script
            case m.Attach():
                self._earlier.discard(message.request_id)
                self.attaches.append(message)
                self._unanswered.append((sender, message.request_id))
            case m.Detach(request_id=request_id):
                if request_id not in self._earlier:
                    self.detaches.append(message)
                if request_id in self.stories:
                    self.stories[request_id].reader = None
            case m.Cancel():
                if message.request_id not in self._earlier:
                    self.cancels.append(message)
                self._cancel(router, message)
            case m.DrainExecutor(query_id=query_id):
                self.drains.append(message)
                epoch = 0 if self.refusal else 7
                self._send(router, sender, m.DrainReply(query_id=query_id, epoch=epoch, refusal=self.refusal))
            case m.Revoke(client=client):
                self.revoked.append(client)
            case m.FrontendCounts():
                self.counts.append(message)
            case m.StatusQuery() | m.MetricsQuery() | m.LifeQuery() if not self.answers_queries:
                pass
            case m.LifeQuery(query_id=query_id, request_id=request_id):
                if request_id not in self._earlier:
                    self.life_queries.append(request_id)
                now = time.monotonic()
                self._send(router, sender, m.Life(query_id=query_id, at=now, sequences=self.tell_life(request_id, now)))
            case m.StatusQuery():
                self._send(router, sender, m.Status(query_id=message.query_id, report=self.report))
            case m.MetricsQuery():
                self._send(router, sender, m.Metrics(query_id=message.query_id, text=b"baton_running 0\n"))

    def _submit(self, router: zmq.Socket, sender: bytes, submit: m.Submit) -> None:
        if submit.request_id in self.stories:
            refusal = delta(submit, [], "error", error="it is in use", code="request_exists")
            self._send(router, sender, outputs(refusal))
            return
        self.stories[submit.request_id] = KnownRequest(submit, sender, [KnownSequence() for _ in range(submit.n)])
        self._begin(submit)

    def _begin(self, submit: m.Submit) -> None:
        heapq.heappush(self._due, (time.monotonic(), next(self._order), submit.request_id, self.script(submit)))

    def _attach(self, router: zmq.Socket, sender: bytes, request_id: str) -> None:
        story = self.stories.get(request_id)
        if story is None:
            self._send(router, sender, m.Attached(request_id=request_id, found=False))
            return
        if story.reader not in (None, sender):
            self._send(router, story.reader, outputs(delta(story.submit, [], "error", code="taken_over")))
        story.reader = sender
        submit = story.submit
        facts = {"prompt": submit.prompt, "n": submit.n, "context": submit.context}
        self._send(router, sender, m.Attached(request_id=request_id, found=True, **facts))
        for again in story.again(self.replay_size):
            self._send(router, sender, outputs(again))

    def _cancel(self, router: zmq.Socket, cancel: m.Cancel) -> None:
        if story := self.stories.get(cancel.request_id):
            indices = range(story.submit.n) if cancel.index < 0 else [cancel.index]
            self._tell(router, story, [delta(story.submit, [], "cancelled", index=index) for index in indices])

    def _advance(self, router: zmq.Socket) -> None:
        """Answer those who attach, and run the scripts that are due, each to its next pause."""
        while self._unanswered and self.answers_attaches:
            self._attach(router, *self._unanswered.popleft())
        while self._due and self._due[0][0] <= time.monotonic():
            _, _, request_id, script = heapq.heappop(self._due)
            story = self.stories[request_id]
            for step in script:
                if all(told.end is not None for told in story.told):
                    break
                if isinstance(step, float):
                    heapq.heappush(self._due, (time.monotonic() + step, next(self._order), request_id, script))
                    break
                if isinstance(step, m.Outputs) and all(d.request_id == request_id for d in step.deltas):
                    self._tell(router, story, step.deltas)
                elif story.reader is not None:
                    self._send(router, story.reader, step)

    def _tell(self, router: zmq.Socket, story: KnownRequest, deltas: Sequence[m.TokenDelta]) -> None:
        new = [told for told in map(story.tell, deltas) if told is not None]
        if new and story.reader is not None:
            self._send(router, story.reader, outputs(*new))

    def _send(self, router: zmq.Socket, sender: bytes, message: m.CoreToFrontend | list[bytes]) -> None:
        if isinstance(message, m.Outputs):
            number = self._num_outputs.get(sender, 0)
            message, self._num_outputs[sender] = msgspec.structs.replace(message, number=number), number + 1
        frames = message if isinstance(message, list) else self._codec.encode(message)
        router.send_multipart([sender, *frames])
