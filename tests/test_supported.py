"""The Pythons and systems that Baton runs on: said alike everywhere, found by `make`, and told to everybody else."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from tests import ROOT

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
LINE = "Baton runs on Linux with Python 3.11, 3.12, 3.13 or 3.14, and not with "
PACKAGES = [
    "scheduler_svc.client.cli",
    "scheduler_svc.__main__",
    "executor_svc.__main__",
    "keeper_svc.__main__",
    "kernels.cpu",
]


def test_every_place_names_the_same_pythons():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.15"
    label = "Programming Language :: Python :: "
    assert [name.removeprefix(label) for name in project["classifiers"] if name.startswith(label)] == PYTHONS
    assert "Linux with Python 3.11, 3.12, 3.13 or 3.14 " in (ROOT / "README.md").read_text()
    assert f"python_of,{' '.join(PYTHONS)})" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(
    ("pretended", "told"),
    [
        ("platform = 'win32'", "on win32"),
        ("version_info = (3, 10, 13)", "Python 3.10 on linux"),
        ("version_info = (3, 15, 0)", "Python 3.15 on linux"),
    ],
)
def test_others_are_told_in_one_line(package, pretended, told):
    code = f"import sys; sys.{pretended}; import {package}"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    [line] = ended.stderr.splitlines()
    assert line.startswith(LINE)
    assert line.endswith(f"{told}.")


@pytest.mark.parametrize("package", ["common", "kernels", "scheduler_svc", "executor_svc", "keeper_svc"])
def test_the_line_can_be_read_by_any_python(package):
    """Also by those that know no f-strings, which are a SyntaxError before anything is told."""
    tree = ast.parse((ROOT / package / "__init__.py").read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.AnnAssign)]


@pytest.fixture
def make(tmp_path):
    """Run `make` where only these programs are found: a text is a script, None is this Python."""
    programs, home = tmp_path / "bin", tmp_path / "home"
    programs.mkdir()

    def put(path, script):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\n{script or f"exec {sys.executable} "}"$@"\n')
        path.chmod(0o755)

    for name in ("sh", "echo", "rm", "touch"):
        put(programs / name, f"exec {shutil.which(name)} ")

    def run(*arguments, **pythons):
        for name, script in pythons.items():
            put(home / name if "/" in name else programs / name, script)
        command = [shutil.which("make"), "--no-print-directory", *arguments]
        environment = {"PATH": str(programs), "HOME": str(home)}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    return run


SHIM = "echo 'pyenv: command not found' >&2; exit 127; "
OF_PYENV = ".pyenv/versions/{0}.0/bin/python{0}"


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        ({"python3.14": None}, "python3.14"),
        ({"python3.11": SHIM, "python3.12": SHIM, "python3.13": None, "python3.14": None}, "python3.13"),
        ({"python3.11": SHIM, "python3.13": SHIM, OF_PYENV.format("3.13"): None}, OF_PYENV.format("3.13")),
        ({"python3": None}, "python3"),
    ],
)
def test_make_takes_the_first_python_that_runs(make, pythons, chosen):
    said = make("-n", "demo", "VENV=build/none", **pythons)
    [command] = re.findall(r"^(\S+) -m venv build/none$", said.stdout, re.MULTILINE)
    assert command.endswith(chosen)


def test_make_tells_which_pythons_there_have_to_be(make, tmp_path):
    old = "echo 'import sys; sys.version_info = (3, 9, 2); import common' | exec " + sys.executable + " - "
    said = make("demo", "VENV=build/none", python3=old)
    assert said.returncode != 0
    assert said.stderr.startswith(LINE)
    assert "make PYTHON=" in said.stdout
    assert not (ROOT / "build" / "none").exists()
    assert os.listdir(tmp_path / "bin")


@pytest.mark.parametrize(
    ("there", "runs", "is_not_there"),
    [
        ({"3.12", "3.13"}, {"3.13": "tests/core", "3.12": "tests/client"}, []),
        ({"3.13"}, {"3.13": "tests/core"}, ["3.12"]),
        ({"3.12"}, {"3.12": "tests/core"}, ["3.13"]),
        (set(), {}, ["3.12", "3.13"]),
    ],
)
def test_newer_pythons_run_what_they_can(make, there, runs, is_not_there):
    pythons = {f"python{each}": None for each in there}
    said = make("-n", "test-pythons", **{f"python{each}": SHIM for each in ("3.12", "3.13")} | pythons)
    assert said.returncode == 0
    for each in ("3.12", "3.13"):
        commands = [line for line in said.stdout.splitlines() if f"build/python-{each}/bin/python -m pytest" in line]
        assert len(commands) == (each in runs)
        assert all(runs[each] in command for command in commands)
        assert (f"NOT RUN: there is no Python {each} " in said.stdout) == (each in is_not_there)
