"""A whole service as `baton up` runs it, and commands run against it: processes, all of them."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from scheduler_svc.client.processes.local_fleet import free_ports
from tests.support.eventually import eventually

BATON = (sys.executable, "-m", "scheduler_svc.client.cli")


class Service:
    """A `baton up` of its own, with a journal of its own.

    Args:
        options: more of `baton up`.
    """

    def __init__(self, folder: Path, executors: int = 1, options=()):
        self._folder = folder
        self._log = folder / "up.log"
        self._process = None
        port, executor_port = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self._arguments = [
            *("up", "--port", port, "--executor-port", executor_port, "--executors", executors),
            *("--threads", 1, "--num-blocks", 2048),
            *("--journal", folder / "journal.sqlite3", "--log-dir", folder),
            *options,
        ]

    def __enter__(self):
        with self._log.open("ab") as log:
            command = [*BATON, *map(str, self._arguments)]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        for line in self._process.stdout:
            if "Baton is ready" in line:
                return self
        raise AssertionError(self.logs())

    def __exit__(self, kind, *_):
        self._process.terminate()
        self._process.communicate()
        if kind is not None:
            print(self.logs())

    def logs(self):
        return "\n".join(f"--- {log.name} ---\n{log.read_text()[-6000:]}" for log in self._folder.glob("*.log"))

    def signal(self, number):
        """Send `baton up` a signal."""
        self._process.send_signal(number)

    def wait(self):
        """Its exit code, when it has ended."""
        return self._process.wait(60)

    def kill_scheduler(self):
        self.kill("scheduler")

    def kill(self, name):
        """Kill the process of this name, which is started again."""
        [pid] = self._pids(name)
        os.kill(pid, signal.SIGKILL)

    def executors_frozen(self):
        """No sequence gets a token. The scheduler may count the executors as lost meanwhile."""
        return frozen(*self._pids(r"executor-\d+"))

    def supervisor_frozen(self):
        """What ends is not started again."""
        return frozen(self._process.pid)

    def _pids(self, names):
        """Of the processes with these names (a regular expression), as they run now."""
        said = re.findall(rf"({names}) (?:has pid |started again \(pid )(\d+)", self.log())
        assert said, self.log()
        return [int(pid) for pid in dict(said).values()]  # the last one of each name

    def log(self):
        """What `baton up` has said."""
        return self._log.read_text()

    def start(self, *arguments):
        """Start a `baton` command against it."""
        return start_baton(self.url, *arguments)

    def run(self, *arguments):
        """Its output, when it has ended well."""
        return output_of(self.start(*arguments))

    def status(self):
        return status(self.url)

    def wait_for_sequences(self, number):
        """Return when so many are in progress at once."""
        eventually(lambda: count_open(self.status()) >= number, told=lambda: f"to have {number} sequences")


@contextlib.contextmanager
def frozen(*pids):
    """Processes that do nothing for a while: SIGSTOP, and SIGCONT at the end."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def start_baton(url, *arguments):
    """Start a `baton` command against a service."""
    command = [*BATON, *map(str, arguments), "--url", url]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )


def status(url):
    """What `GET /status` says."""
    return httpx.get(f"{url}/status").json()


def count_open(report):
    """Sequences that a status report shows."""
    return report["running"] + report["waiting"]


def output_of(process, *, outages=0, said=""):
    """What a command wrote, once it has ended well and said at least so many times that the service was away.

    Args:
        said: what has been read of its stderr already.
    """
    stdout, stderr = (output.decode() for output in process.communicate(timeout=120))
    stderr = said + stderr
    assert process.returncode == 0, stderr
    assert stderr.count("the service is away") == stderr.count("the service is back") >= outages, stderr
    return stdout


def read_until(stream, text):
    """What has come from a command's stdout or stderr, once it has that in it."""
    received = b""
    while text.encode() not in received:
        more = stream.read(1000)
        assert more, received.decode()
        received += more
    return received.decode()


def read(process, num_bytes):
    """What a command has written, once it is that much (of ASCII)."""
    text = ""
    while len(text) < num_bytes:
        received = process.stdout.read(num_bytes - len(text))
        assert received, process.communicate()
        text += received.decode()
    return text
