"""`baton up` with fake services: what it starts, what it says, and how it ends."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from common.model_files import DEMO_MODEL_DIR
from executor_svc.__main__ import main as executor_command
from scheduler_svc.__main__ import main as scheduler_command
from scheduler_svc.client.cli import main
from scheduler_svc.client.commands import executor_options, up
from scheduler_svc.client.processes.local_fleet import free_ports
from scheduler_svc.frontend_options import FrontendOptions
from scheduler_svc.store_options import StoreOptions
from tests.client.fleets import NotedFleets, needs_torch
from tests.support.eventually import eventually
from tests.support.processes import is_running

SCRIPT = """
import sys
from tests.client.fleets import fake_spec
from scheduler_svc.client.cli import main
from scheduler_svc.client.commands.up import FleetRunner

class FakeServices(FleetRunner):
    def run(self, spec, log_dir, welcome):
        super().run(fake_spec({changes}), log_dir, welcome)

main(["up", *sys.argv[1:]], obj=FakeServices())
"""


UP = [sys.executable, "-m", "scheduler_svc.client.cli", "up"]
ALONE = ["--no-keep", "--no-journal", "--no-store"]
no_gpu = pytest.mark.skipif(any(Path("/dev").glob("nvidia*")), reason="needs a machine without a GPU")


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


@pytest.fixture
def noted():
    return NotedFleets()


@pytest.fixture
def specs(noted):
    """What `baton up` would have started: FleetSpec, folder of logs, Welcome."""
    return noted.started


@pytest.fixture
def up_as(noted):
    """Run the command in this process, without a fleet."""

    def run(*arguments, **environment):
        environment = {"BATON_API_KEYS": None, "BATON_API_KEY": None, **environment}
        return CliRunner().invoke(main, ["up", *ports(), *arguments], env=environment, obj=noted)

    return run


@pytest.fixture
def run_up(up_as):
    def run(*arguments):
        result = up_as(*arguments)
        assert result.exit_code == 0, result.output

    return run


def test_options_reach_the_executors(specs, tmp_path, run_up):
    limits = "--dtype bfloat16 --block-size 32 --num-blocks 99 --max-num-seqs 8 --max-batch-tokens 512"
    limits += " --quantization int8 --max-model-len 4096 --device cuda --attention triton --kv-cache-memory 2.5"
    limits += " --gpu-memory-utilization 0.5 --task embed"
    log_dir = tmp_path / "new" / "logs"
    run_up("--executors", "2", "--threads", "3", "--enforce-eager", *limits.split(), "--log-dir", str(log_dir))
    ((spec, used_log_dir, _),) = specs
    assert (spec.model, spec.executors, spec.ranks, used_log_dir) == (None, 2, 1, log_dir)
    assert log_dir.is_dir()
    words = list(spec.executor_options)
    assert words[:2] == ["--threads", "3"]
    assert "--enforce-eager" in words
    given = dict(zip(*[iter(limits.split())] * 2, strict=True))
    assert given.items() <= dict(pairwise(words)).items()
    shared = (*FrontendOptions().arguments(), *StoreOptions().arguments())
    assert spec.scheduler_options == (*shared, "--task-grace", "0"), "no executor with another task is to come"
    executor = executor_command.make_context("baton-executor", spec.command("executor-0")[3:])
    assert executor.params["max_model_len"] == 4096, "the executor knows each of them by this name"
    assert executor.params["tasks"] == ("embed",)


@pytest.mark.parametrize(
    ("arguments", "scheduler", "executor"),
    [
        ("--log-level debug --log-format json", "--log-level debug --log-format json", True),
        ("--journal /some/file", "--journal /some/file", False),
        ("--no-journal", "--no-journal", False),
        ("--no-store", "--no-store", False),
        (f"--api-keys {__file__}", f"--api-keys {__file__}", False),
    ],
)
def test_options_for_the_scheduler(specs, arguments, scheduler, executor, run_up):
    run_up("--threads", "1", *arguments.split())
    ((spec, _, _),) = specs
    shared = " ".join([*FrontendOptions().arguments(), *StoreOptions().arguments(), "--task-grace", "0"])
    assert " ".join(spec.scheduler_options) == f"{shared} {scheduler}"
    assert " ".join(spec.executor_options) == "--threads 1" + executor * f" {scheduler}"


def test_options_of_frontends(specs, run_up):
    arguments = "--served-model-name a --served-model-name b --tool-parser json --reasoning-parser none --openapi "
    arguments += f"--pooling-model embed=e --pooling-model score:judge=s --chat-template {__file__}"
    run_up(*arguments.split())
    ((spec, _, welcome),) = specs
    asked = FrontendOptions(
        served_model_name=("a", "b"),
        tool_parser="json",
        reasoning_parser="none",
        openapi=True,
        pooling_model=("embed=e", "score:judge=s"),
        chat_template=Path(__file__),
    )
    assert spec.scheduler_options == (*asked.arguments(), *StoreOptions().arguments())
    scheduler = scheduler_command.make_context("baton-scheduler", spec.command("scheduler")[3:])
    assert scheduler.params["tool_parser"] == "json"
    assert scheduler.params["chat_template"] == Path(__file__)
    assert scheduler.params["pooling_model"] == asked.pooling_model
    assert welcome == up.Welcome("a", is_demo=True, needs_key=False, has_page=True)


def test_an_executor_of_several_ranks_is_started_by_torchrun(specs, monkeypatch, run_up):
    monkeypatch.setattr(executor_options, "num_cpus", lambda: 8)
    run_up("--tensor-parallel-size", "2", "--executors", "2")
    ((spec, _, _),) = specs
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "executor_svc"]
    command = spec.command("executor-1")
    assert command[: len(start)] == start
    assert command[-2:] == ["--threads", "2"], "of each rank"
    assert "torch.distributed.run" not in spec.command("scheduler")


def test_gpus_are_divided_among_the_executors(specs, run_up, up_as):
    run_up("--tensor-parallel-size", "2", "--executors", "2", "--gpus", "0,1,4,5")
    ((spec, _, _),) = specs
    seen = [spec.environment(name) for name in ("scheduler", "executor-0", "executor-1")]
    assert seen == [{}, {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "4,5"}]
    result = up_as("--executors", "2", "--gpus", "0")
    assert (result.exit_code, len(specs)) == (2, 1)
    assert "--gpus 0 names 1, --executors 2 with --tensor-parallel-size 1 needs 2" in result.stderr
    assert spec.executor_options[-2:] == ("--device", "cuda"), "the CPU is no substitute for what was named"
    result = up_as("--gpus", "0", "--device", "cpu")
    assert (result.exit_code, len(specs)) == (2, 1)


def test_what_an_executor_would_refuse_is_refused_before_anything_starts():
    """A value that only the executor refused would be told in its words, after the services have started."""
    options, of_executor = ({option.name: option for option in each.params} for each in (up.command, executor_command))
    for name in executor_options.PASSED_ON:
        mine, its = options[name].type, of_executor.get(name, of_executor.get(f"{name}_gib")).type
        assert (type(mine), vars(mine)) == (type(its), vars(its)), name


@pytest.mark.parametrize("what", ["journal", "store"])
def test_what_is_named_and_left_out_is_wrong_usage(what, up_as):
    result = up_as(f"--{what}", "x", f"--no-{what}")
    assert result.exit_code == 2


def test_options_of_the_store(specs, run_up):
    run_up("--store", "folder", "--store-retention", "0.5", "--store-limit", "7", "--store-durable")
    ((spec, _, _),) = specs
    scheduler = scheduler_command.make_context("baton-scheduler", spec.command("scheduler")[3:])
    named = ("folder", "retention_days", "limit_mb", "durable")
    assert [scheduler.params[name] for name in named] == [Path("folder"), 0.5, 7, True]


def test_threads_default_to_a_share_of_the_cpus(specs, monkeypatch, run_up):
    monkeypatch.setattr(executor_options, "num_cpus", lambda: 8)
    for executors in ("3", "16", "0"):
        run_up("--executors", executors)
    words = [spec.executor_options for spec, _, _ in specs]
    assert words == [("--threads", "2"), ("--threads", "1"), ("--threads", "8")]


def test_a_taken_port_is_one_clear_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(main, ["up", "--port", port])
    assert result.exit_code == 3, "it may be free a moment later"
    assert f"port {port}" in result.stderr
    assert "--port" in result.stderr
    assert result.stderr.count("\n") == 1


def test_all_ports_that_are_taken_are_told_at_once_with_free_ones():
    """The line that is told to type works."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        port, executor_port = (taken.getsockname()[1] for taken in (first, second))
        result = CliRunner().invoke(main, ["up", "--port", port, "--executor-port", executor_port])
        words = result.stderr.rpartition("name free ones: ")[2].split()
        free = [int(word) for word in words[1::2]]
        for each in free:
            socket.create_server(("127.0.0.1", each)).close()
    assert result.exit_code == 3
    assert result.stderr.startswith(
        f"Error: cannot listen on 127.0.0.1 port {port} (Address already in use) and "
        f"127.0.0.1 port {executor_port} (Address already in use); name free ones: --port "
    )
    assert words[::2] == ["--port", "--executor-port"]
    assert len({*free, port, executor_port}) == 4


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
    assert log.rindex("scheduler stops") < log.rindex("executor stops"), "the executors finish its open answers"


@pytest.mark.timeout(30)
def test_a_model_of_ones_own_is_talked_with(start_up, tmp_path):
    """What continues a play shows little of a model that answers."""
    process = start_up("--model", str(tmp_path))
    banner = read_until(process.stdout, "curl")
    url = banner.split("ready at ")[1].split()[0]
    assert f"baton chat --url {url}\n" in banner
    command = shlex.split(banner.splitlines()[-1])
    assert command[:2] == ["curl", f"{url}/v1/chat/completions"]
    assert json.loads(command[-1]) == {
        "model": tmp_path.name,
        "messages": [{"role": "user", "content": "How many days are in a week?"}],
        "max_tokens": 64,
    }


@pytest.mark.timeout(30)
def test_with_keys_it_is_ready_without_one_and_says_that_clients_need_one(start_up, tmp_path):
    keys = tmp_path / "api-keys.json"
    keys.touch()
    process = start_up("--api-keys", str(keys), "--served-model-name", "mine")
    banner = read_until(process.stdout, "curl")
    assert "model      mine" in banner
    assert '"model": "mine"' in banner
    assert banner.count("BATON_API_KEY=KEY baton") == banner.count("Authorization: Bearer KEY") == 1


@pytest.mark.parametrize(
    ("environment", "lines", "options", "keys"),
    [
        ({"BATON_API_KEY": "alpha"}, None, "", "alpha"),
        ({"BATON_API_KEY": "alpha"}, None, "--no-api-keys", None),
        ({"BATON_API_KEY": ""}, None, "", None),
        (
            {"BATON_API_KEY": "alpha", "BATON_API_KEYS": "beta, gamma"},
            "\ndelta \r\nalpha\n",
            "",
            "beta,gamma,alpha,delta",
        ),
    ],
)
def test_keys_that_a_user_wrote_down(specs, noted, up_as, tmp_path, environment, lines, options, keys):
    (tmp_path / "keys").write_text(lines or "")
    arguments = [*options.split(), *(["--api-key-file", str(tmp_path / "keys")] if lines else [])]
    assert up_as(*arguments, **environment).exit_code == 0
    ((spec, _, welcome),) = specs
    passed_on = noted.keys
    assert (passed_on, welcome.needs_key) == (keys, keys is not None)
    words = " ".join([*spec.command("scheduler"), *spec.command("executor-0")])
    assert not any(key in words for key in (keys or "alpha").split(","))


@pytest.mark.parametrize(("lines", "told"), [("\n", "has no API key"), ("a b", "a character"), ("a,b", "a character")])
def test_a_file_without_a_key_that_can_be_sent_is_refused(specs, tmp_path, lines, told, up_as):
    (tmp_path / "keys").write_text(lines)
    result = up_as("--api-key-file", str(tmp_path / "keys"))
    assert (result.exit_code, len(specs)) == (2, 0)
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.timeout(30)
def test_a_killed_executor_is_replaced(start_up, tmp_path):
    process = start_up("--log-dir", str(tmp_path))
    banner = read_until(process.stdout, "curl")
    os.kill(int(banner.split("executor-0 (pid ")[1].split(")")[0]), signal.SIGKILL)
    said = read_until(process.stderr, "executor-0 started again")
    assert "executor-0 was killed by signal 9 (Killed); starting it again in 0.5 s" in said


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("code", "ends_with"), [(78, 2), (75, 3)])
def test_what_cannot_start_ends_it_with_its_message(start_up, tmp_path, code, ends_with):
    process = start_up("--log-dir", str(tmp_path), changes=f"scheduler_options=('--exit', '{code}')")
    assert process.wait(10) == ends_with
    assert f"scheduler exited with code {code}:\n" in (said := process.stderr.read())
    assert "ValueError: no such thing" in said
    assert "Traceback" not in said


@pytest.mark.timeout(30)
def test_a_second_ctrl_c_kills(start_up):
    process = start_up(changes="executor_options=('--deaf',)")
    banner = read_until(process.stdout, "curl")
    pid = int(banner.split("executor-0 (pid ")[1].split(")")[0])
    process.send_signal(signal.SIGINT)
    read_until(process.stderr, "stopping the scheduler")
    assert is_running(pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == 130
    eventually(lambda: not is_running(pid))


@pytest.mark.parametrize(("redirection", "shown"), [("2>&- >&-", ""), ("<&-", "there is no folder /nowhere")])
def test_it_needs_no_streams(redirection, shown):
    command = [*UP, *ports(), *ALONE, "--model", "/nowhere", "--executors", "0"]
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh"]
    ended = subprocess.run([*shell, *command], capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert shown in ended.stderr


def spoil_recommendation(folder):
    (folder / "generation_config.json").write_text('{"top_p": 0}')


@needs_torch
@pytest.mark.parametrize(
    ("spoil", "options", "reason"),
    [
        (spoil_recommendation, ["--executors", "0"], "generation_config.json recommends top_p 0: "),
        (None, ["--pooling-model", "score=/nowhere"], "baton-scheduler: there is no folder /nowhere"),
        (None, ["--kv-cache-memory", "1000000"], "baton-executor: the KV pool of "),
        pytest.param(None, ["--gpus", "0"], "finds no GPU here among those of CUDA_VISIBLE_DEVICES=0", marks=no_gpu),
    ],
    ids=["frontend", "scheduler", "memory", "gpus"],
)
def test_what_cannot_work_ends_it_with_the_reason(tmp_path, spoil, options, reason):
    """Real services: whichever of them says it, the reason is in the last lines, and nothing is started again."""
    model = shutil.copytree(DEMO_MODEL_DIR, tmp_path / "model")
    if spoil is not None:
        spoil(model)
    command = [*UP, *ports(), "--model", str(model), *ALONE, *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert reason in ended.stderr.rpartition("Error: ")[2], ended.stderr
    assert "started again" not in ended.stderr


@needs_torch
def test_an_error_that_click_writes_in_a_child_names_the_command(tmp_path):
    """Only what the parent cannot check gets there: here a variable of the environment."""
    command = [*UP, *ports(), *ALONE]
    environment = os.environ | {"BATON_NODE": "x" * 1000}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 2, ended.stderr
    assert "python -m" not in ended.stderr
    told = ended.stderr.partition("Error: executor-0 exited with code 2:\n")[2]
    assert told.startswith("Error: Invalid value for '--node' (env var: 'BATON_NODE'): it has 1000 characters")
    assert len(told.splitlines()) == 1
