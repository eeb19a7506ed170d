"""Keys of a scheduler and its executors in a folder, and peers that use them."""

from pathlib import Path
from typing import Any

import zmq
from click.testing import CliRunner

from common import messages as m
from common.curve import ClientCurve, KeyPair, ServerCurve
from common.wire import Codec
from scheduler_svc.client.cli import main
from scheduler_svc.client.keys.key_ring import KeyRing
from tests.support.core import FakeExecutor, Peer


class KeysCommand:
    """Runs `baton keys` in a folder, and returns what it prints.

    Attributes:
        file: of the API keys.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "scheduler" / "api-keys.json"
        self._folder = folder

    def __call__(self, *arguments: str) -> str:
        done = CliRunner().invoke(main, ["keys", *arguments, "--dir", str(self._folder)])
        assert done.exit_code == 0, done.output
        return done.stdout.strip()


def key_ring(folder: Path, *executors: str) -> KeyRing:
    """A folder with the scheduler's keys and those of some executors."""
    ring = KeyRing(folder)
    ring.init()
    for name in executors:
        ring.add_executor(name)
    return ring


def server_curve(ring: KeyRing) -> ServerCurve:
    return ServerCurve.load(ring.scheduler)


def client_curve(ring: KeyRing, name: str) -> ClientCurve:
    return ClientCurve.load(ring.executor_folder(name))


def stranger_curve(ring: KeyRing) -> ClientCurve:
    """Keys that the scheduler does not know, of a peer that has learned the scheduler's public key."""
    return ClientCurve(KeyPair.generate(), server_curve(ring).keys.public)


class KeyedPeer(Peer):
    """A Peer with keys; None for none."""

    def __init__(self, endpoint: str, incoming: Any, curve: ClientCurve | None) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        if curve is not None:
            curve.protect(self.socket)
        self.socket.connect(endpoint)
        self.codec: Codec[Any] = Codec(incoming)


class KeyedExecutor(FakeExecutor):
    """A FakeExecutor with keys."""

    def __init__(self, endpoint: str, curve: ClientCurve, name: str = "keyed", **options: Any) -> None:
        self.curve = curve
        super().__init__(endpoint, name, **options)

    def run(self) -> None:
        peer = KeyedPeer(self.endpoint, m.SchedulerToExecutor, self.curve)
        try:
            self._serve(peer)
        finally:
            peer.close()
