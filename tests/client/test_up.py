"""`baton up` with fake services: what it starts, what it says, and how it ends."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from click.testing import CliRunner

from scheduler_svc.client.cli import main
from scheduler_svc.client.commands import up
from scheduler_svc.client.processes.local_fleet import free_ports
from tests.support.eventually import eventually
from tests.support.processes import is_running

SCRIPT = """
import sys
from tests.client.fleets import fake_spec
from scheduler_svc.client.cli import main
from scheduler_svc.client.commands import up
run = up.run_until_stopped
up.run_until_stopped = lambda spec, log_dir: run(fake_spec({changes}), log_dir)
main(["up", *sys.argv[1:]])
"""


@pytest.fixture
def start_up(started):
    """Start `baton up` with fake services; `changes` are to the FleetSpec."""

    def start(*arguments, changes=""):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(changes=changes), *ports(), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        started.append(process)
        return process

    return start


def ports():
    port, executor_port = free_ports(2)
    return ["--port", str(port), "--executor-port", str(executor_port)]


def read_until(stream, text):
    """Lines up to the one that holds `text`, that one included."""
    lines = []
    while not lines or text not in lines[-1]:
        lines.append(stream.readline())
        assert lines[-1], "".join(lines)
    return "".join(lines)


def test_options_reach_the_services(monkeypatch, tmp_path):
    specs = []
    monkeypatch.setattr(up, "run_until_stopped", lambda spec, log_dir: specs.append((spec, log_dir)))
    limits = "--dtype bfloat16 --block-size 32 --num-blocks 99 --max-num-seqs 8 --max-batch-tokens 512"
    log_dir = tmp_path / "new" / "logs"
    result = CliRunner().invoke(
        main, ["up", *ports(), "--executors", "2", "--threads", "3", *limits.split(), "--log-dir", str(log_dir)]
    )
    assert result.exit_code == 0, result.output
    ((spec, used_log_dir),) = specs
    assert (spec.model, spec.executors, used_log_dir) == (None, 2, log_dir)
    assert log_dir.is_dir()
    words = " ".join(spec.executor_options)
    assert words.startswith("--threads 3 ")
    assert all(f"{option} {value}" in words for option, value in zip(*[iter(limits.split())] * 2, strict=True))
    assert spec.scheduler_options == ()


@pytest.mark.parametrize(
    ("arguments", "scheduler", "executor"),
    [
        ("--log-level debug --log-format json", "--log-level debug --log-format json", True),
        ("--journal /some/file", "--journal /some/file", False),
        ("--no-journal", "--no-journal", False),
    ],
)
def test_options_for_the_scheduler(monkeypatch, arguments, scheduler, executor):
    specs = []
    monkeypatch.setattr(up, "run_until_stopped", lambda spec, _log_dir: specs.append(spec))
    assert CliRunner().invoke(main, ["up", *ports(), "--threads", "1", *arguments.split()]).exit_code == 0
    assert " ".join(specs[0].scheduler_options) == scheduler
    assert " ".join(specs[0].executor_options) == "--threads 1" + executor * f" {scheduler}"


def test_a_journal_and_none_is_wrong_usage():
    result = CliRunner().invoke(main, ["up", *ports(), "--journal", "x", "--no-journal"])
    assert result.exit_code == 2


def test_threads_default_to_a_share_of_the_cpus(monkeypatch):
    specs = []
    monkeypatch.setattr(up, "run_until_stopped", lambda spec, _log_dir: specs.append(spec))
    monkeypatch.setattr(up, "_num_cpus", lambda: 8)
    for executors in ("3", "16", "0"):
        assert CliRunner().invoke(main, ["up", *ports(), "--executors", executors]).exit_code == 0
    assert [spec.executor_options for spec in specs] == [("--threads", "2"), ("--threads", "1"), ("--threads", "8")]


def test_a_taken_port_is_one_clear_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(main, ["up", "--port", port])
    assert result.exit_code == 2
    assert f"port {port}" in result.stderr
    assert "--port" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.timeout(30)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_announces_itself_and_stops_in_order(start_up, number):
    process = start_up(changes="executors=2")
    banner = read_until(process.stdout, "curl")
    url = banner.split("ready at ")[1].split()[0]
    assert "baton-demo (the small demo model" in banner
    assert f'baton generate "ROMEO:" --max-tokens 64 --url {url}' in banner
    assert urllib.request.urlopen(f"{url}/ready").status == 200
    pids = [int(word.split(")")[0].split()[0]) for word in banner.split("pid ")[1:]]
    log = ""
    while log.count("--name executor-") < 2:  # ready is the scheduler's word: the executors may just be starting
        log += process.stderr.readline()
    process.send_signal(number)
    assert process.wait(10) == 0
    assert not any(map(is_running, pids))
    log += process.stderr.read()
    assert log.rindex("executor stops") < log.rindex("scheduler stops")


@pytest.mark.timeout(30)
def test_a_killed_executor_is_replaced(start_up, tmp_path):
    process = start_up("--log-dir", str(tmp_path))
    banner = read_until(process.stdout, "curl")
    os.kill(int(banner.split("executor-0 (pid ")[1].split(")")[0]), signal.SIGKILL)
    said = read_until(process.stderr, "executor-0 started again")
    assert "executor-0 was killed by signal 9 (Killed); starting it again in 0.5 s" in said


@pytest.mark.timeout(30)
def test_a_misconfigured_executor_ends_it_with_its_message(start_up, tmp_path):
    process = start_up("--log-dir", str(tmp_path), changes="executor_options=('--exit', '78')")
    assert process.wait(10) == 2
    assert "executor-0 exited with code 78:\n" in (said := process.stderr.read())
    assert "ValueError: no such thing" in said
    assert "Traceback" not in said


@pytest.mark.timeout(30)
def test_a_second_ctrl_c_kills(start_up):
    process = start_up(changes="executor_options=('--deaf',)")
    banner = read_until(process.stdout, "curl")
    pid = int(banner.split("executor-0 (pid ")[1].split(")")[0])
    process.send_signal(signal.SIGINT)
    read_until(process.stderr, "stopping the executors")
    assert is_running(pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == 130
    eventually(lambda: not is_running(pid))
