"""A small OpenAI server on a real socket, whose answers and misbehaviour are scripted.

Its "model" answers with the words `w0 w1 w2 ...`, a token each, so that tests know every text beforehand.
"""

import asyncio
import json
import threading
import time
from collections import deque
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

MODEL = "fake-model"


@dataclass
class Refuse:
    """Answer with an error."""

    status: int
    message: str = "no"
    retry_after: str | None = None


@dataclass
class Drop:
    """Break the connection: at once, or after some tokens of the stream."""

    after_tokens: int = 0


@dataclass
class FakeServer:
    """Start with `with FakeServer() as server`.

    Attributes:
        script: what to do with the next requests that generate; answered normally when it is empty.
        by_prompt: the same for requests with a certain prompt; not used up.
        delay_s: before each answer.
        token_delay_s: before each token of a stream.
        requests: bodies that came, with `path` and `authorization` put in.
        open_now, open_most: requests being answered, now and at most so far.
        cancelled: streams whose client hung up.
    """

    script: deque = field(default_factory=deque)
    by_prompt: dict = field(default_factory=dict)
    delay_s: float = 0.0
    token_delay_s: float = 0.0
    status_report: dict = field(default_factory=dict)
    vocab_size: int | None = None
    requests: list = field(default_factory=list)
    open_now: int = 0
    open_most: int = 0
    cancelled: int = 0

    def __enter__(self):
        config = uvicorn.Config(self._app(), port=0, log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_):
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()

    def _app(self):
        app = FastAPI()
        app.get("/v1/models")(self._models)
        app.get("/status")(self._status)
        app.post("/v1/completions")(self._generate)
        app.post("/v1/chat/completions")(self._generate)
        return app

    async def _models(self):
        extra = {} if self.vocab_size is None else {"vocab_size": self.vocab_size}
        return {"object": "list", "data": [{"id": MODEL, "object": "model", **extra}]}

    async def _status(self):
        return self.status_report

    async def _generate(self, request: Request):
        body = await request.json()
        self.requests.append({**body, "path": request.url.path, "authorization": request.headers.get("authorization")})
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            await asyncio.sleep(self.delay_s)
        finally:
            self.open_now -= 1
        action = self.by_prompt.get(str(body.get("prompt"))) or (self.script.popleft() if self.script else None)
        if isinstance(action, Refuse):
            headers = {} if action.retry_after is None else {"retry-after": action.retry_after}
            return JSONResponse({"error": {"message": action.message}}, action.status, headers)
        if isinstance(action, Response):
            return action
        drop_after = action.after_tokens if isinstance(action, Drop) else None
        if not body.get("stream"):
            return _Broken() if drop_after is not None else _whole(request.url.path, body)
        return StreamingResponse(self._stream(request.url.path, body, drop_after), media_type="text/event-stream")

    async def _stream(self, path, body, drop_after):
        words = _words(body)
        try:
            for index, word in enumerate(words):
                if index == drop_after:
                    raise ConnectionAbortedError
                await asyncio.sleep(self.token_delay_s)
                yield _event(_chunk(path, word, "length" if index == len(words) - 1 else None))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if body.get("stream_options", {}).get("include_usage"):
            yield _event({"choices": [], "usage": _usage(body, len(words))})
        yield b"data: [DONE]\n\n"


class _Broken(Response):
    """Promises a body and closes the connection instead."""

    async def __call__(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        raise ConnectionAbortedError


def _words(body):
    return [f"w{index} " for index in range(body.get("max_tokens", 16))]


def _usage(body, num_tokens):
    prompt = body.get("prompt", "")
    num_prompt = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
    return {"prompt_tokens": num_prompt, "completion_tokens": num_tokens, "total_tokens": num_prompt + num_tokens}


def _chunk(path, text, finish_reason):
    piece = {"delta": {"content": text}} if "chat" in path else {"text": text}
    return {"id": "cmpl-1", "choices": [{"index": 0, **piece, "finish_reason": finish_reason}]}


def _whole(path, body):
    words = _words(body)
    text = "".join(words)
    piece = {"message": {"role": "assistant", "content": text}} if "chat" in path else {"text": text}
    choices = [{"index": index, **piece, "finish_reason": "length"} for index in range(body.get("n", 1))]
    usage = _usage(body, len(words) * len(choices))
    return {"id": "cmpl-1", "model": body["model"], "choices": choices, "usage": usage}


def _event(data):
    return f"data: {json.dumps(data)}\n\n".encode()
