"""`baton ray` where there is no Ray, or no cluster."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from common.installation import install_command
from scheduler_svc.client.cli import main

SUBCOMMANDS = [["up"], ["status"], ["scale", "2"], ["rollout"], ["down"]]
EVERY_ENTRY = """
import importlib, pkgutil, sys
sys.modules["ray"] = None
import scheduler_svc.client.commands as commands
for module in ("scheduler_svc", "scheduler_svc.frontend", "keeper_svc", "executor_svc"):
    importlib.import_module(f"{module}.__main__")
for command in pkgutil.iter_modules(commands.__path__):
    importlib.import_module(f"scheduler_svc.client.commands.{command.name}")
for module in ("host", "plan", "spec", "facts"):
    importlib.import_module(f"scheduler_svc.client.ray.{module}")
"""


def test_nothing_else_needs_ray():
    done = subprocess.run([sys.executable, "-c", EVERY_ENTRY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("subcommand", SUBCOMMANDS, ids=" ".join)
def test_without_ray_a_message_says_what_to_install(subcommand, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = CliRunner().invoke(main, ["ray", *subcommand])
    assert done.exit_code == 2
    to_install = install_command("ray")
    assert done.stderr == f"Error: `baton ray` needs ray, which is not installed; to install: {to_install}\n"


@pytest.mark.parametrize("subcommand", SUBCOMMANDS, ids=" ".join)
def test_help_of_each_has_an_example(subcommand):
    result = CliRunner().invoke(main, ["ray", subcommand[0], "--help"])
    assert result.exit_code == 0
    assert f"baton ray {subcommand[0]}" in result.output.split("Example:")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--standby", "--no-keep"], "--standby and --no-keep contradict each other"),
        (["up", "--journal", "j", "--no-journal"], "--journal and --no-journal contradict each other"),
        (["up", "--fleet", "A b"], "'A b' is no name"),
        (["status", "--fleet", "-x"], "no name"),
    ],
)
def test_wrong_usage_is_2(arguments, message):
    result = CliRunner().invoke(main, ["ray", *arguments])
    assert result.exit_code == 2
    assert message in result.output
