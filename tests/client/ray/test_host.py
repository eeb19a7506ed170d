"""One process kept up on a machine: real processes, and no Ray."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler_svc.client.clock import Clock
from scheduler_svc.client.processes.child import ChildEnd
from scheduler_svc.client.ray.facts import Life
from scheduler_svc.client.ray.host import Hope, HostError, ProcessHost
from scheduler_svc.client.ray.task import HEALTH_FILE, Task
from tests.client.clocks import HurriedClock
from tests.support.eventually import eventually

NODE = ("0123456789abcdef", "127.0.0.1")
WAIT = "import signal; signal.pause()"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def start():
    hosts = []

    def start(code, gpus=None, clock=Clock(), **task):  # noqa: B008
        task = {"command": ("{python}", "-c", code)} | task
        hosts.append(ProcessHost("executor-0-0-r1", "fleet", Task(**task), NODE, gpus, clock))
        return hosts[-1]

    yield start
    for host in hosts:
        host.leave(0.0)
        eventually(lambda host=host: host.report().life is not Life.RUNNING)


def test_a_process_that_dies_is_started_again_with_the_other_command(start):
    host = start(WAIT, again=("{python}", "-c", WAIT + "; again = 1"))
    eventually(lambda: host.report().pid)
    first = host.report().pid
    os.kill(first, signal.SIGKILL)
    eventually(lambda: host.report().pid not in (0, first))
    report = host.report()
    assert (report.ends, report.life) == (1, Life.RUNNING)
    assert "killed by signal 9" in report.reason
    assert "again = 1" in Path(f"/proc/{report.pid}/cmdline").read_text()


def test_a_process_that_is_misconfigured_is_not_started_again(start):
    host = start("import sys; print('no such model', file=sys.stderr); sys.exit(2)")
    eventually(lambda: host.report().life is Life.FAILED)
    report = host.report()
    assert report.ends == 1
    assert report.reason.endswith("exited with code 2: no such model")


def test_a_program_that_is_not_there(start):
    host = start("", command=("/no/such/program",))
    eventually(lambda: host.report().life is Life.FAILED)
    assert host.report().reason == "/no/such/program: No such file or directory"


def test_leaving(start):
    host = start(WAIT)
    eventually(lambda: host.report().pid)
    host.leave(30.0)
    assert host.report().is_leaving
    eventually(lambda: host.report().life is Life.LEFT)
    assert "SIGTERM" in host.report().reason or "signal 15" in host.report().reason


def test_a_process_that_does_not_leave_is_killed(start):
    host = start("import signal; signal.signal(15, signal.SIG_IGN); signal.pause()")
    eventually(lambda: ignores_sigterm(host.report().pid))
    host.leave(0.2)
    eventually(lambda: host.report().life is Life.LEFT)
    assert "killed by signal 9" in host.report().reason


def ignores_sigterm(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines() if pid else []
    return any(int(line.split()[1], 16) & 1 << 14 for line in lines if line.startswith("SigIgn:"))


class SlowClock(Clock):
    """Waits ten minutes instead of seconds, if nothing happens."""

    def wait(self, event, seconds):
        return event.wait(600.0)


def test_leaving_ends_the_wait_for_the_next_start(start):
    host = start("import os; os._exit(1)", clock=SlowClock())
    eventually(lambda: host.report().ends)
    host.leave(30.0)
    eventually(lambda: host.report().life is Life.LEFT)


def test_files_folders_and_variables(start, folder, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    shown = folder / "shown"
    code = (
        f"import os, sys, signal; e = os.environ; w = ' '.join([*sys.argv[1:], e['BATON_NODE'], "
        f"e.get('OMP_NUM_THREADS', '-')]); open({str(shown)!r}, 'w').write(w); signal.pause()"
    )
    command = ("{python}", "-c", code, "{folder}/keys", "{shared}/keeper.sock", "tcp://{host}:1")
    host = start("", command=command, files={"keys/secret": "s"}, without=("OMP_NUM_THREADS",))
    eventually(lambda: shown.exists() and shown.read_text())
    keys, keeper, endpoint, node, threads = shown.read_text().split()
    assert (endpoint, node, threads) == ("tcp://127.0.0.1:1", "127.0.0.1", "-")
    secret = Path(keys) / "secret"
    assert secret.read_text() == "s"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    for at in (secret.parent, secret.parent.parent, Path(keeper).parent):
        assert stat.S_IMODE(at.stat().st_mode) == 0o700
    host.put_file("keys/another", "t")
    assert (secret.parent / "another").read_text() == "t"
    host.drop_file("keys/another")
    host.drop_file("keys/another")
    assert not (secret.parent / "another").exists()


def test_a_process_that_ends_at_once_again_and_again_is_given_up(start):
    """As torchrun does whose ranks are misconfigured: it says 1, whatever they say."""
    host = start("import os; os._exit(1)", clock=HurriedClock())
    eventually(lambda: host.report().life is Life.FAILED)
    assert host.report().ends == 5


@pytest.mark.parametrize(
    ("end", "is_given_up"),
    [
        ({"returncode": 75, "uptime_s": 60.0}, True),
        ({"returncode": 1, "uptime_s": 9.0}, True),
        ({"returncode": 1, "uptime_s": 11.0}, False),
        ({"returncode": 0, "uptime_s": 1.0}, False),
    ],
    ids=["cannot start, after a pause", "dies early", "dies late", "leaves"],
)
def test_which_ends_in_a_row_leave_no_hope(end, is_given_up):
    hope = Hope()
    assert [hope.ends_with(ChildEnd("executor-0", **end)) for _ in range(6)][:5] == [False] * 4 + [is_given_up]


def test_a_long_life_gives_hope_again():
    hope, early, late = Hope(), ChildEnd("executor-0", 1, 1.0), ChildEnd("executor-0", 1, 60.0)
    assert not any(hope.ends_with(end) for end in [early, early, early, early, late, early, early, early, early])
    assert hope.ends_with(early)


def test_what_was_secret_goes_with_the_process(start, folder):
    host = start(WAIT, files={"keys/secret": "s"})
    (secret,) = folder.glob("**/secret")
    eventually(lambda: host.report().pid)
    host.leave(30.0)
    eventually(lambda: not secret.exists() and not secret.parent.parent.exists())


def test_health(start):
    host = start(f"open({HEALTH_FILE!r}, 'w')")
    assert not host.report().is_well
    host.put_file(HEALTH_FILE, "")
    assert host.report().is_well


def test_gpus_are_those_that_ray_gave_or_those_of_another_host(start, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    first = start(WAIT)
    assert first.report().gpus == ("2", "3")
    first.leave(0.0)
    host = start(WAIT, gpus=("0", "1"))
    assert host.report().gpus == ("0", "1")
    eventually(lambda: host.report().pid)
    environment = Path(f"/proc/{host.report().pid}/environ").read_text().split("\0")
    assert "CUDA_VISIBLE_DEVICES=0,1" in environment


def test_a_folder_of_others_is_not_used_and_another_one_is(folder, start, monkeypatch):
    monkeypatch.setenv("HOME", str(folder / "home"))
    (folder / "home").mkdir()
    at = folder / f"baton-ray-{os.geteuid()}"
    at.mkdir(mode=0o755)
    at.chmod(0o755)
    host = start(WAIT)
    assert eventually(lambda: host.report().pid)
    assert list(at.iterdir()) == []
    (own,) = (folder / "home" / ".baton-ray").iterdir()
    host.leave(0.0)
    own.parent.chmod(0o755)
    with pytest.raises(HostError, match=f"{at} is open to other users"):
        ProcessHost("executor-0-0-r1", "fleet", Task(command=("true",)), NODE)


def test_the_process_ends_with_its_host(folder):
    code = (
        "import sys, time; from scheduler_svc.client.ray.host import ProcessHost; "
        "from scheduler_svc.client.ray.task import Task; import tempfile; tempfile.tempdir = sys.argv[1]\n"
        f"host = ProcessHost('executor-0-0-r1', 'fleet', Task(command=('{{python}}', '-c', {WAIT!r})), {NODE!r})\n"
        "while not host.report().pid: pass\n"
        "print(host.report().pid, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate()
    eventually(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])
