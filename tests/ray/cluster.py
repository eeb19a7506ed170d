"""A real Ray cluster of several raylets on this machine, and `baton ray` run against it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from scheduler_svc.client.processes.local_fleet import free_ports
from tests.e2e.service import BATON
from tests.support.eventually import eventually

TIMEOUT_S = 180.0
RAYS_ENVIRONMENT = {
    "RAY_TMPDIR": "/tmp",  # Ray's sockets lie below it, and their paths may have 107 characters
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "5",  # by default 15, which is next to nothing beside other tests; 0 takes the time of those
}


class ClusterError(Exception):
    """The cluster did not do as it was told."""


class RayCluster:
    """A cluster in a process of its own. Its methods are those of `cluster_process.Commands`.

    Args:
        folder: for the fleet's journal and files.
        cpus: of each node; the first is the head.
    """

    def __init__(self, folder: Path, *cpus: int) -> None:
        self.folder = folder
        self._errors = folder / "cluster.log"
        self._environment = {**os.environ, **RAYS_ENVIRONMENT, "TMPDIR": str(folder)}
        with self._errors.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.ray.cluster_process", *map(str, cpus)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
            )
        self._answer()
        self.address = self.ask("address")
        self.port, self.executor_port = free_ports(2)

    def ask(self, name, *arguments):
        """Call a method of the cluster."""
        self._process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise ClusterError(self._errors.read_text()[-4000:])
        answer = json.loads(line)
        if "error" in answer:
            raise ClusterError(answer["error"])
        return answer["answer"]

    def close(self):
        """End it, with all that runs there."""
        self._process.stdin.close()
        self._process.wait(timeout=60)

    @property
    def journal(self):
        return self.folder / "journal" / "journal.sqlite3"

    def baton(self, *arguments, expected=0):
        """Run `baton ray`, which ends with this exit code; what it wrote to stdout, or to stderr if it fails."""
        command = [*BATON, "ray", *map(str, arguments), "--address", self.address]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, env=self._environment, check=False
        )
        assert done.returncode == expected, f"{done.stdout}\n{done.stderr}\n{self.story()}"
        return done.stderr if expected else done.stdout

    def start_baton(self, *arguments):
        """Start `baton ray`, and do not wait for it."""
        command = [*BATON, "ray", *map(str, arguments), "--address", self.address]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self._environment)

    def manager(self):
        """The name of the manager's actor."""
        names = [name for name in self.ask("actors") if name.startswith("manager-r")]
        return max(names, key=lambda name: int(name.removeprefix("manager-r")), default="")

    def up_options(self, executors):
        """For `baton ray up`: executors of one CPU, on free ports, with a journal that all nodes see."""
        self.journal.parent.mkdir(exist_ok=True)
        ports = ("--port", self.port, "--executor-port", self.executor_port)
        return "--executors", executors, *ports, "--num-blocks", 1024, "--journal", self.journal

    def wait_until_complete(self, timeout_s=90.0):
        """Return when the fleet is as it was asked for."""
        eventually(lambda: self.ask("view")["is_complete"], timeout_s=timeout_s, told=self.story)

    def executor_reports(self):
        """What the executors' hosts say of themselves."""
        return list(self.ask("reports", "executor-").values())

    def executors(self):
        """Names of the executors' actors."""
        return [name for name in self.ask("actors") if name.startswith("executor-")]

    def story(self):
        """What the manager has done, for the message of a failure."""
        try:
            events = "\n".join(" ".join(event) for event in self.ask("view")["events"])
        except (ClusterError, OSError) as error:
            events = str(error)
        return f"{events}\n{self._errors.read_text()[-2000:]}"
