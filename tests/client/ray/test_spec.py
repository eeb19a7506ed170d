"""The command lines of a fleet's processes are ones that the services take, and keys are where they look for them."""

import pytest

from common.curve import ClientCurve, KeyPair, ServerCurve, allowed_files
from executor_svc.__main__ import main as executor_command
from keeper_svc.__main__ import main as keeper_command
from scheduler_svc.__main__ import main as scheduler_command
from scheduler_svc.client.ray.facts import HostName
from scheduler_svc.client.ray.spec import RayFleetSpec, allowed_file

EXECUTOR = HostName("executor", "3", 1, 2)


def spec(**fields) -> RayFleetSpec:
    usual = {"name": "f", "model": None, "port": 8000, "executor_port": 5555, "executors": 1}
    return RayFleetSpec(**(usual | {"server_keys": KeyPair.generate()} | fields))


def parsed(command, task, words, folder):
    """What a click command makes of a task's words."""
    assert words[:3] == ("{python}", "-m", {"baton-executor": "executor_svc"}.get(task, task))
    filled = [word.replace("{folder}", str(folder)).replace("{host}", "10.0.0.1") for word in words[3:]]
    (folder / "scheduler").write_text("tcp://10.0.0.1:5555")
    return command.make_context(task, filled).params


def laid_out(task, folder):
    for path, text in task.files.items():
        (folder / path).parent.mkdir(mode=0o700, exist_ok=True)
        (folder / path).touch(mode=0o600)
        (folder / path).write_text(text)
    return folder / "keys"


def test_the_scheduler(tmp_path):
    some = spec(journal="/shared/j", scheduler_options=("--window", "1"), api_keys="{}")
    task = some.scheduler_task({"executor-0-0-r1": KeyPair.generate().public.decode()})
    options = parsed(scheduler_command, "scheduler_svc", task.command, tmp_path)
    assert (options["port"], options["executor_endpoint"], options["window"]) == (8000, "tcp://10.0.0.1:5555", 1)
    assert (str(options["journal_path"]), options["api_keys_file"]) == ("/shared/j", tmp_path / "api-keys.json")
    keys = laid_out(task, tmp_path)
    assert options["curve_keys"] == keys
    assert ServerCurve.load(keys).keys.public == some.server_keys.public
    path, text = allowed_file("executor-1-0-r1", KeyPair.generate().public.decode())
    (tmp_path / path).write_text(text)
    assert list(allowed_files(keys)) == ["executor-0-0-r1", "executor-1-0-r1"]


def test_an_executor(tmp_path):
    some, own = spec(cpus=4, executor_options=("--dtype", "bfloat16")), KeyPair.generate()
    task = some.executor_task(EXECUTOR, "tcp://10.0.0.1:5555", own, is_beside=False)
    options = parsed(executor_command, "baton-executor", task.command, tmp_path)
    assert (options["name"], options["threads"], options["dtype"]) == ("executor-3-1", 4, "bfloat16")
    assert (options["standby"], options["no_keep"], options["place"]) == ("never", False, "3")
    assert options["device"] == "cpu", "no GPU was asked for, also where Ray hides none"
    curve = ClientCurve.load(laid_out(task, tmp_path))
    assert (curve.keys.secret, curve.server_public) == (own.secret, some.server_keys.public)
    assert task.public_key == own.public.decode()
    assert "OMP_NUM_THREADS" in task.without


def test_one_that_comes_back_or_is_beside_another_asks_whether_it_is_to_wait(tmp_path):
    some = spec()
    first = some.executor_task(EXECUTOR, "tcp://h:1", KeyPair.generate(), is_beside=False)
    second = some.executor_task(EXECUTOR, "tcp://h:1", KeyPair.generate(), is_beside=True)
    for words in (first.again, second.command, second.again):
        assert parsed(executor_command, "baton-executor", words, tmp_path)["standby"] == "auto"
    alone = spec(keeps=False).executor_task(EXECUTOR, "tcp://h:1", KeyPair.generate(), is_beside=False)
    options = parsed(executor_command, "baton-executor", alone.again, tmp_path)
    assert (options["standby"], options["no_keep"]) == ("never", True)


def test_ranks_on_the_gpus_of_one_place():
    some = spec(gpus=4)
    assert some.bundle() == {"CPU": 1.0, "GPU": 4.0}
    task = some.executor_task(EXECUTOR, "tcp://h:1", KeyPair.generate(), is_beside=False)
    assert task.command[:6] == (
        *("{python}", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"),
        "-m",
    )
    assert "--threads" not in task.command
    assert "--device" not in task.command


def test_the_keeper(tmp_path):
    options = parsed(keeper_command, "keeper_svc", spec().keeper_task().command, tmp_path)
    assert str(options["socket_path"]) == "{shared}/keeper.sock"


def test_secrets_are_not_shown():
    some = spec(api_keys="secret-1", status_key="secret-2")
    task = some.executor_task(EXECUTOR, "tcp://h:1", KeyPair.generate(), is_beside=False)
    for shown in (repr(some), repr(task), repr(some.scheduler_task({}))):
        assert "secret" not in shown.replace("executor.key_secret", "")


@pytest.mark.parametrize("text", ["executor-3-1-r2", "scheduler-0-0-r1", "keeper-0a1b2c3d-0-r7"])
def test_names(text):
    assert str(HostName.parse(text)) == text


@pytest.mark.parametrize("text", ["", "manager-r1", "executor-3-r1", "executor-a b-0-r1", "worker-0-0-r1"])
def test_names_of_others(text):
    assert HostName.parse(text) is None
