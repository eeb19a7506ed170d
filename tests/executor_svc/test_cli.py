"""The command line: what it prints when asked, and when something is wrong."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from common.exit_codes import EXIT_CRASHED, EXIT_REJECTED
from common.model_files import DEMO_MODEL_DIR
from tests import ROOT
from tests.support.forked_commands import Call, Done, ForkedCommands

HAS_GPU = torch.cuda.is_available()


@pytest.fixture(scope="module")
def commands() -> Iterator[ForkedCommands]:
    running = ForkedCommands(computes=True)
    yield running
    running.close()


@pytest.fixture
def baton_executor(commands: ForkedCommands) -> Callable[..., Done]:
    def run(*arguments: str, **variables: str) -> Done:
        return commands.run(Call(("baton-executor", *arguments), {**variables}))

    return run


def test_help_is_quick_and_has_an_example() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from executor_svc.__main__ import main; "
        "print(CliRunner().invoke(main, ['--help']).output, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "baton-executor --model Qwen/Qwen3-0.6B" in done.stdout
    assert done.stdout.split()[-1] == "False"


def test_serving_imports_no_transformers() -> None:
    script = (
        "import sys, executor_svc.service.process, executor_svc.startup; "
        "print([n for n in sys.modules if n.split('.')[0] in ('transformers', 'scheduler_svc')])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model", "/nowhere/at/all"], "there is no folder /nowhere/at/all"),
        pytest.param(
            ["--max-model-len", "1000000"], "--max-model-len is 1000000, the model takes", marks=pytest.mark.slow
        ),
        pytest.param(
            ["--num-blocks", "2", "--max-model-len", "100"],
            "the pool holds 32 positions (2 blocks of 16)",
            marks=pytest.mark.slow,
        ),
        pytest.param(["--kv-cache-memory", "1e-9"], "hold no block", marks=pytest.mark.slow),
        pytest.param(["--num-blocks", "1000000000"], "cannot be allocated", marks=pytest.mark.slow),
        pytest.param(
            ["--device", "cuda"], "finds no GPU here", marks=pytest.mark.skipif(HAS_GPU, reason="needs to see no GPU")
        ),
    ],
)
def test_configuration_errors_are_one_line(
    baton_executor: Callable[..., Done], arguments: list[str], complaint: str
) -> None:
    done = baton_executor("--log-level", "error", *arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("baton-executor: ")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_broken_checkpoint_is_one_line(baton_executor: Callable[..., Done], tmp_path: Path) -> None:
    fields = json.loads((DEMO_MODEL_DIR / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "num_experts": 8}))
    done = baton_executor("--log-level", "error", "--model", str(tmp_path))
    assert done.exit_code == 2
    assert done.stderr == (
        f"baton-executor: {tmp_path}/config.json asks for what is not supported: a mixture of 8 experts\n"
    )


def test_a_standby_whose_keeper_is_not_there_is_worth_starting_again(
    baton_executor: Callable[..., Done], tmp_path: Path
) -> None:
    done = baton_executor("--standby", XDG_RUNTIME_DIR=str(tmp_path))
    assert done.exit_code == 75
    assert "a standby needs a keeper" in done.stderr


def test_what_is_wrong_is_said_before_torch_is_imported(tmp_path: Path) -> None:
    """That takes seconds, for which nobody should wait to hear of a wrong path."""
    fields = json.loads((DEMO_MODEL_DIR / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "num_experts": 8}))
    wrong = [
        ["--model", "/nowhere/at/all"],
        ["--model", str(tmp_path)],
        ["--curve-keys", str(tmp_path)],
        ["--scheduler", f"file:{tmp_path}/nowhere"],
        ["--health-file", f"{tmp_path}/nowhere/health"],
        ["--standby", "--keeper", f"{tmp_path}/{'x' * 200}"],
    ]
    script = f"""
import sys
from executor_svc.__main__ import main
for arguments in {wrong}:
    try:
        main(arguments)
    except SystemExit as ended:
        print(ended.code, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    ends = [line for line in done.stdout.splitlines() if not line.startswith("time=")]
    assert ends == ["2 False"] * 5 + ["75 False"], done.stderr


def test_a_disk_that_fails_is_worth_starting_again(tmp_path: Path) -> None:
    script = """
import errno, os
from executor_svc.__main__ import main

def failing(*_, **__):
    raise OSError(errno.EIO, "Input/output error")

os.fdopen = failing  # by which a model's files are read
main(["--no-keep", "--log-level", "error"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 75
    assert done.stderr.startswith("baton-executor: ")
    assert "Input/output error" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--scheduler", "http://x"],
        ["--block-size", "0"],
        ["--dtype", "int8"],
        ["--device", "tpu"],
        ["--name", "x" * 129],
        ["--name", "first\nsecond"],
        ["--node", "here\x1b[2J"],
    ],
)
def test_bad_options_are_refused_by_the_command_line(baton_executor: Callable[..., Done], arguments: list[str]) -> None:
    done = baton_executor(*arguments)
    assert done.exit_code == 2
    assert arguments[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_only_a_process_that_ends_in_order_releases_its_lease() -> None:
    """One that crashed ends in the middle of something: a thread may still write the pool."""
    script = f"""
import os, types
import executor_svc.keeper.finding, executor_svc.service.process, executor_svc.startup
from executor_svc.__main__ import main

class Pool:
    def release(self):
        print("released", flush=True)

hello, group = types.SimpleNamespace(executor="executor"), types.SimpleNamespace(size=1, rank=0)
started = types.SimpleNamespace(
    runner=None, group=group, pool=Pool(), is_standby=False, hello_after=lambda start_s: hello
)
executor_svc.startup.start_executor = lambda *_: started
for code in {(0, EXIT_REJECTED, EXIT_CRASHED)}:
    if (pid := os.fork()) == 0:
        executor_svc.service.process.serve = lambda *_: code
        main(["--no-keep"])
    print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    said = [line for line in done.stdout.splitlines() if not line.startswith("time=")]
    expected = ["released", "ended 0", "released", f"ended {EXIT_REJECTED}", f"ended {EXIT_CRASHED}"]
    assert said == expected, done.stderr
