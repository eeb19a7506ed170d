"""A real keeper, and real processes that hold pools or wait for them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from common import messages as m
from common.keeper_socket import connect_to_keeper
from common.packets import PacketConnection
from tests import ROOT
from tests.support.eventually import eventually


class KeeperProcess:
    """`baton-keeper` on a socket in a folder.

    Args:
        within: a command that the keeper is started by.
    """

    def __init__(self, folder: Path, *options: str, within: tuple[str, ...] = ()) -> None:
        self.path = folder / "baton" / "keeper.sock"
        self.options = options
        self.within = within
        self.log_file = folder / "keeper.log"
        self.start()

    def start(self) -> None:
        command = [*self.within, sys.executable, "-m", "keeper_svc", "--socket", str(self.path), *self.options]
        before = self.log().count("event=ready")
        with self.log_file.open("a") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=log)
        eventually(lambda: self.log().count("event=ready") > before, told=self.log)

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60.0)

    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    def connect(self) -> PacketConnection[m.FromKeeper]:
        return PacketConnection(connect_to_keeper(self.path, 10.0), m.FromKeeper, m.MAX_ANSWER_BYTES)

    def ask(self, message: m.ToKeeper) -> m.FromKeeper:
        connection = self.connect()
        try:
            connection.send(message)
            answer = connection.receive()
        finally:
            connection.close()
        assert answer is not None
        return answer[0]

    def report(self) -> m.KeeperReport:
        report = self.ask(m.KeeperQuery())
        assert isinstance(report, m.KeeperReport)
        return report

    def num_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


class Puppet:
    """A process that does what it is told (`tests/keeper_svc/puppet.py`)."""

    def __init__(self, keeper: KeeperProcess, name: str) -> None:
        command = [sys.executable, "-m", "tests.keeper_svc.puppet", str(keeper.path), name]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, order: str) -> None:
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """The next line that it says."""
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
