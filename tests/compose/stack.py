"""compose.yaml under a name of its own: what the tests do with it."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import httpx

from scheduler_svc.client.processes.local_fleet import free_ports
from tests import ROOT
from tests.support.eventually import eventually

BATON = Path(sys.executable).with_name("baton")


class Stack:
    """One compose project.

    Args:
        env: in which `docker` finds its engine.

    Attributes:
        url: of the HTTP server.
        tag: of the images.
    """

    def __init__(self, env: dict[str, str]) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.tag = f"test-{uuid.uuid4().hex[:8]}"
        self._env = {
            **{name: value for name, value in env.items() if not name.startswith("BATON_")},
            "COMPOSE_PROJECT_NAME": f"baton-{self.tag}",
            "BATON_TAG": self.tag,
            "BATON_PORT": str(port),
            "BATON_EXECUTOR_ARGS": "--threads 1 --num-blocks 2048",
        }

    def docker(
        self, *arguments: str, check: bool = True, timeout_s: float = 120.0, input_text: str | None = None, **env: str
    ) -> str:
        """Run `docker`; its output, stderr with it."""
        command = ["docker", *arguments]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self._env | env,
            input=input_text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-6000:]}")
        return done.stdout.strip()

    def compose(self, *arguments: str, check: bool = True, timeout_s: float = 120.0, **env: str) -> str:
        """Run `docker compose`."""
        return self.docker("compose", *arguments, check=check, timeout_s=timeout_s, **env)

    def build(self) -> None:
        """Build both images; torch comes from a folder of wheels if pip is told of one that has it."""
        wheels = folder_with_torch()
        env = {"BATON_WHEELS": str(wheels), "BATON_TORCH_INDEX_URL": ""} if wheels else {}
        start = time.monotonic()
        self.compose("build", timeout_s=1500, **env)
        print(f"\nimages built in {time.monotonic() - start:.0f} s")

    def up(self, executors: int, num_serving: int | None = None, **env: str) -> None:
        """Start what is not running or not as it should be, and wait until it is healthy.

        Args:
            executors: containers.
            num_serving: how many of them serve; None for all.
        """
        start = time.monotonic()
        self.compose(
            *("up", "--detach", "--wait", "--wait-timeout", "240", "--scale", f"executor={executors}"),
            timeout_s=300,
            **env,
        )
        print(f"\nup with {executors} executors in {time.monotonic() - start:.0f} s")
        wanted = executors if num_serving is None else num_serving
        self.wait_for(lambda: self.num_joined() == wanted, f"{wanted} executors joined")

    def remove(self) -> None:
        """Remove containers, networks, volumes and images."""
        self.compose("down", "--volumes", "--remove-orphans", "--rmi", "all", "--timeout", "15", check=False)

    def containers(self, service: str) -> list[str]:
        """Full ids of the containers of a service."""
        return self.compose("ps", "--all", "--quiet", "--no-trunc", service).split()

    def inspect(self, container: str, template: str) -> str:
        """What `docker inspect` says."""
        return self.docker("inspect", "--format", template, container)

    def health(self, container: str) -> str:
        """What its health check says: `starting`, `healthy` or `unhealthy`."""
        return self.inspect(container, "{{.State.Health.Status}}")

    def crash(self, container: str) -> None:
        """Kill its first process from outside; `docker kill` would count as stopped by hand and start nothing anew."""
        os.kill(int(self.inspect(container, "{{.State.Pid}}")), signal.SIGKILL)

    def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
        """Ask until it is so."""
        eventually(condition, timeout_s, lambda: what)

    def status(self) -> dict:
        """The scheduler's report."""
        return httpx.get(f"{self.url}/status", timeout=5).raise_for_status().json()

    def num_joined(self) -> int:
        """Executors that can take work; 0 while nothing answers."""
        try:
            return httpx.get(f"{self.url}/ready", timeout=5).json().get("executors", 0)
        except httpx.HTTPError:
            return 0

    def busy_executor(self) -> str:
        """Container of the executor that runs a sequence. Executors are called after their host, the container."""
        (name,) = (executor["executor"] for executor in self.status()["executors"] if executor["running"])
        (container,) = (found for found in self.containers("executor") if name.startswith(found[:12]))
        return container

    def baton(self, *arguments: str) -> str:
        """What a `baton` command of this environment writes to stdout."""
        command = [str(BATON), *arguments, "--url", self.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr}"
        return done.stdout


def folder_with_torch() -> Path | None:
    """Folder that pip looks into for wheels, if one has torch (a machine that cannot reach PyTorch's index)."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    configured = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    for name in f"{os.environ.get('PIP_FIND_LINKS', '')} {configured}".split():
        if any(Path(name).glob("torch-*.whl")):
            return Path(name).resolve()
    return None
