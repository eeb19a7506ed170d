"""The package as others install it: a wheel in an environment of its own, run where there is no checkout."""

import os
import shutil
import site
import subprocess
import sys
import tomllib
import zipfile

import pytest

from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command, cwd):
    # What this process was told must not reach the installed package, least of all where the checkout is.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_INTERPRET")}
    done = subprocess.run([*map(str, command)], check=False, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: setuptools would put everything into it that it ever left in the tree's build folder."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of an environment's commands: the wheel is in it, and its dependencies are those of this process."""
    root = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", root, cwd=root)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", root / "bin/python")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=root)
    # Of folders on the path Python takes no .pth file, so an editable install there does not lead to the checkout.
    packages = [path for path in sys.path if path.endswith("site-packages")] or site.getsitepackages()
    (place,) = root.glob("lib/python*/site-packages")
    (place / "dependencies.pth").write_text("\n".join(packages) + "\n")
    return root / "bin"


def test_the_wheel_has_our_packages_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert not [name for name in names if "__pycache__" in name]
    of_the_tree = {
        str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()
    }
    missing = {name for name in of_the_tree if "__pycache__" not in name} - set(names)
    assert not missing, "files of the tree that the wheel lacks"


def test_the_demo_runs_outside_the_checkout(installed, tmp_path):
    where = "import common, executor_svc, keeper_svc, kernels, scheduler_svc as s; print(s.__file__)"
    assert run(installed / "python", "-c", where, cwd=tmp_path).startswith(str(installed.parent))
    said = run(installed / "baton", "demo", "--max-tokens", "60", cwd=tmp_path)
    assert said.count("identical to the undisturbed run      yes") == 3
    assert "--scheduler" in run(installed / "baton-executor", "--help", cwd=tmp_path)
    assert "--keep-for" in run(installed / "baton-keeper", "--help", cwd=tmp_path)
    assert "--executor-endpoint" in run(installed / "baton-scheduler", "--help", cwd=tmp_path)
