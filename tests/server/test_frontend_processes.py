"""The core and the processes beside it: their troubles are theirs, and they do not outlive it."""

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.model_files import DEMO_MODEL_DIR
from scheduler_svc.client.processes.local_fleet import free_ports
from scheduler_svc.core.requests.journal_replay import read_batches
from scheduler_svc.server import addresses
from scheduler_svc.server.child_process import RESTART_DELAY_S
from scheduler_svc.server.frontend_processes import FrontendProcesses, WorkerStart
from scheduler_svc.store_options import LIMIT_MB, MEGABYTE, WORKER_SOCKET
from tests import ROOT
from tests.server.scheduler_process import SchedulerProcess
from tests.support.eventually import eventually
from tests.support.journals import read
from tests.support.plain_http import http
from tests.support.processes import is_running


class Scheduler(SchedulerProcess):
    """With one frontend, no executor, and a folder for temporary files of its own."""

    def __init__(self, folder):
        self.journal, self.temporary = folder / "journal", folder / "tmp"
        self.temporary.mkdir()
        self.port, back = free_ports(2)
        options = ("--port", self.port, "--journal", self.journal, "--executor-endpoint", f"tcp://127.0.0.1:{back}")
        super().__init__(folder, *options, environment={"TMPDIR": str(self.temporary)})

    def answers(self):
        with contextlib.suppress(httpx.TransportError):
            return http.get(f"http://127.0.0.1:{self.port}/health").status_code == 200

    def metrics(self):
        with contextlib.suppress(httpx.TransportError):
            return http.get(f"http://127.0.0.1:{self.port}/metrics").text
        return ""

    def frontends(self):
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]


@pytest.fixture(scope="module")
def one_for_all(tmp_path_factory):
    scheduler = Scheduler(tmp_path_factory.mktemp("scheduler"))
    yield scheduler
    scheduler.stop()


@pytest.fixture
def scheduler(one_for_all):
    if not one_for_all.is_running:
        one_for_all.start(one_for_all.answers)
    return one_for_all


def test_after_kill_9_the_next_one_has_the_address_even_if_a_frontend_was_frozen(scheduler):
    [frozen] = scheduler.frontends()
    os.kill(frozen, signal.SIGSTOP)
    scheduler.kill()
    scheduler.start(scheduler.answers)
    eventually(lambda: not is_running(frozen))
    [frontend] = scheduler.frontends()
    assert list(scheduler.temporary.iterdir()) == [], "nothing is left behind, and nothing could be removed"
    os.kill(frontend, signal.SIGKILL)
    eventually(lambda: 'baton_process_failures_total{process="frontend"} 1.0' in scheduler.metrics())


def test_metrics_say_what_each_process_takes_also_of_one_that_was_started_again(scheduler):
    [frontend] = scheduler.frontends()
    before = process_metrics(scheduler)
    ids = {"core": scheduler.process.pid, "frontend-1": frontend}
    for process, pid in ids.items():
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        assert before["resident_memory_bytes", process] == pytest.approx(pages * resource.getpagesize(), rel=0.2)
        assert before["max_fds", process] >= before["open_fds", process] > 3
        assert before["cpu_seconds_total", process] > 0
    assert {process for _, process in before} == ids.keys(), "the worker was not started yet"
    os.kill(frontend, signal.SIGKILL)
    eventually(lambda: scheduler.frontends() not in ([], [frontend]) and scheduler.answers())
    after = process_metrics(scheduler)
    assert after["start_time_seconds", "frontend-1"] > before["start_time_seconds", "frontend-1"]
    assert after["start_time_seconds", "core"] == before["start_time_seconds", "core"]


def test_a_worker_that_has_ended_is_down_until_it_is_started_again():
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as of_worker:
        start = WorkerStart(of_worker, ["--no-such-option"], is_due=True)
        processes = FrontendProcesses(0, listener, [], start)
        processes.tick(0.0)
        eventually(lambda: processes.worker_state == "down")
        processes.kill()


def process_metrics(scheduler):
    text = http.get(f"http://127.0.0.1:{scheduler.port}/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    own = [sample for sample in samples if sample.name.startswith("process_")]
    return {(sample.name.removeprefix("process_"), sample.labels["process"]): sample.value for sample in own}


@pytest.mark.slow
def test_a_frontend_that_dies_while_files_are_short_ends_nobody(scheduler):
    [frontend] = scheduler.frontends()
    pid = scheduler.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # A file takes the lowest free number, and the limit is for numbers: below 3 none is ever free.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    os.kill(frontend, signal.SIGKILL)
    eventually(lambda: scheduler.log.count('event="frontend cannot be started"') >= 2)
    assert scheduler.process.poll() is None
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    eventually(scheduler.answers)
    assert scheduler.kill(signal.SIGTERM) == 0
    assert read_batches([payload for _, payload in read(scheduler.journal).batches]).life.crashes == 0


def test_metrics_say_whether_the_worker_of_the_store_runs(scheduler):
    def is_told(state):
        return f'baton_store_worker_state{{state="{state}"}} 1.0' in scheduler.metrics()

    eventually(lambda: is_told("idle"))
    [frontend] = scheduler.frontends()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(scheduler.journal.with_suffix(".store") / WORKER_SOCKET))
        eventually(lambda: is_told("running"))
    [worker] = {*scheduler.frontends()} - {frontend}
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: 'baton_process_failures_total{process="worker"} 1.0' in scheduler.metrics())
    eventually(lambda: is_told("running"))
    status = http.get(f"http://127.0.0.1:{scheduler.port}/status").json()["store"]
    assert status["clients"].keys() == {"other"}
    assert status["limit_bytes"] == LIMIT_MB * MEGABYTE


@pytest.mark.parametrize("error", [OSError(24, "EMFILE"), BlockingIOError(11, "EAGAIN"), MemoryError()])
def test_a_process_that_cannot_be_started_is_tried_again_later(error):
    attempts = []

    def fail(*_, **__):
        attempts.append(len(attempts))
        raise error

    with socket.create_server(("127.0.0.1", 0)) as listener:
        processes = FrontendProcesses(2, listener, [], popen=fail)
        for now in (0.0, 0.1, 0.9 * RESTART_DELAY_S):
            processes.tick(now)
        assert len(attempts) == 2
        processes.tick(1.1 * RESTART_DELAY_S)
        assert len(attempts) == 4 == processes.num_failures["frontend"]
        assert not processes.alive()


class Starts:
    """What starts processes: those that it is told to, and not the ones that are asked for.

    Args:
        codes: what the processes end with, one after the other; None for one that goes on.
    """

    def __init__(self, *codes):
        self.codes, self.started = deque(codes), []

    def __call__(self, command, **_):
        code = self.codes.popleft()
        end = "time.sleep(600)" if code is None else f"sys.exit({code})"
        self.started.append(subprocess.Popen([sys.executable, "-c", f"import sys, time; {end}"]))
        return self.started[-1]


def test_a_frontend_that_hangs_is_killed_and_no_other_process_is():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        processes = FrontendProcesses(1, listener, [], popen=Starts(None, None))
        processes.tick(0.0)
        assert not processes.end(os.getpid())
        assert processes.end(processes.named()["frontend-1"])
        eventually(lambda: not processes.alive())
        for now in (0.1, 0.2 + RESTART_DELAY_S):
            processes.tick(now)
        assert processes.alive(), "it is started again"
        processes.kill()
        assert not processes.alive()


def test_an_address_that_stays_in_use_is_not_waited_for_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            addresses.listen("127.0.0.1", port, timeout_s=0.3)
        with pytest.raises(OSError, match="in use"):
            addresses.listen("127.0.0.1", port, lambda: True, timeout_s=600.0)
    addresses.listen("127.0.0.1", port).close()


@pytest.mark.parametrize(("code", "is_settled"), [(2, True), (78, True), (1, False), (75, False)])
def test_a_frontend_that_cannot_start_without_a_change_is_the_services_end(code, is_settled):
    """At once at its first start. Where it was there before, others that serve are not ended for it."""
    starts = Starts(code, None, None, *[code] * 4)
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        processes = FrontendProcesses(2, listener, [], popen=starts)
        stack.callback(processes.kill)

        def start(now):
            processes.tick(now)
            return starts.started[-1]

        def ends(process, now):
            process.wait(60)
            processes.tick(now)
            return processes.refusal

        second = start(0.0)
        assert ends(starts.started[0], 0.1) == (code if is_settled else None)
        first = start(2.0)
        processes.tick(2.0, [first.pid, second.pid])
        assert processes.refusal is None
        first.kill()
        assert ends(first, 2.1) is None, "killed"
        assert ends(start(4.0), 4.1) is None, "the second one serves"
        first = start(6.0)
        first.wait(60)
        second.kill()
        assert ends(second, 6.1) is None
        start(8.0)
        for process in starts.started:
            process.wait(60)
        processes.tick(8.1)
        assert processes.refusal == (code if is_settled else None)
        assert processes.num_failures == {"frontend": 7, "worker": 0}


@pytest.mark.parametrize(("start_s", "killed_at"), [(1.5, (10.0, 11.2)), (3.0, (10.0, 12.0)), (0.5, (10.0, 10.75))])
def test_frontends_that_refuse_one_after_the_other_are_the_services_end(start_s, killed_at):
    """Though at no moment all of them have ended: others start meanwhile, and are no proof that one can."""
    now, starts = 0.0, []

    class Process:
        def __init__(self, *_, **__):
            starts.append(now)
            self.pid = len(starts)
            first = self.pid <= len(killed_at)
            self._end_at, self._code = (killed_at[self.pid - 1], -9) if first else (now + start_s, 2)

        def poll(self):
            return self._code if now >= self._end_at else None

    with socket.create_server(("127.0.0.1", 0)) as listener:
        processes = FrontendProcesses(2, listener, [], popen=Process)
        while processes.refusal is None and now < 60.0:
            processes.tick(now, {1, 2})
            now += 0.02
    assert processes.refusal == 2
    assert len(starts) <= 5


def make_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("name", "spoil", "fault"),
    [
        ("config.json", lambda path: path.write_text("[" * 200_000), "config.json is nested too deeply"),
        ("tokenizer_config.json", make_pipe, "tokenizer_config.json is no regular file, but a pipe"),
        ("chat_template.jinja", lambda path: path.write_text("{% if %}"), "chat template cannot be compiled"),
    ],
    ids=["depth", "pipe of a frontend", "template"],
)
def test_a_folder_that_cannot_be_served_ends_the_scheduler(tmp_path, name, spoil, fault):
    """With exit code 2, whether the core or a frontend reads the file."""
    model = tmp_path / "model"
    shutil.copytree(DEMO_MODEL_DIR, model)
    spoil(model / name)
    port, back = free_ports(2)
    command = [sys.executable, "-m", "scheduler_svc", "--port", str(port), "--model", str(model), "--no-journal"]
    command += ["--no-store", "--executor-endpoint", f"tcp://127.0.0.1:{back}"]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2, ended.stderr
    assert fault in ended.stderr
    assert "Traceback" not in ended.stderr
