"""compose.yaml brought up for real: what it promises, and that a killed service costs no client its answer."""

import itertools
import json
import os
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.compose.stack import ROOT

pytestmark = pytest.mark.compose

PROMPT = "JULIET:\nO Romeo, Romeo! "
LONG = {"prompt": PROMPT, "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
MEGABYTE = 1_000_000


def stream(stack, *, model="baton-demo", **request):
    """Pieces of the streamed text."""
    body = {"model": model, "stream": True, **request}
    with httpx.stream("POST", f"{stack.url}/v1/completions", json=body, timeout=120) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            field, _, data = line.partition(": ")
            if field == "data" and data != "[DONE]":
                event = json.loads(data)
                assert "error" not in event, event
                yield from (choice["text"] for choice in event["choices"])


def test_sizes(stack):
    """What our layers add to the base image, which differs from machine to machine."""
    for service, limit_mb in (("scheduler", 140), ("executor", 900)):
        image = f"baton-{service}:{stack.tag}"
        total_mb = int(stack.docker("image", "inspect", "--format", "{{.Size}}", image)) / MEGABYTE
        layers = stack.docker("history", "--human=false", "--no-trunc", "--format", "{{.Size}} {{.CreatedBy}}", image)
        ours_mb = sum(int(layer.split()[0]) for layer in layers.splitlines() if "/opt/" in layer) / MEGABYTE
        print(f"\n{image}: {total_mb:.0f} MB, {ours_mb:.0f} MB of them ours")
        assert ours_mb < limit_mb


def test_only_the_executor_has_torch(stack):
    run = ("run", "--rm", "--entrypoint", "python")
    code = ("-c", "import torch; print(torch.__version__)")
    refused = stack.docker(*run, f"baton-scheduler:{stack.tag}", *code, check=False)
    assert "No module named 'torch'" in refused
    assert stack.docker(*run, f"baton-executor:{stack.tag}", *code)[0].isdigit()
    found = stack.docker("run", "--rm", f"baton-scheduler:{stack.tag}", "find", "/opt/baton", "-name", "*.safetensors")
    assert found == ""


def test_the_executor_has_the_cpu_kernels(stack):
    """Those for every processor are in its image, which could compile none, and this processor's can be loaded."""
    exec_python = ("exec", stack.containers("executor")[0], "python")
    assert stack.docker(*exec_python, "-c", "import shutil; print(shutil.which('g++'))") == "None"
    assert stack.docker(*exec_python, "-m", "kernels.cpu", "--all").startswith("the CPU kernels are in /opt/cache/")
    print("\n", stack.docker(*exec_python, "-m", "kernels.cpu"))  # ends with 1 if the best one cannot be loaded


@pytest.mark.parametrize("service", ["scheduler", "executor"])
def test_containers_are_confined(stack, service):
    for container in stack.containers(service):
        processes = stack.docker("top", container, "-eo", "pid,uid,args").splitlines()[1:]
        assert {line.split()[1] for line in processes} == {"10001"}, processes
        for command in ("touch /models/x", "touch /opt/baton/x", "touch /x"):
            refused = stack.docker("exec", "--user", "0", container, "sh", "-c", command, check=False)
            assert "Read-only file system" in refused
        assert stack.inspect(container, "{{.HostConfig.CapDrop}} {{.HostConfig.Privileged}}") == "[ALL] false"
        capabilities = stack.docker("exec", container, "grep", "CapEff", "/proc/1/status")
        assert int(capabilities.split()[1], 16) == 0


@contextmanager
def volumes(stack, **paths):
    """Options that mount empty volumes at these paths; they are removed at the end."""
    names = [f"{stack.tag}-{name}" for name in paths]
    try:
        yield [f"--volume={name}:{path}" for name, path in zip(names, paths.values(), strict=True)]
    finally:
        stack.docker("volume", "rm", "--force", *names)


@contextmanager
def container(stack, *arguments):
    """A container, until the end of the block; its log is printed."""
    started = stack.docker("run", "--detach", "--init", *arguments)
    try:
        yield started
    finally:
        print(stack.docker("logs", started, check=False))
        stack.docker("rm", "--force", "--volumes", started)


@pytest.mark.parametrize("user", ["54321", "54321:54321"], ids=["group of root", "group of its own"])
def test_any_user_runs_the_images(stack, user):
    """One that no account has, as `docker run --user` and OpenShift give it. Keys, journal and memory have a place."""
    scheduler, executor = (f"baton-{name}:{stack.tag}" for name in ("scheduler", "executor"))
    confined = (f"--user={user}", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", f"--env={SOCKET}")
    keys = ("--curve-keys", f"{KEYS}/scheduler", "--journal", "/var/lib/baton/journal.sqlite3")
    own_keys = ("--curve-keys", f"{KEYS}/executors/x")
    with volumes(stack, keys=KEYS, journal="/var/lib/baton", keeper="/run/baton") as mounted:
        confined += tuple(mounted)
        stack.docker("run", "--rm", *confined, scheduler, "baton", "keys", "init", "--executor", "x")
        with (
            container(stack, *confined, scheduler, "baton-keeper") as keeper,
            container(stack, *confined, scheduler, "baton-scheduler", *keys) as serving,
            container(stack, *confined, f"--network=container:{serving}", executor, *TO_LOCAL, *own_keys) as joined,
        ):
            baton = ("exec", serving, "baton")
            stack.wait_for(lambda: "Error" not in stack.docker(*baton, "status", check=False), "it answers")
            assert stack.docker(*baton, "generate", "ROMEO:", "--max-tokens", "5")
            assert "pool" in stack.docker("exec", keeper, "baton", "keeper", "status")
            assert "cannot" not in stack.docker("logs", joined)


def test_any_user_has_a_place_for_state_without_an_option(stack):
    """The home of a user without an account is /, where it may write nothing."""
    with container(stack, "--user=54321", f"baton-scheduler:{stack.tag}") as serving:
        stack.wait_for(lambda: "listening" in stack.docker("logs", serving), "it listens")
        assert "journal=/tmp/.local/state/baton/journal-8000.sqlite3" in stack.docker("logs", serving)


SOCKET = "BATON_KEEPER_SOCKET=/run/baton/keeper/keeper.sock"
TO_LOCAL = ("baton-executor", "--scheduler", "tcp://127.0.0.1:5555", "--threads", "1", "--num-blocks", "256")
KEYS = "/etc/baton/keys"


def test_each_sees_its_own_keys_and_cannot_change_them(stack):
    (scheduler,), executor = stack.containers("scheduler"), stack.containers("executor")[0]
    seen = {c: stack.docker("exec", c, "find", KEYS, "-type", "f").split() for c in (scheduler, executor)}
    assert sorted(seen[scheduler]) == [f"{KEYS}/scheduler/executor-compose.key", f"{KEYS}/scheduler/server.key_secret"]
    folder = f"{KEYS}/executors/compose"
    assert sorted(seen[executor]) == [f"{folder}/executor.key_secret", f"{folder}/server.key"]
    for container, path in ((scheduler, f"{KEYS}/scheduler/x"), (executor, f"{folder}/x")):
        assert "Read-only file system" in stack.docker("exec", container, "touch", path, check=False)


def test_keys_are_made_once(stack):
    """What `up` runs again, by hand."""
    (scheduler,) = stack.containers("scheduler")
    secret = ("exec", scheduler, "cat", f"{KEYS}/scheduler/server.key_secret")
    before = stack.docker(*secret)
    assert "and were before" in stack.compose("run", "--rm", "keys")
    assert stack.docker(*secret) == before


STRANGER = "baton-executor --scheduler tcp://scheduler:5555 --threads 1 --num-blocks 64 --name stranger"


@pytest.mark.parametrize(
    "command",
    [STRANGER, f"baton keys init --dir /tmp/k --executor x && {STRANGER} --curve-keys /tmp/k/executors/x"],
    ids=["no keys", "other keys"],
)
def test_an_executor_without_our_keys_does_not_get_in(stack, command):
    """In the image and on the network of those that do; it says that it was turned away, and stays out."""
    network = f"baton-{stack.tag}_fleet"
    container = stack.docker("run", "-d", "--network", network, f"baton-executor:{stack.tag}", "sh", "-c", command)
    try:
        stack.wait_for(lambda: "no way in to the scheduler" in stack.docker("logs", container), "it was turned away")
        status = stack.status()
        assert len(status["executors"]) == 3
        assert "stranger" not in {executor["executor"] for executor in status["executors"]}
        assert status["messages_dropped"] == 0
    finally:
        stack.docker("rm", "--force", container)


def test_only_http_is_published_and_only_on_loopback(stack):
    (scheduler,) = stack.containers("scheduler")
    ports = json.loads(stack.inspect(scheduler, "{{json .NetworkSettings.Ports}}"))
    assert ports == {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": stack.url.rpartition(":")[2]}]}
    for executor in stack.containers("executor"):
        networks = json.loads(stack.inspect(executor, "{{json .NetworkSettings.Networks}}"))
        assert [stack.docker("network", "inspect", "--format", "{{.Internal}}", name) for name in networks] == ["true"]
        assert json.loads(stack.inspect(executor, "{{json .NetworkSettings.Ports}}")) == {}


def test_the_client_is_answered(stack):
    text = stack.baton("generate", PROMPT, "--max-tokens", "40", "--temperature", "0")
    assert len(text.strip()) > 20
    assert stack.baton("status", "--json").count('"device"') == 3


def test_an_executor_killed_in_the_middle_of_a_stream(stack):
    """Others go on with the same text, another prompt is answered meanwhile, and the killed one comes back."""
    undisturbed = "".join(stream(stack, **LONG))
    pieces = stream(stack, **LONG)
    start = list(itertools.islice(pieces, 20))
    killed = stack.busy_executor()
    stack.crash(killed)
    meanwhile = stack.baton("generate", PROMPT, "--max-tokens", "20", "--temperature", "0").strip()
    assert undisturbed.startswith(meanwhile)
    assert len(meanwhile) > 10
    assert "".join([*start, *pieces]) == undisturbed

    stack.wait_for(lambda: stack.inspect(killed, "{{.RestartCount}}") == "1", "Docker started it again")
    stack.wait_for(lambda: stack.num_joined() == 3, "it joined again")
    stack.wait_for(lambda: stack.health(killed) == "healthy", "it is healthy")
    status = stack.status()
    assert status["executors_lost"] == 1
    assert status["requests_failed"] == 0


def test_what_an_operator_kills_comes_back_after_a_crash_only(stack):
    """The commands at the head of compose.yaml: Docker takes its own `kill` for a wish."""
    drill = re.search(r"docker compose exec executor (sh -c '(.*)')", (ROOT / "compose.yaml").read_text())
    crashed, killed, _ = stack.containers("executor")
    stack.docker("exec", crashed, "sh", "-c", drill[2])
    stack.wait_for(lambda: int(stack.inspect(crashed, "{{.RestartCount}}")) > 0, "Docker started it again")
    num_restarts = stack.inspect(killed, "{{.RestartCount}}")
    stack.docker("kill", killed)
    stack.wait_for(lambda: stack.num_joined() == 2, "the crashed one is back, and the killed one away")
    assert stack.inspect(killed, "{{.State.Status}} {{.RestartCount}}") == f"exited {num_restarts}"
    stack.up(executors=3)


def test_all_executors_killed_in_the_middle_of_a_stream(stack):
    """No executor is left to go on; the answer waits for the first one that comes back.

    The one that computes it dies last: of three that die with it one after the other it would be suspected.
    """
    undisturbed = "".join(stream(stack, **LONG))
    pieces = stream(stack, **LONG)
    start = list(itertools.islice(pieces, 20))
    busy = stack.busy_executor()
    for container in sorted(stack.containers("executor"), key=lambda container: container == busy):
        stack.crash(container)
    assert "".join([*start, *pieces]) == undisturbed
    stack.wait_for(lambda: stack.num_joined() == 3, "all came back")


def test_an_executor_that_hangs(stack):
    """Its connection lives, as the kernel answers for it; others go on, and it joins again when it wakes up."""
    container = stack.containers("executor")[0]
    stack.docker("pause", container)
    try:
        stack.wait_for(lambda: stack.num_joined() == 2, "the scheduler has given it up", timeout_s=10)
        assert stack.baton("generate", PROMPT, "--max-tokens", "5").strip()
    finally:
        stack.docker("unpause", container)
    stack.wait_for(lambda: stack.num_joined() == 3, "it joined again")


def test_the_scheduler_killed(stack):
    """Docker starts it again, and its executors, which keep their weights, find it."""
    executors = {container: stack.inspect(container, "{{.State.Pid}}") for container in stack.containers("executor")}
    (scheduler,) = stack.containers("scheduler")
    stack.crash(scheduler)
    stack.wait_for(lambda: stack.inspect(scheduler, "{{.RestartCount}}") == "1", "Docker started it again")
    stack.wait_for(lambda: stack.num_joined() == 3, "the executors found it")
    assert len(stack.baton("generate", PROMPT, "--max-tokens", "10").strip()) > 5
    for container, pid in executors.items():
        assert stack.inspect(container, "{{.State.Pid}}") == pid


def test_the_health_check_and_a_scheduler_that_is_away(stack):
    """Executors say that they are on their own, one of them started so; all join when the scheduler is there."""
    first, second, _ = stack.containers("executor")
    stack.wait_for(lambda: stack.health(first) == "healthy", "it is healthy after what the tests before did")
    stack.compose("stop", "scheduler")
    stack.crash(second)
    stack.wait_for(lambda: stack.health(first) == "unhealthy", "it knows", timeout_s=30)
    assert "not in the fleet" in stack.inspect(first, "{{json .State.Health.Log}}")
    assert stack.health(second) != "healthy"
    stack.compose("start", "scheduler")
    stack.wait_for(lambda: stack.num_joined() == 3, "the executors found it")
    stack.wait_for(lambda: stack.health(first) == "healthy", "it knows that, too")


def test_the_gpu_profile_is_valid(stack):
    """The image cannot be built here; compose at least takes the service as it is written."""
    services = json.loads(stack.compose("--profile", "gpu", "config", "--format", "json"))["services"]
    (device,) = services["executor-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert "executor-gpu" not in stack.compose("config", "--services").split()


def test_a_model_from_the_mounted_folder(stack, tmp_path):
    """BATON_MODEL names a folder in BATON_MODEL_DIR; the containers are made anew, one executor is left."""
    folder = tmp_path / "models"
    shutil.copytree(ROOT / "common" / "demo_model", folder / "my model")
    folder.chmod(0o755)
    told = stack.compose("run", "--rm", "keys", "baton", "keys", "api", "alice")
    (alice,) = (word for word in told.split() if word.startswith("sk-baton-"))  # among what goes to stderr
    keys = {"BATON_API_KEYS": "secret,other", "BATON_API_KEYS_FILE": f"{KEYS}/scheduler/api-keys.json"}
    stack.up(executors=1, BATON_MODEL_DIR=str(folder), BATON_MODEL="/models/my model", **keys)
    assert httpx.get(f"{stack.url}/v1/models").status_code == 401
    for key in ("other", alice):
        answer = stack.baton("generate", PROMPT, "--max-tokens", "10", "--api-key", key, "--json")
        assert json.loads(answer)["model"] == "my model"


def test_keys_that_one_up_forgets_do_not_open_the_service(stack):
    """The scheduler says which variable is missing, and serves everyone only when told so."""
    up = ("up", "--detach", "--no-deps", "scheduler")
    stack.compose(*up)
    stack.wait_for(lambda: "are not used" in stack.compose("logs", "--tail", "20", "scheduler"), "it is refused")
    said = stack.compose("logs", "--tail", "20", "scheduler")
    assert f"the API keys in {KEYS}/scheduler/api-keys.json are not used" in said
    assert "BATON_API_KEYS_FILE" in said
    stack.compose(*up, BATON_SCHEDULER_ARGS="--no-api-keys")
    stack.wait_for(lambda: stack.num_joined() > 0, "it serves")
    assert httpx.get(f"{stack.url}/v1/models").status_code == 200
    stack.compose("run", "--rm", "keys", "rm", f"{KEYS}/scheduler/api-keys.json")  # for the tests that follow
    stack.up(executors=1)


def test_a_new_container_goes_on_with_the_memory_of_the_old_one(stack):
    """What an upgrade does: the only executor is drained, and its successor, of another name, recomputes nothing."""
    stack.wait_for(lambda: {*map(stack.health, stack.containers("executor"))} == {"healthy"}, "all are healthy")
    stack.up(executors=1)
    old, keeper = stack.containers("executor"), stack.containers("keeper")
    with nothing_recomputed(stack, num_adopted=1):
        stack.compose("up", "--detach", "--wait", "--force-recreate", "executor")
    assert stack.containers("executor") != old
    assert stack.containers("keeper") == keeper


def test_a_new_keeper_has_what_the_old_one_had(stack):
    """Executors bring it what they hold: a killed one finds it there again."""
    (executor,) = stack.containers("executor")
    stack.compose("up", "--detach", "--wait", "--force-recreate", "keeper")
    stack.wait_for(lambda: " held " in kept(stack), "the executor has brought its pool")
    with nothing_recomputed(stack, num_adopted=1):
        stack.crash(executor)
    stack.wait_for(lambda: stack.health(executor) == "healthy", "it is healthy again")


@contextmanager
def nothing_recomputed(stack, num_adopted):
    """A stream that goes on meanwhile ends with the text that it would have had."""
    before = stack.status()
    undisturbed = "".join(stream(stack, **LONG))
    pieces = stream(stack, **LONG)
    start = list(itertools.islice(pieces, 20))
    with ThreadPoolExecutor() as pool:
        reading = pool.submit("".join, pieces)
        yield
        assert "".join(start) + reading.result() == undisturbed
    after = stack.status()
    assert after["pools_adopted"] == before["pools_adopted"] + num_adopted
    assert after["recomputed_tokens"] == before["recomputed_tokens"]


def test_a_standby_takes_over_from_a_container_that_hangs(stack):
    """The keeper has another PID namespace: the process beside the hung one kills it, and then the pool moves."""
    (hung,) = stack.containers("executor")
    before, pid = stack.status(), stack.inspect(hung, "{{.State.Pid}}")
    command = json.loads(stack.inspect(hung, "{{json .Config.Cmd}}"))
    standby = stack.compose("run", "--detach", "executor", *command, "--standby").splitlines()[-1]
    try:
        stack.wait_for(lambda: has_standby(stack), "the standby waits")
        pieces = stream(stack, **LONG)
        start = list(itertools.islice(pieces, 20))
        (executor,) = children(int(pid))
        os.kill(executor, signal.SIGSTOP)
        text = "".join([*start, *pieces])
        assert len(text) > len("".join(start))
        stack.wait_for(lambda: not Path(f"/proc/{executor}").exists(), "the hung process is gone")
        status = stack.status()
        assert standby[:12] in {executor["executor"][:12] for executor in status["executors"]}
        assert status["pools_adopted"] == before["pools_adopted"] + 1
        assert status["recomputed_tokens"] == before["recomputed_tokens"]
    finally:
        stack.docker("rm", "--force", standby)


def kept(stack) -> str:
    """What the keeper says that it keeps."""
    return stack.compose("exec", "keeper", "baton", "keeper", "status")


def has_standby(stack) -> bool:
    """Whether one executor serves, and another one waits for its memory."""
    return [executor["has_standby"] for executor in stack.status()["executors"]] == [True]


def children(pid: int) -> list[int]:
    """Processes that a process has started, as this machine counts them."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_of_two_equal_containers_one_waits(stack):
    """Docker starts the killed one again with the command that it had, and it becomes the other one's standby."""
    stack.up(executors=2, num_serving=1, BATON_EXECUTOR_ARGS="--threads 1 --num-blocks 2048 --standby auto")
    first = stack.status()["executors"][0]["executor"]
    (killed,) = (container for container in stack.containers("executor") if first.startswith(container[:12]))
    with nothing_recomputed(stack, num_adopted=1):
        stack.crash(killed)
    (serving,) = stack.status()["executors"]
    assert serving["executor"] != first
    stack.wait_for(lambda: has_standby(stack), "the killed one waits")
    stack.wait_for(lambda: stack.health(killed) == "healthy", "and is healthy so")
    stack.up(executors=1)


def test_the_keeper_shows_what_it_keeps_and_for_whom(stack):
    shown = kept(stack)
    (executor,) = stack.containers("executor")
    assert f"{executor[:12]}-0" in shown, shown


def test_stopping_is_orderly(stack):
    """Executors drain and the scheduler ends, each with code 0 and long before Docker would kill it."""
    containers = [*stack.containers("scheduler"), *stack.containers("executor")]
    stack.compose("stop", timeout_s=14)
    for container in containers:
        assert stack.inspect(container, "{{.State.ExitCode}} {{.State.OOMKilled}}") == "0 false"


def test_nothing_is_left(stack):
    stack.remove()
    label = f"label=com.docker.compose.project=baton-{stack.tag}"
    for kind in ("container", "network", "volume"):
        everything = ["--all"] if kind == "container" else []
        assert stack.docker(kind, "ls", "--quiet", *everything, "--filter", label) == ""
    assert stack.docker("image", "ls", "--quiet", "--filter", f"reference=*:{stack.tag}") == ""
