"""Keys of a scheduler and its executors in a folder."""

from pathlib import Path

from click.testing import CliRunner

from common.curve import ClientCurve, KeyPair, ServerCurve
from scheduler_svc.client.cli import main
from scheduler_svc.client.keys.key_ring import KeyRing


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
