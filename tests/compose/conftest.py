"""A Docker engine and Baton's stack in it, both taken down again."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.compose.stack import ROOT, Stack

ENGINE_SCRIPT = ROOT.parent / "shared" / "tools" / "docker-engine.sh"


def answers(env: dict[str, str]) -> bool:
    try:
        subprocess.run(["docker", "info"], env=env, check=True, capture_output=True, timeout=60)
        subprocess.run(["docker", "compose", "version"], env=env, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def private_engine_env(home: Path) -> dict[str, str]:
    """This process's environment with what `home`/env.sh exports."""
    sourced = subprocess.run(
        ["bash", "-c", f". {shlex.quote(str(home / 'env.sh'))} && env -0"], check=True, capture_output=True, text=True
    )
    return dict(line.split("=", 1) for line in sourced.stdout.split("\0") if "=" in line)


@pytest.fixture(scope="session")
def docker_env():
    """Environment in which `docker compose` works. An engine is started, and stopped, only if there is none."""
    env = dict(os.environ)
    if answers(env):
        yield env
        return
    home = Path(env.get("DK_HOME") or Path(env.get("TMPDIR") or "/tmp", "docker-engine"))
    if (home / "env.sh").exists() and answers(private := private_engine_env(home)):
        yield private
        return
    if not ENGINE_SCRIPT.exists():
        pytest.skip(f"no Docker engine with compose answers, and there is no {ENGINE_SCRIPT} to make one")
    if os.geteuid() != 0:
        pytest.skip("no Docker engine with compose answers, and only root can start one")
    try:
        subprocess.run(["bash", str(ENGINE_SCRIPT)], check=True, timeout=900)
        yield private_engine_env(home)
    finally:
        subprocess.run(["bash", str(ENGINE_SCRIPT), "stop"], check=True, timeout=120)


@pytest.fixture(scope="session")
def stack(docker_env, request):
    """The stack with three executors, built from this working tree. Its logs are printed if a test fails."""
    stack = Stack(docker_env)
    failed_before = request.session.testsfailed
    is_up = False
    try:
        stack.build()
        stack.up(executors=3)
        is_up = True
        yield stack
    finally:
        if not is_up or request.session.testsfailed > failed_before:
            print(stack.compose("logs", "--no-color", "--tail", "100", check=False))
        stack.remove()
