"""The commands that Kubernetes and compose run in an executor's container, run as they stand there."""

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from common.wire import HEARTBEAT_INTERVAL_S, LOSS_TIMEOUT_S
from executor_svc.link import LEAVE_TIMEOUT_S
from scheduler_svc.frontend_processes import STOP_TIMEOUT_S
from tests.deploy.manifests import ROOT, container, exec_commands, options, pod, workloads
from tests.support.core import running_core

EXECUTOR = workloads("base")["baton-executor"]
COMMANDS = dict(exec_commands(EXECUTOR))
READY, ALIVE, DRAIN = (COMMANDS[name] for name in ("readinessProbe", "livenessProbe", "preStop"))


def local(command, health_file, **replaced):
    """A command of the container as it would be on this machine, with other files and limits."""
    words = {"python": sys.executable, options(EXECUTOR)["--health-file"]: str(health_file), **replaced}
    return [words.get(word, word.replace("/opt/baton", str(ROOT / "deploy"))) for word in command]


def run(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def health_file(tmp_path):
    return tmp_path / "health"


def touch(path, age_s=0.0):
    path.touch()
    then = time.time() - age_s
    os.utime(path, (then, then))


def wait_until(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def scheduler(*counts):
    """An HTTP server whose /ready counts so many executors, one number an answer and the last one for good."""
    left = list(counts)

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self):
            count = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(200 if count else 503)
            self.end_headers()
            self.wfile.write(json.dumps({"status": "ready", "executors": count} if count else {"error": {}}).encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Ready)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/ready"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def drain(health_file, url, max_wait_s):
    """What the hook says."""
    (ready_url,) = [word for word in DRAIN if "://" in word]
    done = run(local(DRAIN, health_file, **{ready_url: url, DRAIN[-1]: str(max_wait_s)}))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


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
        wait_until(lambda: run(local(READY, health_file)).returncode == 0)
        core.close()
        wait_until(lambda: run(local(READY, health_file)).returncode == 1)
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
        assert drain(health_file, url, 60) == "stopping: 2 others are ready"


def test_the_hook_waits_for_another(health_file):
    touch(health_file)
    with scheduler(1, 1, 2) as url:
        assert drain(health_file, url, 60) == "stopping: 1 others are ready"


def test_the_hook_does_not_wait_for_ever(health_file):
    touch(health_file)
    with scheduler(1) as url:
        assert drain(health_file, url, 1) == "stopping: no other executor within 1 s"


def test_the_hook_does_not_wait_for_nothing(health_file):
    """The executor runs nothing, or there is nobody to run it for: the scheduler is gone, too."""
    with scheduler(1) as url:
        assert "not in the fleet" in drain(health_file, url, 60)
    touch(health_file)
    assert drain(health_file, url, 60) == "stopping: no scheduler answers"
    with scheduler(0) as url:
        assert drain(health_file, url, 60) == "stopping: no scheduler answers"


def test_there_is_time_for_an_orderly_end():
    assert pod(EXECUTOR)["terminationGracePeriodSeconds"] > float(DRAIN[-1]) + LEAVE_TIMEOUT_S
    assert pod(workloads("base")["baton-scheduler"])["terminationGracePeriodSeconds"] > 2 * STOP_TIMEOUT_S
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert int(services["executor"]["stop_grace_period"].removesuffix("s")) > LEAVE_TIMEOUT_S


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
