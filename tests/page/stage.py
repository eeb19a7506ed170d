"""A service made of a script: the page's real files under their real policy, and answers that a test decides.

For what the real service would not do on demand: answers of markup, pools of 20,000 blocks, a token now and the next
one when the test says so.
"""

import base64
import contextlib
import itertools
import json
import queue
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from scheduler_svc.frontend.http.page_files import INDEX, PAGE_HEADERS, read_page_files
from tests.support.eventually import eventually

MODEL = "baton-demo"
ABOUT = {
    "version": "0.1.0",
    "model": MODEL,
    "needs_key": False,
    "client": "",
    "may_read_status": True,
    "is_admin": True,
    "thinks": True,
    "calls_tools": True,
    "parameters": [
        {
            "name": "temperature",
            "kind": "number",
            "help": "How freely.",
            "default": 0.7,
            "minimum": 0.0,
            "maximum": 2.0,
        },
        {"name": "seed", "kind": "integer", "help": "The same tokens.", "default": None},
    ],
}
# A delta of a chat completion's stream: text, or a whole delta.
Said = str | dict
Talk = Callable[[dict], Iterable[Said]]


class Stage:
    """The service, until closed. Requests are answered in threads of their own.

    Attributes:
        about: what /page/about says.
        talk: gives the deltas of the answer to a chat's body. It may wait for the test.
        live: events that every connection to /page/live begins with, each a name and data.
        lives: what /page/requests/ID says, by id.
        answers: of other requests, by method and path.
        asked: method, path and body of every request that is none for a file.
    """

    def __init__(self) -> None:
        self.about = dict(ABOUT)
        self.talk: Talk = lambda _: ["Yes."]
        self.live: list[tuple[str, object]] = []
        self.lives: dict[str, dict] = {}
        self.answers: dict[tuple[str, str], object] = {}
        self.asked: list[tuple[str, str, object]] = []
        self.files = read_page_files()
        self.listeners: list[queue.Queue] = []
        self.numbers = iter(range(1, 10**6))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"stage": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def send(self, name: str, data: object) -> None:
        """An event to every page that listens now."""
        for listener in list(self.listeners):
            listener.put((name, data))

    def hang_up(self) -> None:
        """End all connections to /page/live."""
        for listener in list(self.listeners):
            listener.put(None)

    def wait_for_listeners(self, count: int) -> None:
        """Return when so many connections to /page/live are there."""
        eventually(lambda: len(self.listeners) == count)

    def close(self) -> None:
        """Stop listening; answers in progress end with their connections."""
        self.hang_up()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def running_stage() -> Iterator[Stage]:
    """A Stage for a test."""
    stage = Stage()
    try:
        yield stage
    finally:
        stage.close()


class Cue:
    """Deltas that a test releases one by one: `cue.say("text")`, and `cue.end()`."""

    def __init__(self) -> None:
        self._said: queue.Queue = queue.Queue()

    def say(self, *said: Said) -> None:
        for each in said:
            self._said.put(each)

    def end(self) -> None:
        self._said.put(None)

    def talk(self, _: dict) -> Iterator[Said]:
        while (said := self._said.get(timeout=120)) is not None:
            yield said


def chunk(request_id: str, delta: dict, reason: str | None = None) -> dict:
    """An event of a chat completion's stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
    fields = {"object": "chat.completion.chunk", "created": 1795700000, "model": MODEL}
    return {"id": request_id, **fields, "choices": [choice], "usage": None}


def life(request_id: str, *marks: dict) -> dict:
    """What /page/requests/ID says of a request of one sequence. Without marks it waits."""
    sequence = {"index": 0, "output": 0, "num_left_out": 0, "marks": marks or ({"at": time.time(), "what": "queued"},)}
    return {"request": request_id, "now": time.time(), "sequences": [sequence]}


def pool_map(epoch: int, states: Iterable[int]) -> dict:
    """Data of the event `map`; states come with their ages."""
    data = bytes(states)
    return {"epoch": epoch, "num_blocks": len(data), "states": base64.b64encode(zlib.compress(data)).decode()}


def pool_changes(epoch: int, changes: Iterable[tuple[int, int]]) -> dict:
    """Data of the event `blocks`, of pairs of block and state."""
    data = np.asarray([8 * block + state for block, state in changes], "<i4").tobytes()
    return {"epoch": epoch, "changed": base64.b64encode(data).decode(), "found": ""}


class _Handler(BaseHTTPRequestHandler):
    stage: Stage

    def log_message(self, *_: object) -> None:
        """Nothing: the page's requests are in `Stage.asked`."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        name = INDEX if path == "/" else path.removeprefix("/page/")
        if (file := self.stage.files.get(name)) is not None:
            self._answer(200, file.content, file.media_type, PAGE_HEADERS)
            return
        self.stage.asked.append(("GET", path, None))
        if path == "/page/about":
            self._json(self.stage.about)
        elif path == "/page/live":
            self._live()
        elif (life := re.fullmatch(r"/page/requests/(.+)", path)) and life[1] in self.stage.lives:
            self._json(self.stage.lives[life[1]])
        else:
            self._other("GET", path)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        parsed = json.loads(body) if body else None
        self.stage.asked.append(("POST", self.path, parsed))
        if self.path == "/v1/chat/completions":
            with contextlib.suppress(OSError):  # the page went
                self._chat(parsed)
        else:
            self._other("POST", self.path)

    do_DELETE = do_PUT = do_POST

    def _other(self, method: str, path: str) -> None:
        if (method, path) in self.stage.answers:
            self._json(self.stage.answers[method, path])
        else:
            self._json({"error": {"message": f"There is no {path} here.", "code": "unknown_url"}}, 404)

    def _chat(self, body: dict) -> None:
        request_id = body.get("request_id") or f"chatcmpl-{next(self.stage.numbers)}"
        self._head("text/event-stream", {"x-request-id": request_id})
        self.stage.lives.setdefault(request_id, life(request_id))
        deltas = [{"role": "assistant", "content": ""}]
        number = 0
        for said in itertools.chain(deltas, self.stage.talk(body)):
            delta = {"content": said} if isinstance(said, str) else said
            self._event(f"data: {json.dumps(chunk(request_id, delta))}\nid: {number}\n\n")
            number += 1
        self._event(f"data: {json.dumps(chunk(request_id, {}, 'stop'))}\nid: {number}!\n\n")
        usage = {"prompt_tokens": 5, "completion_tokens": number, "total_tokens": 5 + number}
        usage["prompt_tokens_details"] = {"cached_tokens": 0}
        self._event(f"data: {json.dumps(chunk(request_id, {}) | {'choices': [], 'usage': usage})}\nid: end\n\n")
        self._event("data: [DONE]\n\n")

    def _live(self) -> None:
        listener: queue.Queue = queue.Queue()
        for event in self.stage.live:
            listener.put(event)
        self.stage.listeners.append(listener)
        self._head("text/event-stream", {"cache-control": "no-cache"})
        with contextlib.suppress(OSError):  # the page went
            while True:
                try:
                    event = listener.get(timeout=0.5)
                except queue.Empty:
                    self._event(": \n\n")
                    continue
                if event is None:
                    break
                self._event(f"event: {event[0]}\ndata: {json.dumps(event[1])}\n\n")
        self.stage.listeners.remove(listener)

    def _event(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def _json(self, value: object, status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode(), "application/json", {"cache-control": "no-store"})

    def _head(self, media_type: str, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {"content-type": media_type, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _answer(self, status: int, content: bytes, media_type: str, headers: dict[str, str]) -> None:
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in {"content-type": media_type, "content-length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
