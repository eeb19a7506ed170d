"""An executor whose ranks lie on two machines: a torchrun on each, as deploy/kubernetes/tensor-parallel starts them.

Both run on this one here, over the loopback; between them there is nothing but torchrun's port and gloo's.
"""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from common import messages as m
from scheduler_svc.client.processes.local_fleet import free_ports
from tests import ROOT
from tests.deploy.manifests import KUBERNETES
from tests.executor_svc.conftest import Make
from tests.executor_svc.harness import Row, make_plan
from tests.executor_svc.service.steps import BLOCK_SIZE, greedy, ranks_of
from tests.support.checkpoints import reference_greedy
from tests.support.eventually import eventually
from tests.support.fake_scheduler import FakeScheduler
from tests.support.processes import is_running

pytestmark = pytest.mark.slow

SET = next(yaml.safe_load_all((KUBERNETES / "tensor-parallel" / "executors.yaml").read_text()))
SIZE = SET["spec"]["leaderWorkerTemplate"]["size"]
HERE = {  # what differs from the pods: where things are, and a small model and pool in which little is computed
    "--scheduler": "ENDPOINT",
    "--threads": "1",
    "--curve-keys": None,
    "--health-file": None,
}
SMALL = ["--num-blocks=32", "--max-num-seqs=4", "--dtype=float32"]


def command_line(role: str, index: int, port: int, model: Path) -> list[str]:
    """What a pod of the group runs, for this machine."""
    container = SET["spec"]["leaderWorkerTemplate"][f"{role}Template"]["spec"]["containers"][0]
    variables = {"LWS_GROUP_SIZE": SIZE, "LWS_WORKER_INDEX": index, "LWS_LEADER_ADDRESS": "127.0.0.1", "POD_NAME": "p"}
    arguments = []
    here = {**HERE, "--master-port": str(port)}
    for word in container["args"][1:]:
        option, _, _ = word.partition("=")
        if option not in here:
            arguments.append(re.sub(r"\$\((\w+)\)", lambda name: str(variables[name[1]]), word))
        elif here[option] is not None:
            arguments.append(f"{option}={here[option]}")
    return [*arguments, *SMALL, f"--model={model}"]


class Machines:
    """The leader's torchrun, whose rank speaks to the test's scheduler, and the worker's."""

    def __init__(self, model: Path) -> None:
        (port,) = free_ports(1)
        self.scheduler = FakeScheduler(*command_line("leader", 0, port, model))
        worker = [word.replace("ENDPOINT", self.scheduler.endpoint) for word in command_line("worker", 1, port, model)]
        self.worker = subprocess.Popen([sys.executable, *worker], cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def close(self) -> None:
        for process in (self.scheduler.process, self.worker):  # their ranks die with them
            process.kill()
        self.worker.communicate()
        self.scheduler.close()


@pytest.fixture
def machines(checkpoint: Make, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    machines = Machines(checkpoint(preset="0.6B"))
    yield machines
    machines.close()


def test_two_machines_are_one_executor_and_leave_together(machines: Machines, checkpoint: Make) -> None:
    prompt = list(range(20))
    expected = reference_greedy(checkpoint(preset="0.6B"), prompt, 8)  # it takes longer than heartbeats may
    group = machines.scheduler
    hello = group.expect(m.Hello, timeout_s=60)
    assert (hello.executor, hello.device) == ("p", f"{SIZE} x cpu")
    group.send(m.Welcome(epoch=1))
    assert greedy(group, prompt, 8) == expected
    for torchrun in (machines.worker, group.process):  # both pods of a group are stopped at once
        torchrun.send_signal(signal.SIGTERM)
    group.expect(m.Leaving, beat=1)
    group.send(m.EpochOver(epoch=1, reason="left"))
    for torchrun in (group.process, machines.worker):
        torchrun.wait(30)
    assert ranks_of(group.process) == []


def test_the_death_of_the_leaders_machine_ends_the_other_rank(machines: Machines) -> None:
    """Its container starts again, and the controller makes the whole group anew. No rank outlives its torchrun."""
    machines.scheduler.join()
    greedy(machines.scheduler, [1, 2, 3], 1)
    (rank,) = ranks_of(machines.scheduler.process)
    machines.scheduler.process.kill()
    eventually(lambda: not is_running(rank))
    assert machines.worker.wait(30) != 0


def test_the_death_of_the_other_machine_ends_rank_0_at_the_next_plan(machines: Machines) -> None:
    """No torchrun watches another machine's, so an idle rank 0 notices nothing; the controller does."""
    group = machines.scheduler
    group.join()
    greedy(group, [1, 2, 3], 1)
    (rank,) = ranks_of(machines.worker)
    machines.worker.kill()
    eventually(lambda: not is_running(rank))
    group.send(m.SchedulerHeartbeat(epoch=1))
    group.send(make_plan([Row(0, [1, 2, 3], 3, [1])], BLOCK_SIZE, step=1))
    assert group.exit_code(30) != 0
