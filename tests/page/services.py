"""Real services for tests of the page: scheduler, frontend and executors with the demo model."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx

from scheduler_svc.api_key_file import ApiKey, digest, encode_key_file, new_key
from scheduler_svc.client.processes.local_fleet import FleetSpec, LocalFleet, free_ports
from tests.e2e.service import Service
from tests.support.eventually import eventually
from tests.support.plain_http import http

# By what a key may do: everything, read what tells about all clients, only send requests.
ADMIN, READER, PLAIN, OTHER = (new_key() for _ in range(4))
RIGHTS = {
    "admin": (ADMIN, {"admin": True, "metrics": True}),
    "reader": (READER, {"metrics": True}),
    "plain": (PLAIN, {}),
    "other": (OTHER, {}),
}
OPTIONS = ("--no-keep", "--no-store")  # a replaced executor has nothing of the old one: what moves is computed again


def write_keys(folder: Path) -> Path:
    """The file of all keys above."""
    path = folder / "api-keys.json"
    entries = [
        ApiKey(name=name, sha256=digest(key), created="2026-11-26T00:00:00+00:00", **rights)
        for name, (key, rights) in RIGHTS.items()
    ]
    path.write_bytes(encode_key_file(entries))
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def running_service(folder: Path, *options, executors: int = 2, keyed: bool = False) -> Iterator[Service]:
    """A service whose executors have all joined.

    Args:
        options: of `baton up`.
        keyed: whether it needs API keys, those above.
    """
    keys = ("--api-keys", write_keys(folder)) if keyed else ()
    with Service(folder, executors, (*OPTIONS, *keys, *options)) as service:
        if not keyed:
            wait_until_whole(service, executors)
        yield service


def wait_until_whole(service: Service, executors: int = 2) -> None:
    """Return when so many executors are ready."""
    eventually(lambda: [each["state"] for each in service.status()["executors"]] == executors * ["ready"])


@contextlib.contextmanager
def scheduler_alone(folder: Path) -> Iterator[str]:
    """The URL of a service that no executor has joined. `baton up` would wait for one before it says anything."""
    port, executor_port = free_ports(2)
    options = ("--journal", str(folder / "journal.sqlite3"), "--no-store")
    spec = FleetSpec(port=port, executor_port=executor_port, executors=0, scheduler_options=options)
    with LocalFleet(spec, folder):
        eventually(lambda: answers(f"{spec.url}/page/about"))
        yield spec.url


@contextlib.contextmanager
def slowed(executors: list[dict]) -> Iterator[None]:
    """Executors, as a status shows them, that get a fifth of their time: what they do takes seconds on every machine,
    and is not over before a browser has done something."""
    pids = [executor["pid"] for executor in executors]
    is_over = threading.Event()

    def tell(number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it was killed, as the test wants it
                os.kill(pid, number)

    def alternate() -> None:
        while not is_over.wait(0.05):
            tell(signal.SIGSTOP)
            is_over.wait(0.2)
            tell(signal.SIGCONT)

    thread = threading.Thread(target=alternate)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def answers(url: str) -> bool:
    """Whether there is an answer, and no error."""
    try:
        return http.get(url).is_success
    except httpx.TransportError:
        return False
