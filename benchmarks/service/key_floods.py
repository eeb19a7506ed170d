"""Floods by one who has an API key: what it may do, as often and as largely as it may.

Each is a function of a port and a counter of bytes sent, which runs in a process of its own until it is killed. Where
nothing else is said the key may have one open request.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

MIB = 2**20
Flood = Callable[[int, Any], None]

MODEL = "baton-demo"
LONG = "x" * 7_900_000
LINES = "\n" * (64 * MIB)
FILE = (
    '--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    '--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
)
FORM = "multipart/form-data; boundary=b"
SMALL, UNLIMITED = "small", "unlimited"
"""Keys: with one open request, and without a limit of them."""
SCHEMA = {"type": "object", "properties": {"t": {"type": "string", "minLength": 9000}}, "required": ["t"]}
LONG_TEXT = {"type": "json_schema", "name": "long", "schema": SCHEMA}  # no answer of it ends by itself
GROWING = 'start: e\ne: e e | e e e | /[a-z]/ | " "\n'


class Client:
    """Sends HTTP requests with a key. `begin` leaves the answer unread, `ask` reads it."""

    def __init__(self, port: int, sent: Any, key: str) -> None:
        self._port = port
        self._sent = sent
        self._key = key

    def begin(self, method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> socket.socket:
        """Send a request, and give the connection its answer will come on."""
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=30)
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._key}\r\nconnection: close\r\n"
        if body:
            head += f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
        connection.sendall(head.encode() + b"\r\n" + body)
        self._sent.value += len(body)
        return connection

    def ask(self, method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> dict[str, Any]:
        """The whole answer, as JSON."""
        with self.begin(method, path, body, content_type) as connection:
            data = b"".join(iter(lambda: connection.recv(65536), b""))
        answer: dict[str, Any] = json.loads(data.partition(b"\r\n\r\n")[2] or b"{}")
        return answer

    def respond(self, **fields: Any) -> dict[str, Any]:
        """POST /v1/responses."""
        return self.ask("POST", "/v1/responses", response(**fields))


def response(**fields: Any) -> bytes:
    """The body of a request of the Responses API."""
    return json.dumps({"model": MODEL, "input": "x", "max_output_tokens": 1, **fields}).encode()


def many(count: int, begin: Callable[[], socket.socket]) -> list[socket.socket]:
    """So many connections, of which nothing is read; those that fail are begun anew."""
    connections: list[socket.socket] = []
    while len(connections) < count:
        with suppress(OSError):
            connections.append(begin())
    return connections


def stored(client: Client, count: int, path: str = "", **fields: Any) -> Iterator[list[socket.socket]]:
    """Connections that ask for one stored response and read nothing, again and again."""
    response_id = client.respond(**fields)["id"]
    while True:
        connections = many(count, lambda: client.begin("GET", f"/v1/responses/{response_id}{path}"))
        yield connections
        for connection in connections:
            connection.close()


def unread_responses(client: Client) -> None:
    """Read one stored response by 250 connections, and take nothing of it."""
    for _ in stored(client, 250, user=LONG):
        time.sleep(3)


def waiting_streams(client: Client) -> None:
    """Have responses with long heads streamed that wait for their turn."""
    body = response(user=LONG, stream=True, max_output_tokens=1900)
    connections = many(120, lambda: client.begin("POST", "/v1/responses", body))
    time.sleep(3600)
    del connections


def background_responses(client: Client) -> None:
    """Have responses with long heads computed in the background."""
    while True:
        for _ in range(150):
            client.respond(user=LONG, background=True, max_output_tokens=1900)
        time.sleep(3600)


def readers(client: Client) -> None:
    """Read one response in the background by 600 connections, as it comes."""
    while True:
        name = client.respond(background=True, max_output_tokens=1900, text={"format": LONG_TEXT})["id"]
        path = f"/v1/responses/{name}?stream=true"
        connections = many(600, partial(client.begin, "GET", path))
        for connection in connections:
            connection.setblocking(False)
        while client.ask("GET", f"/v1/responses/{name}").get("status") in ("queued", "in_progress"):
            for connection in connections:
                with suppress(OSError):
                    while connection.recv(65536):
                        pass
            time.sleep(0.05)
        for connection in connections:
            connection.close()


def live_pages(client: Client) -> None:
    """Open more live pages than a frontend has connections."""
    connections = many(4200, lambda: client.begin("GET", "/page/live"))
    time.sleep(3600)
    del connections


def uploads(client: Client) -> None:
    """Upload files and delete them."""
    body = (FILE + "y" * (50 * MIB) + "\r\n--b--\r\n").encode()
    while True:
        with suppress(OSError, ValueError):
            if "id" in (kept := client.ask("POST", "/v1/files", body, FORM)):
                client.ask("DELETE", f"/v1/files/{kept['id']}")


def blank_lines(client: Client) -> None:
    """Have batches validated that are long and have nothing in them."""
    body = (FILE + LINES + "\r\n--b--\r\n").encode()
    kept = client.ask("POST", "/v1/files", body, FORM)["id"]
    asked = {"input_file_id": kept, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    while True:
        client.ask("POST", "/v1/batches", json.dumps(asked).encode())
        time.sleep(1)


def input_items(client: Client) -> None:
    """Page through a long input by many connections at once."""
    user, assistant = ({"role": role, "content": "x"} for role in ("user", "assistant"))
    summary = [{"type": "summary_text", "text": LONG}]  # which no prompt has
    thought = {"type": "reasoning", "summary": summary, "content": [{"type": "reasoning_text", "text": "z"}]}
    items = [user, thought, assistant, user]
    name = client.respond(input=items)["id"]

    def ask() -> None:
        while True:
            with suppress(OSError, ValueError):
                client.ask("GET", f"/v1/responses/{name}/input_items?limit=100")

    for _ in range(320):
        threading.Thread(target=ask, daemon=True).start()
    time.sleep(3600)


def many_files(client: Client) -> None:
    """List all files in one page."""
    body = (FILE + "y\r\n--b--\r\n").encode()
    for _ in range(2000):
        client.ask("POST", "/v1/files", body, FORM)
    while True:
        with suppress(OSError, ValueError):
            client.ask("GET", "/v1/files?limit=10000")


def detokenizing(client: Client) -> None:
    """Have as many tokens as a body may have made into text."""
    body = b'{"tokens":[' + b"5," * 260_000 + b"5]}"
    while True:
        with suppress(OSError, ValueError):
            client.ask("POST", "/detokenize", body)


def growing_masks(client: Client) -> None:
    """Generate by a grammar that has ever more readings of its text."""
    asked = {"prompt": "x", "max_tokens": 1900, "structured_outputs": {"grammar": GROWING}, "model": MODEL}
    while True:
        with suppress(OSError, ValueError):
            client.ask("POST", "/v1/completions", json.dumps(asked).encode())


BY_KEY: dict[str, tuple[str, Callable[[Client], None]]] = {
    "key: 250 connections do not read a response of 8 MB": (SMALL, unread_responses),
    "key: 120 streams of responses with heads of 8 MB": (UNLIMITED, waiting_streams),
    "key: 150 background responses with heads of 8 MB": (SMALL, background_responses),
    "key: 600 readers of a background response": (SMALL, readers),
    "key: 4,200 live pages": (SMALL, live_pages),
    "key: uploads of 50 MiB that are deleted": (SMALL, uploads),
    "key: batches of 64 MiB of line ends": (SMALL, blank_lines),
    "key: 320 connections read input items": (SMALL, input_items),
    "key: lists of 2,000 files": (SMALL, many_files),
    "key: 260,000 tokens to text": (SMALL, detokenizing),
    "key: a grammar whose masks grow": (SMALL, growing_masks),
}


def flood_of(name: str, keys: dict[str, str]) -> Flood:
    """A flood by its name, with the keys of the service."""
    key, flood = BY_KEY[name]
    return lambda port, sent: flood(Client(port, sent, keys[key]))
