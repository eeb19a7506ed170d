"""A small OpenAI server on a real socket, whose answers and misbehaviour are scripted.

Its "model" answers with the words `w0 w1 w2 ...`, a token each, so that tests know every text beforehand. Like the
real one it keeps resumable requests, whose events alone have ids, and streams the rest of one to a client that comes
back for it.
"""

import asyncio
import base64
import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from tests.client.fake_batches import FakeBatches
from tests.client.fleet_model import FleetModel
from tests.support.eventually import eventually

MODEL = "fake-model"
EMBEDDER = "fake-embedder"


def vector_of(text: str) -> np.ndarray:
    """What the server makes of a text, float32 [6]."""
    return (np.arange(6) / 7 - len(text)).astype("<f4")


@dataclass
class Refuse:
    """Answer with an error. `session` is the header of a gateway that led to another service."""

    status: int
    message: str = "no"
    retry_after: str | None = None
    code: str | None = None
    session: str = ""


@dataclass
class Drop:
    """Break the connection: at once, or when the stream is at some token.

    Attributes:
        after_tokens: which one, counted from the answer's start, even in a stream that was resumed.
        accepted: whether the request got that far that it can be resumed.
        cut: whether the stream's next event is sent in part.
        error_code: end the stream in order instead, with an error event of this code.
    """

    after_tokens: int = 0
    accepted: bool = True
    cut: bool = False
    error_code: str | None = None


@dataclass
class Wait:
    """Answer when a condition holds, which is looked at a hundred times a second."""

    until: Callable[[], bool]


NEVER = Wait(lambda: False)


@dataclass
class FakeServer:
    """Start with `with FakeServer() as server`.

    It computes nothing, checks no parameters and no keys, and bounds nothing.

    Attributes:
        script: what to do with the next requests that generate; answered normally when it is empty.
        resume_script: the same for those that resume a request.
        deltas: of each of the next answers to a chat, instead of words; an answer with calls of tools ends with them.
        owned_by: whose server it says to be.
        most_words: that an answer has, however many were asked for.
        embeds: whether it serves a model that embeds, beside the one that generates.
        logprobs: whether the words of streams have log-probabilities: -0.5, -1.5, ...
        prompt_logprobs: what whole answers list of their prompts, if that is asked for.
        by_prompt: the same for requests with a certain prompt; not used up.
        delay_s: before each answer.
        token_delay_s: before each token of a stream.
        comment_interval_s: between the comments of a stream that waits for a token; 0 sends none.
        requests: bodies that came, with `path` and `authorization` put in.
        resumed: id and Last-Event-ID of each request that was resumed, and what is known by its id.
        session: header by which a gateway before several services says which one answers; empty for no gateway.
        sessions: what requests that were resumed or cancelled brought back of it.
        open_now, open_most: requests being answered, now and at most so far.
        cancelled: streams whose client hung up for good, or said so.
        fleet: what /status shows and who drains executors changes; half a second of its time passes with each look.
        admin_script: what to answer to those who look at the fleet or drain; answered normally when it is empty.
        batches: that it keeps and runs; None where it runs none.
        is_ready: whether it has an executor, for whom answers wait.
        looked: is called with the path of each look at /v1/models, /ready or /status, after it; may change what comes.
        instead: what answers every request, where something else listens than the service.
        port: where it listens; 0 for a free one.
    """

    script: deque = field(default_factory=deque)
    resume_script: deque = field(default_factory=deque)
    deltas: deque = field(default_factory=deque)
    logprobs: bool = False
    prompt_logprobs: list = field(default_factory=list)
    by_prompt: dict = field(default_factory=dict)
    delay_s: float = 0.0
    token_delay_s: float = 0.0
    comment_interval_s: float = 0.0
    status_report: dict = field(default_factory=dict)
    vocab_size: int | None = None
    owned_by: str = "baton"
    most_words: int = 10_000
    embeds: bool = True
    requests: list = field(default_factory=list)
    resumed: list = field(default_factory=list)
    known: dict = field(default_factory=dict)
    session: str = ""
    sessions: list = field(default_factory=list)
    open_now: int = 0
    open_most: int = 0
    cancelled: int = 0
    fleet: FleetModel | None = None
    admin_script: deque = field(default_factory=deque)
    batches: FakeBatches | None = None
    is_ready: bool = True
    looked: Callable[[str], None] = lambda path: None
    instead: Response | None = None
    port: int = 0

    def start(self):
        config = uvicorn.Config(self._app(), port=self.port, log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        eventually(lambda: self._server.started)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    def stop(self):
        """Let it end, which uvicorn takes a fifth of a second for: too long to wait for it after each test."""
        self._server.should_exit = self._server.force_exit = True

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()
        self._thread.join()

    def _app(self):
        app = FastAPI()
        app.get("/v1/models")(self._models)
        app.get("/ready")(self._ready)
        app.get("/status")(self._status)
        app.post("/v1/completions")(self._generate)
        app.post("/v1/embeddings")(self._embed)
        app.post("/v1/chat/completions")(self._generate)
        app.get("/v1/requests/{request_id}/events")(self._resume)
        app.delete("/v1/requests/{request_id}")(self._cancel)
        app.post("/admin/executors/{executor}/drain")(self._drain)
        if self.batches is not None:
            self.batches.add_to(app)

        async def answer(scope, receive, send):
            await (self.instead or app)(scope, receive, send)

        return answer

    async def _models(self):
        self.looked("/v1/models")
        extra = {} if self.vocab_size is None else {"vocab_size": self.vocab_size}
        served = {"id": MODEL, "object": "model", "owned_by": self.owned_by, **extra}
        embedder = {"id": EMBEDDER, "object": "model", "tasks": ["embed"]}
        return {"object": "list", "data": [served, *([embedder] if self.embeds else [])]}

    async def _ready(self):
        answer = {} if self.is_ready else _refusal(Refuse(503, "No executor is ready.", code="unavailable"))
        self.looked("/ready")
        return answer

    async def _embed(self, request: Request):
        body = await request.json()
        self.requests.append({**body, "path": request.url.path, "authorization": request.headers.get("authorization")})
        if self.script and (action := self.script.popleft()):
            return _Broken() if isinstance(action, Drop) else _refusal(action)
        data = [
            {"index": index, "object": "embedding", "embedding": base64.b64encode(vector_of(text).tobytes()).decode()}
            for index, text in enumerate(body["input"])
        ]
        return {"object": "list", "model": body["model"], "data": data[::-1]}

    async def _status(self):
        if self.admin_script and (action := self.admin_script.popleft()):
            return _refusal(action)
        report = dict(self.status_report)
        if self.fleet is not None:
            self.fleet.tick()
            report = msgspec.to_builtins(self.fleet.report())
        self.looked("/status")
        return report

    async def _generate(self, request: Request):
        body = await request.json()
        self.requests.append({**body, "path": request.url.path, "authorization": request.headers.get("authorization")})
        action = self.by_prompt.get(str(body.get("prompt"))) or (self.script.popleft() if self.script else None)
        request_id = body.get("request_id")
        if request_id in self.known:
            action = Refuse(409, "there is such a request", code="request_exists")
        elif body.get("resumable") and (not action or isinstance(action, Wait) or getattr(action, "accepted", False)):
            self.known[request_id] = (request.url.path, body)
        body["has_logprobs"] = self.logprobs
        if self.most_words < body.get("max_tokens", 16):
            body["max_tokens"] = self.most_words
        if "chat" in request.url.path and self.deltas:
            body["deltas"] = self.deltas.popleft()
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            await asyncio.sleep(self.delay_s)
            while isinstance(action, Wait) and not action.until():
                await asyncio.sleep(0.01)
        finally:
            self.open_now -= 1
        if isinstance(action, Refuse):
            return _refusal(action)
        if isinstance(action, Response):
            return action
        if not body.get("stream"):
            await self._wait_for_executor()
            return _Broken() if isinstance(action, Drop) else _whole(request.url.path, body, self.prompt_logprobs)
        return self._stream(request.url.path, body, action, 0)

    async def _resume(self, request_id: str, request: Request):
        last = request.headers.get("last-event-id")
        self.resumed.append((request_id, last))
        self.sessions.append(request.headers.get("x-session-token", ""))
        action = self.resume_script.popleft() if self.resume_script else None
        if isinstance(action, Refuse):
            return _refusal(action)
        if request_id not in self.known:
            return _refusal(Refuse(404, "there is no such request", code="request_not_found"))
        path, body = self.known[request_id]
        return self._stream(path, body, action, 0 if last is None else int(last) + 1)

    async def _cancel(self, request_id: str, request: Request):
        self.sessions.append(request.headers.get("x-session-token", ""))
        self.cancelled += self.known.pop(request_id, None) is not None
        return {}

    async def _drain(self, executor: str, request: Request):
        body = await request.json()
        if self.admin_script and (action := self.admin_script.popleft()):
            return _refusal(action)
        for status in self.fleet.report().executors:
            if executor in (status.executor, str(status.epoch)):
                self.fleet.drain(status.epoch, finish=body["finish"])
                return {"epoch": status.epoch}
        return _refusal(Refuse(404, f"no executor {executor!r} is in the fleet", code="executor_not_found"))

    def _stream(self, path, body, drop, first):
        headers = {"x-session-token": self.session} if self.session else {}
        return StreamingResponse(self._events(path, body, drop, first), media_type="text/event-stream", headers=headers)

    async def _events(self, path, body, drop, first):
        """Events from number `first` on; an event's number is its id."""
        events = _all_events(path, body)
        try:
            for index in range(first, len(events)):
                if isinstance(drop, Drop) and index == drop.after_tokens:
                    if drop.error_code:
                        yield _event(index, {"error": {"message": "no more", "code": drop.error_code}})
                        return
                    if drop.cut:
                        yield events[index][:-1]
                        await asyncio.sleep(0.05)  # so that it is a chunk of its own
                    raise ConnectionAbortedError
                if b'"finish_reason": ' in events[index]:  # usage and end come with the last token
                    async for comment in self._wait_for_token():
                        yield comment
                yield events[index]
        except asyncio.CancelledError:
            self.cancelled += not body.get("resumable")
            raise

    async def _wait_for_executor(self):
        while not self.is_ready:
            await asyncio.sleep(0.01)

    async def _wait_for_token(self):
        await self._wait_for_executor()
        left_s = self.token_delay_s
        while self.comment_interval_s and left_s > self.comment_interval_s:
            await asyncio.sleep(self.comment_interval_s)
            left_s -= self.comment_interval_s
            yield b": keep-alive\n\n"
        await asyncio.sleep(left_s)


class _Broken(Response):
    """Promises a body and closes the connection instead."""

    async def __call__(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        raise ConnectionAbortedError


def _refusal(action):
    headers = {} if action.retry_after is None else {"retry-after": action.retry_after}
    headers |= {"x-session-token": action.session} if action.session else {}
    return JSONResponse({"error": {"message": action.message, "code": action.code}}, action.status, headers)


def _words(body):
    return [f"w{index} " for index in range(body.get("max_tokens", 16))]


def _usage(body, num_tokens):
    prompt = body.get("prompt", "")
    num_prompt = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
    return {"prompt_tokens": num_prompt, "completion_tokens": num_tokens, "total_tokens": num_prompt + num_tokens}


def _all_events(path, body):
    """The answer's events: a word of each choice in turn, then usage (to a request that asks for it), then the end."""
    words, n = _words(body), body.get("n", 1)
    pieces = (
        [{"delta": delta} for delta in body["deltas"]] if "deltas" in body else [_piece(path, word) for word in words]
    )
    if "chat" in path:
        pieces.append({"delta": {}})  # as the service ends a chat
    last, reason = len(pieces) - 1, "tool_calls" if "tool_calls" in str(pieces) else "length"
    chunks = [
        _object(path, body, [_choice(choice, piece | _logprobs(path, body, i), reason if i == last else None)])
        for i, piece in enumerate(pieces)
        for choice in range(n)
    ]
    if body.get("stream_options", {}).get("include_usage") or not body.get("stream"):
        chunks.append({**_object(path, body, []), "usage": _usage(body, len(words) * n)})
    return [_event(index, chunk, has_id=bool(body.get("resumable"))) for index, chunk in enumerate([*chunks, "[DONE]"])]


def _piece(path, text):
    return {"delta": {"content": text}} if "chat" in path else {"text": text}


def _logprobs(path, body, number):
    """Those of one word."""
    if not body.get("has_logprobs") or number == len(_words(body)):
        return {"logprobs": None}
    word, value = f"w{number} ", -0.5 - number
    if "chat" in path:
        return {"logprobs": {"content": [{"token": word, "logprob": value, "bytes": None, "top_logprobs": []}]}}
    top = {word: value, "x": -0.25}
    return {"logprobs": {"tokens": [word], "token_logprobs": [value], "top_logprobs": [top], "text_offset": [0]}}


def _choice(index, piece, finish_reason):
    return {"index": index, "logprobs": None, **piece, "finish_reason": finish_reason}


def _object(path, body, choices):
    kind = "chat.completion.chunk" if "chat" in path else "text_completion"
    return {"id": body.get("request_id", "cmpl-1"), "object": kind, "model": body["model"], "choices": choices}


def _whole(path, body, prompt_logprobs):
    words = _words(body)
    text = "".join(words)
    message = {"role": "assistant", "content": text, "refusal": None}
    piece = {"message": message} if "chat" in path else {"text": text}
    listed = {} if body.get("prompt_logprobs") is None else {"prompt_logprobs": prompt_logprobs}
    if "text" in piece:
        piece |= listed
    choices = [_choice(index, piece, "length") for index in range(body.get("n", 1))]
    answer = {
        **(listed if "message" in piece else {}),
        **_object(path, body, choices),
        "usage": _usage(body, len(words) * len(choices)),
    }
    return {**answer, "object": answer["object"].removesuffix(".chunk")}


def _event(index, data, *, has_id=False):
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n{f'id: {index}' if has_id else ''}".rstrip().encode() + b"\n\n"
