"""What floods cost the service, and everyone else who uses it.

A service on the embedded demo model streams to one bystander while a process of its own floods one of its ports, for
some seconds and with all its strength. For each flood one JSON line is printed: what the flooder sent, the CPU time,
memory and open files that the core and the frontend took more than before it, and the bystander's longest pause between
two tokens. The first lines are without a flood: on an idle machine, and beside a process that only computes, because on
a machine with few cores a flooder takes a core away as well.

Floods whose names begin with "key:" are by a holder of an API key, on a service with keys and a store. There the
bystander has a key of its own, and beside its stream it has small responses stored, one after the other, and asks for
/health: the longest of these times, how many failed, and what the store took on the disk are in the line, too.

Example: python benchmarks/bench_flood.py --seconds 10
"""

import json
import multiprocessing
import os
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec

from benchmarks.service.key_floods import BY_KEY, SMALL, UNLIMITED, flood_of
from common import messages as m
from common.wire import Codec
from scheduler_svc.api_key_file import ApiKey, KeyFile, digest
from scheduler_svc.client.processes.local_fleet import SCHEDULER, FleetSpec, LocalFleet, free_ports

MIB = 2**20
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\0NULL" + bytes(48)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
READY_SUB = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB"
TICKS = os.sysconf("SC_CLK_TCK")
Flood = Callable[[int, "multiprocessing.sharedctypes.Synchronized[int]"], None]


def connect(port: int) -> socket.socket:
    """A connection to a port of this machine."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.settimeout(5)
    return connection


def many_connections(start: bytes, keep: int) -> Flood:
    """Connect again and again and send the same; the last `keep` connections stay open."""

    def flood(port: int, sent: Any) -> None:
        open_ones: list[socket.socket] = []
        while True:
            with suppress(OSError):
                connection = connect(port)
                connection.sendall(start)
                sent.value += len(start)
                open_ones.append(connection)
            while len(open_ones) > keep:
                open_ones.pop(0).close()

    return flood


def one_connection(start: bytes, chunk: bytes) -> Flood:
    """Connect, and send the same without end; connect again when cut off."""

    def flood(port: int, sent: Any) -> None:
        while True:
            with suppress(OSError), connect(port) as connection:
                connection.sendall(start)
                while True:
                    connection.sendall(chunk)
                    sent.value += len(chunk)

    return flood


def requests(path: str, body: bytes, content_type: str = "application/json") -> Flood:
    """Post the same body again and again."""
    of_body = f"content-type: {content_type}\r\ncontent-length: {len(body)}"
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{of_body}\r\n\r\n"

    def flood(port: int, sent: Any) -> None:
        while True:
            with suppress(OSError), connect(port) as connection:
                connection.settimeout(60)
                connection.sendall(head.encode() + body)
                sent.value += len(body)
                connection.recv(65536)

    return flood


def frames(message: m.Message) -> bytes:
    """A message as ZeroMQ sends it."""
    header, payload = Codec[Any](m.SchedulerToExecutor).encode(message)
    size = bytes((0, len(payload))) if len(payload) < 256 else b"\x02" + len(payload).to_bytes(8, "big")
    return bytes((1, len(header))) + header + size + payload


ABSURD = m.Hello(
    executor="absurd", build="0", fingerprint="f", dtype="float32", device="cpu", num_blocks=2**20, block_size=16,
    max_num_seqs=2**13, max_batch_tokens=2**20, max_model_len=2**15, vocab_size=2048, pid=1, tokenizer="", grammars="",
    start_s=1.0, pool=None, node="", tasks=("generate",), hidden_size=64,
)  # fmt: skip
MODEST = msgspec.structs.replace(ABSURD, executor="modest", num_blocks=64, max_num_seqs=4, max_model_len=64)
BEAT = frames(m.ExecutorHeartbeat(epoch=1))
REPLAY = b"\x01\0\0\x08" + bytes(8)
TEXT = b"To be, or not to be, that is the question. "
CHAT = b'{"model":"baton-demo","messages":[' + b'{"role":"user","content":"x"},' * 90_000 + b'{"role":"user"}]}'
BLOCKS = b'{"model":"baton-demo","max_tokens":1,"messages":[{"role":"assistant","content":[' + (
    b'{"type":"redacted_thinking"},' * 16_000 + b'{"type":"image"}]}]}'
)
FILE = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
FLOODS: dict[str, tuple[str, Flood]] = {
    "executors: silent connections": ("executors", many_connections(b"", 1000)),
    "executors: garbage": ("executors", many_connections(b"GET / HTTP/1.1\r\n\r\n", 1)),
    "executors: finished handshakes": ("executors", many_connections(GREETING + READY, 1000)),
    "executors: endless message": ("executors", one_connection(GREETING + READY, b"\x01\x00" * 32768)),
    "executors: messages": ("executors", one_connection(GREETING + READY, BEAT * 1000)),
    "executors: absurd Hellos": ("executors", many_connections(GREETING + READY + frames(ABSURD), 200)),
    "executors: joining and breaking off": ("executors", many_connections(GREETING + READY + frames(MODEST), 1)),
    "kv events: subscriptions": ("events", one_connection(GREETING + READY_SUB, b"\0\x01\x01\0\x01\0" * 1000)),
    "kv events: subscribing and breaking off": ("events", many_connections(GREETING + READY_SUB + b"\0\x01\x01", 1)),
    "kv events: subscribers that never read": ("events", many_connections(GREETING + READY_SUB + b"\0\x01\x01", 200)),
    "kv events: replays": ("replay", one_connection(GREETING + READY, REPLAY * 1000)),
    "kv events: replays that are never read": ("replay", many_connections(GREETING + READY + REPLAY, 200)),
    "http: silent connections": ("http", many_connections(b"", 2000)),
    "http: endless head": ("http", one_connection(b"GET / HTTP/1.1\r\nx: ", b"a" * 65536)),
    "http: tiny chunks": (
        "http",
        one_connection(
            b"POST /health HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 10_000
        ),
    ),
    "http: trailers": (
        "http",
        one_connection(
            b"POST /health HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"a:\r\n" * 10_000
        ),
    ),
    "http: lists in UTF-16, 8 MiB": (
        "http",
        requests(
            "/v1/completions", ('{"metadata":{"\u2200":[' + "[]," * (4 * MIB // 3 - 20) + "[]]}}").encode("utf-16")
        ),
    ),
    "http: unknown keys, 8 MiB": (
        "http",
        requests("/v1/completions", (b"{" + b",".join(b'"k%d":1' % i for i in range(800_000)))[: 8 * MIB - 1] + b"}"),
    ),
    "http: empty messages": ("http", requests("/v1/chat/completions", b'{"messages":[' + b"{}," * 300_000 + b"{}]}")),
    "http: 32,000 texts to embed": (
        "http",
        requests("/v1/embeddings", b'{"model":"baton-demo","input":[' + b'"a",' * 32_000 + b'"a"]}'),
    ),
    "http: 32,000 documents": (
        "http",
        requests("/v1/rerank", b'{"model":"baton-demo","query":"a","documents":[' + b'"a",' * 32_000 + b'"a"]}'),
    ),
    "http: 90,000 messages": ("http", requests("/v1/chat/completions", CHAT)),
    "http: 16,000 blocks": ("http", requests("/v1/messages", BLOCKS)),
    "http: a file of 8 MiB without an end": (
        "http",
        requests("/v1/files", FILE + b"\r\n--" * (2 * MIB), "multipart/form-data; boundary=b"),
    ),
    "http: a text of 8 MiB": (
        "http",
        requests("/v1/completions", b'{"model":"baton-demo","prompt":"' + TEXT * (8 * MIB // len(TEXT) - 2) + b'"}'),
    ),
    "http: 260,000 token ids": (
        "http",
        requests("/v1/completions", b'{"model":"baton-demo","prompt":[' + b"5," * 260_000 + b"5]}"),
    ),
}


def compute(_port: int, _sent: Any) -> None:
    """Take a core and send nothing."""
    while True:
        sum(range(10_000))


@dataclass(frozen=True)
class Usage:
    """What a process has used: seconds of CPU, MB of memory, open files."""

    cpu_s: float
    resident_mb: float
    files: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        """A process's usage now."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        files = len(os.listdir(f"/proc/{pid}/fd"))
        return cls((int(fields[11]) + int(fields[12])) / TICKS, pages * resource.getpagesize() / MIB, files)


class Bystander(threading.Thread):
    """A client that streams without end, and notes its pauses; without a key where the service asks for none."""

    def __init__(self, url: str, key: str | None = None) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self.longest_s = 0.0
        self.num_tokens = 0
        self.errors: list[str] = []
        self._leaves = threading.Event()
        self.start()

    def watch(self) -> None:
        """Forget what was."""
        self.longest_s, self.num_tokens = 0.0, 0

    def leave(self) -> None:
        """Break the stream off, which a service that stops would wait for."""
        self._leaves.set()
        self.join()

    def run(self) -> None:
        """Stream until told to leave; a request that ends is followed by the next on the same connection."""
        body = {"model": "baton-demo", "prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True}
        with httpx.Client(timeout=60, trust_env=False) as http:
            while not self._leaves.is_set():
                try:
                    with http.stream("POST", f"{self._url}/v1/completions", json=body, headers=self._headers) as answer:
                        last = time.monotonic()
                        for _ in answer.iter_lines():
                            if self._leaves.is_set():
                                return
                            now = time.monotonic()
                            self.longest_s = max(self.longest_s, now - last)
                            self.num_tokens += 1
                            last = now
                except httpx.HTTPError as error:
                    self.errors.append(repr(error))
                    time.sleep(0.1)


class Visitor(threading.Thread):
    """A client that has small responses stored, and asks whether the service lives.

    Attributes:
        longest_s: of each of the two, seconds.
        failures: what was not answered with 200.
    """

    def __init__(self, url: str, key: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._headers = {"authorization": f"Bearer {key}"}
        self.longest_s: dict[str, float] = {}
        self.failures: list[str] = []
        self.start()

    def watch(self) -> None:
        """Forget what was."""
        self.longest_s, self.failures = {"response": 0.0, "health": 0.0}, []

    def run(self) -> None:
        """Ask again and again, by a connection for each request."""
        self.watch()
        asked = {"model": "baton-demo", "input": "x", "max_output_tokens": 1}
        while True:
            with httpx.Client(timeout=60, trust_env=False, base_url=self._url, headers=self._headers) as http:
                self._time("response", partial(http.post, "/v1/responses", json=asked))
                self._time("health", partial(http.get, "/health"))
            time.sleep(0.1)

    def _time(self, name: str, ask: Callable[[], httpx.Response]) -> None:
        start = time.monotonic()
        try:
            answer = ask()
            if answer.status_code != httpx.codes.OK:
                self.failures.append(f"{name}: {answer.status_code} {answer.text[:100]}")
        except httpx.HTTPError as error:
            self.failures.append(f"{name}: {error!r}")
        self.longest_s[name] = max(self.longest_s[name], time.monotonic() - start)


def measure(
    name: str,
    flood: Flood | None,
    port: int,
    seconds: float,
    pids: dict[str, int],
    other: Bystander,
    visitor: Visitor | None = None,
    store: Path | None = None,
) -> None:
    """Print one flood's line."""
    sent = multiprocessing.Value("q", 0)
    before = {role: Usage.of(pid) for role, pid in pids.items()}
    process = multiprocessing.Process(target=flood, args=(port, sent), daemon=True) if flood is not None else None
    disk_before = disk_mb(store)
    disk_peak = disk_before
    other.watch()
    if visitor is not None:
        visitor.watch()
    if process is not None:
        process.start()
    peaks = dict(before)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.1)
        disk_peak = max(disk_peak, disk_mb(store))
        for role, pid in pids.items():
            now, peak = Usage.of(pid), peaks[role]
            peaks[role] = Usage(now.cpu_s, max(now.resident_mb, peak.resident_mb), max(now.files, peak.files))
    line: dict[str, Any] = {"flood": name, "sent_mib": round(sent.value / MIB, 1)}
    line |= {"longest_pause_ms": round(1000 * other.longest_s), "tokens_per_s": round(other.num_tokens / seconds)}
    for role, start in before.items():
        line[f"{role}_cpu_percent"] = round(100 * (peaks[role].cpu_s - start.cpu_s) / seconds)
        line[f"{role}_mb_more"] = round(peaks[role].resident_mb - start.resident_mb, 1)
        line[f"{role}_files_more"] = peaks[role].files - start.files
    if visitor is not None:
        line |= {f"longest_{name}_ms": round(1000 * longest_s) for name, longest_s in visitor.longest_s.items()}
        line |= {"failed": len(visitor.failures), "failures": visitor.failures[:2]}
        line["disk_mb_more"] = round(disk_peak - disk_before, 1)
    if process is not None:
        process.kill()
        process.join()
    print(json.dumps(line), flush=True)
    await_closed(pids, before)


def await_closed(pids: dict[str, int], before: dict[str, Usage]) -> None:
    """Wait until processes have closed what a flood left behind, a second at most."""
    until = time.monotonic() + 1
    while time.monotonic() < until and any(Usage.of(pid).files > before[role].files for role, pid in pids.items()):
        time.sleep(0.05)


def disk_mb(folder: Path | None) -> float:
    """The sizes of a folder's files together."""
    if folder is None or not folder.exists():
        return 0.0
    return sum(path.stat().st_size for path in folder.iterdir()) / MIB


def write_keys(path: Path) -> dict[str, str]:
    """A file of API keys, and each key by its name."""
    keys = {name: f"sk-baton-{name}" for name in (SMALL, UNLIMITED, "bystander")}
    kept = [
        ApiKey(name=name, sha256=digest(key), created="", max_open_requests=int(name == SMALL))
        for name, key in keys.items()
    ]
    path.write_bytes(msgspec.json.encode(KeyFile(1, tuple(kept))))
    path.chmod(0o600)
    return keys


def children_of(pid: int) -> dict[str, int]:
    """The processes beside the core, by what they are."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        command = Path(f"/proc/{child}/cmdline").read_bytes()
        found["worker" if b"frontend.background" in command else "frontend"] = int(child)
    return found


def begin_worker(url: str, key: str) -> None:
    """Have a response in the background, as the worker starts with the first one."""
    headers = {"authorization": f"Bearer {key}"}
    asked = {"model": "baton-demo", "input": "x", "max_output_tokens": 1, "background": True}
    with httpx.Client(timeout=60, trust_env=False, base_url=url, headers=headers) as http:
        name = http.post("/v1/responses", json=asked).json()["id"]
        while http.get(f"/v1/responses/{name}").json()["status"] in ("queued", "in_progress"):
            time.sleep(0.1)


def flood_ports(seconds: float, names: Sequence[str]) -> None:
    """Flood each port of a service without keys."""
    port, executor_port, events, replay = free_ports(4)
    ports = {"executors": executor_port, "http": port, "events": events, "replay": replay}
    with tempfile.TemporaryDirectory() as folder:
        spec = FleetSpec(
            port=port,
            executor_port=executor_port,
            scheduler_options=(
                *("--journal", f"{folder}/journal.sqlite3", "--kv-events", f"tcp://127.0.0.1:{events}"),
                *("--kv-events-replay", f"tcp://127.0.0.1:{replay}"),
            ),
            executor_options=("--threads", "1", "--num-blocks", "4096"),
        )
        with LocalFleet(spec, Path(folder)) as fleet:
            fleet.wait_ready()
            core = fleet.pids[SCHEDULER]
            pids, other = {"core": core, "frontend": children_of(core)["frontend"]}, Bystander(spec.url)
            time.sleep(2)
            measure("none", None, 0, seconds, pids, other)
            measure("none, beside a process that computes", compute, 0, seconds, pids, other)
            for name in names:
                where, flood = FLOODS[name]
                measure(name, flood, ports[where], seconds, pids, other)
            undisturbed(other)


def flood_by_key(seconds: float, names: Sequence[str]) -> None:
    """Flood services with keys and a store, a new one for each flood."""
    for name in ("key: none", *names):
        port, executor_port = free_ports(2)
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            keys = write_keys(folder / "keys.json")
            store = folder / "store"
            spec = FleetSpec(
                port=port,
                executor_port=executor_port,
                scheduler_options=(
                    *("--journal", f"{folder}/journal.sqlite3", "--api-keys", str(folder / "keys.json")),
                    *("--store", str(store), "--store-limit", "60" if "uploads" in name else "2000"),
                ),
                executor_options=("--threads", "1", "--num-blocks", "4096"),
            )
            with LocalFleet(spec, folder) as fleet:
                fleet.wait_ready()
                begin_worker(spec.url, keys["bystander"])
                executor = next(pid for role, pid in fleet.pids.items() if role != SCHEDULER)
                pids = {"core": fleet.pids[SCHEDULER], **children_of(fleet.pids[SCHEDULER]), "executor": executor}
                other, visitor = Bystander(spec.url, keys["bystander"]), Visitor(spec.url, keys["bystander"])
                time.sleep(3)
                flood = None if name == "key: none" else flood_of(name, keys)
                measure(name, flood, port, seconds, pids, other, visitor, store)
                undisturbed(other)


def undisturbed(other: Bystander) -> None:
    """Let the bystander go. Raises ClickException if a request of it failed."""
    other.leave()
    if other.errors:
        raise click.ClickException(f"the bystander was disturbed: {other.errors[:3]}")


@click.command(context_settings={"show_default": True})
@click.option("--seconds", default=10.0, type=click.FloatRange(0.5), help="Of each flood.")
@click.option("--only", default="", help="Floods with this in their names.")
def main(seconds: float, only: str) -> None:
    """Flood each port of a service, and measure what it costs."""
    names, by_key = ([name for name in floods if only in name] for floods in (FLOODS, BY_KEY))
    if names:
        flood_ports(seconds, names)
    if by_key:
        flood_by_key(seconds, by_key)
