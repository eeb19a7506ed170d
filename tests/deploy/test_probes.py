"""The commands that Kubernetes and compose run in an executor's container, run as they stand there."""

import itertools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import uvicorn
import yaml
from fastapi import FastAPI

from common.heartbeats import HEARTBEAT_INTERVAL_S, LOSS_TIMEOUT_S
from executor_svc.service.registration import LEAVE_TIMEOUT_S
from scheduler_svc.frontend.http.connection_guard import ConnectionLimits
from scheduler_svc.frontend.http.server import http_config
from scheduler_svc.frontend.link.request_counts import RequestCounts
from scheduler_svc.frontend_options import FrontendOptions
from scheduler_svc.server.frontend_processes import STOP_MARGIN_S
from tests.deploy.manifests import ROOT, container, exec_commands, options, pod
from tests.deploy.probes import ALIVE, COMMANDS, DRAIN, EXECUTOR, MAX_WAIT_S, PATIENCE_S, READY, SCHEDULER, run
from tests.keeper_svc.processes import KeeperProcess
from tests.support.core import running_core
from tests.support.eventually import eventually


def local(command, health_file, **replaced):
    """A command of the container as it would be on this machine, with other files and limits."""
    words = {"python": sys.executable, options(EXECUTOR)["--health-file"]: str(health_file), **replaced}
    return [words.get(word, word.replace("/opt/baton", str(ROOT / "deploy"))) for word in command]


@pytest.fixture
def health_file(tmp_path):
    return tmp_path / "health"


def touch(path, age_s=0.0):
    path.touch()
    then = time.time() - age_s
    os.utime(path, (then, then))


@contextmanager
def scheduler(*counts):
    """An HTTP server whose /ready counts so many executors, one number an answer and the last one for good.

    A count may be a function that is called for it.
    """
    left = list(counts)

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self):
            count = left.pop(0) if len(left) > 1 else left[0]
            count = count() if callable(count) else count
            self.send_response(200 if count else 503)
            self.end_headers()
            self.wfile.write(json.dumps({"status": "ready", "executors": count} if count else {"error": {}}).encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Ready)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/ready"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def drain(health_file, url, max_wait_s, patience_s=60):
    """What the hook says."""
    (ready_url,) = [word for word in DRAIN if "://" in word]
    others = {ready_url: url, PATIENCE_S: str(patience_s), MAX_WAIT_S: str(max_wait_s)}
    done = run(local(DRAIN, health_file, **others))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def ask_scheduler(port, timeout_s=30):
    """What the scheduler's probes run, for one at this port."""
    *python, code = next(iter(dict(exec_commands(SCHEDULER)).values()))
    real_port = options(SCHEDULER)["--port"]
    code, num_ports = re.subn(rf"\b{real_port}\b", str(port), code)
    code, num_timeouts = re.subn(r"timeout=\d+", f"timeout={timeout_s}", code)
    assert (num_ports, num_timeouts) == (1, 1)
    return run([*local(python, ""), code])


def ask_keeper(path):
    """What the keeper's probe runs, for one at this path."""
    *command, _ = pod(EXECUTOR)["containers"][1]["livenessProbe"]["exec"]["command"]
    return run([*local(command, ""), str(path)])


@contextmanager
def frontend(max_connections):
    """HTTP as a frontend runs it, on a port that is the value."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(http_config(FastAPI(), ConnectionLimits(max_connections), RequestCounts()))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def test_a_scheduler_that_is_full_is_not_killed():
    """Nor taken out of its Service: it serves thousands, and there is no other one."""
    with frontend(max_connections=0) as port:
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            assert stranger.recv(4096).startswith(b"HTTP/1.1 503 ")
        for _ in range(20):
            assert ask_scheduler(port).returncode == 0


def test_a_scheduler_that_says_anything_is_alive():
    with frontend(max_connections=1) as port:  # there is no /health: it answers 404
        assert ask_scheduler(port).returncode == 0


def test_a_scheduler_that_hangs_is_found():
    """The kernel takes connections for it, and there is no frontend that would answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = ask_scheduler(listener.getsockname()[1], timeout_s=1)
        port = listener.getsockname()[1]
    assert "TimeoutError" in silent.stderr
    assert "ConnectionRefusedError" in ask_scheduler(port).stderr


def test_a_keeper_that_answers_is_alive(tmp_path):
    keeper = KeeperProcess(tmp_path)
    try:
        assert ask_keeper(keeper.path).returncode == 0
    finally:
        keeper.kill()
    assert "Connection refused" in ask_keeper(keeper.path).stderr


@pytest.mark.slow
def test_a_keeper_that_hangs_is_found(tmp_path):
    keeper = KeeperProcess(tmp_path)
    try:
        keeper.process.send_signal(signal.SIGSTOP)
        assert "timed out" in ask_keeper(keeper.path).stderr
    finally:
        keeper.kill()


def test_all_probes_of_the_scheduler_ask_the_same_and_wait_for_the_answer():
    probes = {name: probe for name, probe in container(SCHEDULER).items() if "Probe" in name}
    assert probes.keys() == {"startupProbe", "readinessProbe", "livenessProbe"}
    assert len({str(probe["exec"]) for probe in probes.values()}) == 1
    (timeout_s,) = re.findall(r"timeout=(\d+)", str(probes["livenessProbe"]))
    for probe in probes.values():
        assert probe["timeoutSeconds"] > int(timeout_s)
        assert probe["periodSeconds"] * probe["failureThreshold"] >= 30


def test_an_executor_that_has_no_scheduler_is_alive_and_not_ready(health_file):
    refused = run(local(READY, health_file))
    assert refused.returncode == 1
    assert f"there is no {health_file}" in refused.stderr
    assert run(local(ALIVE, health_file)).returncode == 0


def test_an_executor_that_hears_its_scheduler_is_both(health_file):
    touch(health_file)
    for command in (READY, ALIVE):
        assert run(local(command, health_file)).returncode == 0


def test_an_executor_whose_heart_has_stopped_is_neither(health_file):
    touch(health_file, age_s=100)
    for command in (READY, ALIVE):
        refused = run(local(command, health_file))
        assert refused.returncode == 1
        assert re.search(r"nothing heard from the scheduler for 10\d\.\d s", refused.stderr)


def test_an_executor_is_given_up_as_ready_long_before_it_is_killed():
    """And neither for a heartbeat that comes late."""
    ready_s, alive_s = (float(next(word for word in command if word.isdigit())) for command in (READY, ALIVE))
    assert max(LOSS_TIMEOUT_S, 2 * HEARTBEAT_INTERVAL_S) < ready_s < alive_s / 10


def test_nothing_asks_a_loading_executor_to_be_ready():
    """It would be killed for a scheduler that is away, and load its weights again."""
    assert "startupProbe" not in container(EXECUTOR)
    assert ALIVE[-1] == "--alive"


def test_a_real_executor_with_and_without_a_scheduler(tmp_path, health_file):
    command = [sys.executable, "-m", "executor_svc", "--num-blocks", "64", "--threads", "1"]
    with ExitStack() as stack:
        core = stack.enter_context(running_core(tmp_path))
        executor = subprocess.Popen([*command, "--scheduler", core.back, "--health-file", str(health_file)])
        stack.callback(executor.kill)
        eventually(lambda: run(local(READY, health_file)).returncode == 0)
        core.close()
        eventually(lambda: run(local(READY, health_file)).returncode == 1)
        assert run(local(ALIVE, health_file)).returncode == 0
        executor.terminate()
        assert executor.wait(30) == 0


def test_what_a_killed_executor_left_is_not_held_against_its_successor(health_file):
    """The file outlives a container that is killed; the next one may load its weights for minutes, and is alive."""
    touch(health_file, age_s=100)
    command = [sys.executable, "-m", "executor_svc", "--model", "/nowhere", "--health-file", str(health_file)]
    assert run(command).returncode == 2
    assert not health_file.exists()


def test_the_hook_lets_go_at_once_if_there_is_another(health_file):
    touch(health_file)
    with scheduler(3) as url:
        assert drain(health_file, url, 60) == "stopping: 3 executors are ready"


def test_the_hook_waits_for_another(health_file):
    touch(health_file)
    with scheduler(1, 1, 2) as url:
        assert drain(health_file, url, 60) == "stopping: 2 executors are ready"


def test_the_hook_does_not_wait_for_ever(health_file):
    touch(health_file)
    with scheduler(1) as url:
        assert drain(health_file, url, 1) == "stopping: no other executor within 1 s"


@pytest.mark.slow
def test_the_hook_bears_a_scheduler_that_restarts(health_file):
    """For a moment there is no scheduler, then one without executors; the only executor is needed again after that."""
    touch(health_file)

    def leave():
        health_file.unlink()
        return 0

    def come_back():
        touch(health_file)
        return 1

    with scheduler(1, leave, 0, 0, 1, come_back, 1, 1, 2) as url:
        assert drain(health_file, url, 60) == "stopping: 2 executors are ready"


@pytest.mark.slow
def test_what_the_hook_bears_it_bears_anew_each_time(health_file):
    """A scheduler that answers in between is not one that has been away all the time."""
    touch(health_file)
    with scheduler(*[1, 0] * 6, 2) as url:
        assert drain(health_file, url, 60, patience_s=3) == "stopping: 2 executors are ready"


@pytest.mark.slow
def test_the_hook_does_not_wait_for_nothing(health_file):
    """The executor runs no sequence, or the scheduler, for which it would run one, is gone, too."""
    with scheduler(1) as url:
        assert "not in the fleet" in drain(health_file, url, 60, patience_s=1)
    touch(health_file)
    assert drain(health_file, url, 60, patience_s=1) == "stopping: no scheduler that has executors answers, for 1 s"
    with scheduler(0) as url:
        assert "no scheduler that has executors answers" in drain(health_file, url, 60, patience_s=1)


def test_there_is_time_for_an_orderly_end():
    assert pod(EXECUTOR)["terminationGracePeriodSeconds"] > float(MAX_WAIT_S) + LEAVE_TIMEOUT_S
    stop_s = FrontendOptions().stop_grace_s + STOP_MARGIN_S
    assert float(MAX_WAIT_S) > float(PATIENCE_S) > 2 * stop_s  # a scheduler's: until it has stopped and started
    assert pod(SCHEDULER)["terminationGracePeriodSeconds"] > stop_s
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert int(services["executor"]["stop_grace_period"].removesuffix("s")) > LEAVE_TIMEOUT_S
    assert int(services["scheduler"]["stop_grace_period"].removesuffix("s")) > stop_s
    for name, least_s in (("scheduler", stop_s), ("executor@", LEAVE_TIMEOUT_S)):
        unit = (ROOT / "deploy" / "systemd" / f"baton-{name}.service").read_text()
        assert int(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.M)[0]) > least_s


def test_a_rolling_update_starts_the_new_before_it_stops_the_old():
    assert EXECUTOR["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_compose_asks_the_same(health_file):
    service = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["executor"]
    words = shlex.split(re.sub(r"\$\{.*\}", "", service["command"]))
    (file,) = [word for option, word in itertools.pairwise(words) if option == "--health-file"]
    kind, *command = service["healthcheck"]["test"]
    assert kind == "CMD"
    assert file in command
    touch(health_file)
    assert run(local(command, health_file, **{file: str(health_file)})).returncode == 0
    health_file.unlink()
    assert run(local(command, health_file, **{file: str(health_file)})).returncode == 1


def test_the_scripts_are_in_the_images():
    scripts = {word for command in COMMANDS.values() for word in command if word.endswith(".py")}
    assert len(scripts) == 2
    for stage in re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE):
        if re.match(r"service AS executor$|\S+ AS executor-gpu$", stage, flags=re.MULTILINE):
            copied = re.findall(r"^COPY (deploy/.*) /opt/baton/$", stage, flags=re.MULTILINE)
            names = {name for line in copied for name in line.split()}
            assert {script.replace("/opt/baton", "deploy") for script in scripts} <= names
