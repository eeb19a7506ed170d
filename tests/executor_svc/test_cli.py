"""The command line: what it prints when asked, and when something is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from common.exit_codes import EXIT_CRASHED, EXIT_REJECTED
from tests import ROOT
from tests.executor_svc.conftest import Make

HAS_GPU = torch.cuda.is_available()


def baton_executor(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, "-m", "executor_svc", *arguments], {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)


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
def test_configuration_errors_are_one_line(arguments: list[str], complaint: str) -> None:
    done = baton_executor("--log-level", "error", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("baton-executor: ")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_broken_checkpoint_is_one_line(checkpoint: Make, tmp_path: Path) -> None:
    fields = json.loads((checkpoint(preset="tiny") / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "num_experts": 8}))
    done = baton_executor("--log-level", "error", "--model", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == (
        f"baton-executor: {tmp_path}/config.json asks for what is not supported: a mixture of 8 experts\n"
    )


def test_a_standby_whose_keeper_is_not_there_is_worth_starting_again(tmp_path: Path) -> None:
    done = baton_executor("--standby", XDG_RUNTIME_DIR=str(tmp_path))
    assert done.returncode == 75
    assert "a standby needs a keeper" in done.stderr


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
def test_bad_options_are_refused_by_the_command_line(arguments: list[str]) -> None:
    done = baton_executor(*arguments)
    assert done.returncode == 2
    assert arguments[0] in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("code", "is_released"),
    [(0, True), pytest.param(EXIT_REJECTED, True, marks=pytest.mark.slow), (EXIT_CRASHED, False)],
)
def test_only_a_process_that_ends_in_order_releases_its_lease(code: int, is_released: bool) -> None:
    """One that crashed ends in the middle of something: a thread may still write the pool."""
    script = f"""
import types
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
executor_svc.service.process.serve = lambda *_: {code}
main(["--no-keep"])
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert ("released" in done.stdout.splitlines()) == is_released
