"""deploy/systemd on a real systemd: the first process of a container, with what docs/operations.md says to type.

A call that SystemCallFilter does not have ends its process here, where the units themselves only refuse it: so whatever
the services do in these tests is on the list.
"""

import itertools
import json
import re
import shlex

import httpx
import pytest

from scheduler_svc.client.processes.local_fleet import free_ports
from tests.compose.stack import ROOT, Stack

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]

UNITS = ("baton-keeper.service", "baton-scheduler.service", "baton-executor@.service")
SERVICES = ("baton-keeper", "baton-scheduler", "baton-executor@1", "baton-executor@2")
IMAGE = """
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends systemd && rm -rf /var/lib/apt/lists/*
COPY --from=baton-executor:{tag} /opt /opt
"""
# A cgroup of its own, so that it is not those of the machine that systemd orders.
BOOT = """
mkdir -p /cg && mount -t cgroup2 none /cg && mkdir -p /cg/$GROUP && echo $$ > /cg/$GROUP/cgroup.procs && umount /cg &&
exec unshare --cgroup sh -c \
    'mount -t cgroup2 none /sys/fs/cgroup && exec env container=docker /lib/systemd/systemd --unit=multi-user.target'
"""
DROP_IN = "[Service]\nSystemCallErrorNumber=\nEnvironment=PYTHONPYCACHEPREFIX=/opt/bytecode\n"
ENV = """
BATON_SCHEDULER_ARGS=--host 0.0.0.0 --executor-endpoint tcp://0.0.0.0:5555
BATON_EXECUTOR_ARGS=--scheduler tcp://127.0.0.1:5555 --curve-keys /var/lib/baton/keys/executors/local \
--threads 1 --num-blocks 1024 --standby auto
"""
LONG = {"model": "baton-demo", "prompt": "JULIET:\nO Romeo, Romeo! ", "max_tokens": 800, "temperature": 0}


class Machine:
    """A container whose first process is systemd, and which has the images' Python environment in /opt/baton."""

    def __init__(self, stack: Stack, container: str, url: str) -> None:
        self.url = url
        self.key = ""
        self._stack = stack
        self._container = container
        self._answer = ""

    def sh(self, script: str) -> str:
        """Run a script as root; its output, stderr with it."""
        return self._stack.docker("exec", self._container, "bash", "-ec", script)

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.sh(f"systemctl show --property={name} --value {unit}")

    def status(self) -> dict:
        return httpx.get(f"{self.url}/status", headers=self._headers(), timeout=5).raise_for_status().json()

    def is_complete(self) -> bool:
        """Whether one executor serves and the other one waits."""
        try:
            return [executor["has_standby"] for executor in self.status()["executors"]] == [True]
        except httpx.HTTPError:
            return False

    def serving(self) -> str:
        """The unit of the executor that serves."""
        (executor,) = self.status()["executors"]
        return f"baton-executor@{executor['executor'].rpartition('-')[2]}"

    def stream(self, **request):
        """Pieces of an answer."""
        body = {**LONG, "stream": True, "ignore_eos": True, **request}
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, headers=self._headers(), timeout=120) as got:
            got.raise_for_status()
            for line in got.iter_lines():
                field, _, data = line.partition(": ")
                if field == "data" and data != "[DONE]":
                    event = json.loads(data)
                    assert "error" not in event, event
                    yield from (choice["text"] for choice in event["choices"])

    def undisturbed(self) -> str:
        """The answer, computed once for all tests."""
        self._answer = self._answer or "".join(self.stream())
        return self._answer

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


def recipe(nth: int) -> str:
    """A block of what docs/operations.md says to type, for a shell of root's."""
    guide = (ROOT / "docs" / "operations.md").read_text()
    section = guide[guide.index("### With pip, under systemd") : guide.index("### With Docker compose")]
    block = re.findall(r"^```\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)[nth]
    lines = (line.removeprefix("sudo ") for line in block.splitlines())
    return "\n".join(line for line in lines if not re.search(r"^apt-get|pip install", line))


@pytest.fixture(scope="module")
def machine(stack):
    image, name = f"baton-systemd:{stack.tag}", f"baton-systemd-{stack.tag}"
    (port,) = free_ports(1)
    build = ("build", "--quiet", "--tag", image, "--file", "-", str(ROOT / "tests" / "compose"))
    stack.docker(*build, input_text=IMAGE.format(tag=stack.tag), timeout_s=600)
    confined = ("--cap-add=ALL", "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined")
    folders = ("--tmpfs=/run:exec", "--tmpfs=/run/lock", f"--volume={ROOT / 'deploy'}:/source/deploy:ro")
    where = (f"--publish=127.0.0.1:{port}:8000", f"--name={name}", "--hostname=box", f"--env=GROUP={name}")
    container = stack.docker("run", "--detach", *confined, *folders, *where, image, "sh", "-c", BOOT)
    try:
        machine = Machine(stack, container, f"http://127.0.0.1:{port}")
        stack.wait_for(lambda: "running" in machine.sh("systemctl is-system-running || true"), "systemd has booted")
        machine.sh(f"mkdir /models; cd /source\n{recipe(0)}")
        for unit in UNITS:
            folder = f"/etc/systemd/system/{unit}.d"
            machine.sh(f"mkdir -p {folder}; printf %s {shlex.quote(DROP_IN)} > {folder}/tests.conf")
        machine.sh(f"printf %s {shlex.quote(ENV)} > /etc/baton/baton.env; systemctl daemon-reload")
        told = machine.sh(f"cd /source\n{recipe(1)}\nsystemctl enable --now baton-executor@2")
        (machine.key,) = (word for word in told.split() if word.startswith("sk-baton-"))
        stack.wait_for(machine.is_complete, "one executor serves and the other one waits")
        yield machine
    finally:
        print(stack.docker("exec", container, "journalctl", "--no-pager", "--lines=200", "--output=cat", check=False))
        stack.docker("rm", "--force", container, check=False)
        stack.docker("image", "rm", image, check=False)


@pytest.mark.parametrize("signal", ["KILL", "STOP"])
def test_an_executor_ends_or_hangs_in_the_middle_of_an_answer(stack, machine, signal):
    """Its standby goes on with its memory; the keeper kills a hung one. Nothing is computed again."""
    undisturbed, before, unit = machine.undisturbed(), machine.status(), machine.serving()
    pieces = machine.stream()
    start = list(itertools.islice(pieces, 20))
    num_restarts = int(machine.show(unit, "NRestarts"))
    machine.sh(f"systemctl kill --kill-whom=main --signal={signal} {unit}")
    assert "".join([*start, *pieces]) == undisturbed
    after = machine.status()
    assert (
        after["pools_adopted"] > before["pools_adopted"]
    )  # more than one where the machine is slow and heartbeats late
    assert after["recomputed_tokens"] == before["recomputed_tokens"]
    assert machine.serving() != unit
    stack.wait_for(machine.is_complete, "it is the standby now")
    assert int(machine.show(unit, "NRestarts")) == num_restarts + 1


def test_a_keeper_that_is_restarted_gets_what_the_one_before_held(stack, machine):
    machine.sh("systemctl restart baton-keeper")
    status = "runuser -u baton -- /opt/baton/bin/baton keeper status --socket /run/baton/keeper.sock || true"
    stack.wait_for(lambda: " held " in machine.sh(status), "the executor has brought its pool")
    stack.wait_for(machine.is_complete, "its standby waits again")
    test_an_executor_ends_or_hangs_in_the_middle_of_an_answer(stack, machine, "KILL")


def test_the_scheduler_comes_back_and_its_executors_stay(stack, machine):
    pids = [machine.show(unit, "MainPID") for unit in SERVICES if "executor" in unit]
    machine.sh("systemctl kill --kill-whom=main --signal=KILL baton-scheduler")
    stack.wait_for(machine.is_complete, "its executors have found the next one")
    assert len("".join(machine.stream())) > 100
    assert [machine.show(unit, "MainPID") for unit in SERVICES if "executor" in unit] == pids


def test_each_may_write_only_its_own(machine):
    """The keys are the scheduler's: executors do not see them, and no service may change anything else."""
    for unit in SERVICES:
        enter = f"nsenter --target {machine.show(unit, 'MainPID')} --mount sh -c"  # as root: the mode forbids nothing
        for path in ("/opt/baton/x", "/etc/baton/x", "/models/x"):
            assert "Read-only file system" in machine.sh(f"{enter} 'touch {path}' 2>&1 || true"), (unit, path)
        sees_keys = machine.sh(f"{enter} 'ls /var/lib/baton/keys/scheduler 2>&1 || true'")
        assert ("server.key_secret" in sees_keys) == ("executor" not in unit), unit
        may_keep = machine.sh(f"{enter} 'touch /var/lib/baton/x 2>&1 && echo written || true'")
        assert ("written" in may_keep) == (unit == "baton-scheduler"), unit


def test_all_stop_in_order_and_the_scheduler_first(stack, machine):
    """As when the machine is shut down, all in one transaction: an open answer ends, which needs an executor."""
    undisturbed, pieces = machine.undisturbed(), machine.stream(max_tokens=200)
    start = list(itertools.islice(pieces, 5))
    conflicts = " ".join(f"{unit}.service" for unit in SERVICES)
    off = f"[Unit]\\nConflicts={conflicts}\\nAfter={conflicts}\\n"
    machine.sh(f"printf '{off}' > /run/systemd/system/off.target; systemctl daemon-reload")
    machine.sh("systemctl start --no-block off.target")
    text = "".join([*start, *pieces])
    assert len(text) > len("".join(start))
    assert undisturbed.startswith(text)
    stack.wait_for(lambda: machine.show("baton-keeper", "ActiveState") == "inactive", "the last one has stopped")
    for unit in SERVICES:
        assert machine.show(unit, "ActiveState") == "inactive", unit
        assert machine.show(unit, "Result") == "success", unit
        assert machine.show(unit, "ExecMainStatus") == "0", unit
    lines = machine.sh("journalctl --no-pager --output=json --unit='baton-*'").splitlines()
    told = [(event["_SYSTEMD_UNIT"], event["MESSAGE"]) for event in map(json.loads, lines) if "_SYSTEMD_UNIT" in event]
    stopped = [unit for unit, message in told if "event=stopped" in message][-len(SERVICES) :]
    assert stopped[0] == "baton-scheduler.service"
    assert stopped[-1] == "baton-keeper.service"
    assert not any("code=killed, status=31/SYS" in message for _, message in told)


def test_a_wrong_option_leaves_a_service_down(stack, machine):
    """What no further start can mend, as its line says; the other exit codes are started again."""
    machine.sh("echo BATON_KEEPER_ARGS=--nonsense >> /etc/baton/baton.env; systemctl start baton-keeper")
    stack.wait_for(lambda: machine.show("baton-keeper", "ActiveState") == "failed", "it is left down")
    assert machine.show("baton-keeper", "ExecMainStatus") == "2"
    assert machine.show("baton-keeper", "NRestarts") == "0"
    assert "--nonsense" in machine.sh("journalctl --no-pager --unit=baton-keeper --lines=5")
