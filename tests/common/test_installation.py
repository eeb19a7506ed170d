"""One line, before anything starts, for an installation that lacks something, or has more than Baton in it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from common.exit_codes import EXIT_USAGE
from common.installation import DISTRIBUTION, PACKAGES
from scheduler_svc.client.processes.local_fleet import free_ports
from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HERE = f"{sys.executable} -m pip install --editable '{ROOT}[{{}}]'"  # how a checkout is installed
SERVICES = {"scheduler_svc": "baton-scheduler", "keeper_svc": "baton-keeper", "executor_svc": "baton-executor"}
POINTS = "[console_scripts]\nbaton = scheduler_svc.client.cli:main\n"


def run(code, *paths, cwd=ROOT):
    """Run a program that finds modules in these folders first."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}
    command = [sys.executable, "-P", "-c", code] if isinstance(code, str) else [sys.executable, *code]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def command(module, *arguments, without=()):
    """A program that runs a command where packages are missing."""
    missing = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    if "up" in arguments:
        arguments += tuple(word for option in ("--port", "--executor-port") for word in (option, str(free_ports(1)[0])))
    return f"import sys; {missing}from {module} import main; main({list(arguments)!r})"


def distribution(folder, name, **files):
    """Write what pip writes about a distribution."""
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir()
    for file, text in {"METADATA": f"Name: {name}\nVersion: 0.1.0\n", **files}.items():
        (info / file.replace("_json", ".json").replace("_txt", ".txt")).write_text(text)


@pytest.mark.parametrize(
    ("program", "subject", "missing", "extra"),
    [
        (command("scheduler_svc.client.cli", "up", without=["torch"]), "an executor", "torch", "executor"),
        (
            command("scheduler_svc.client.cli", "demo", without=["safetensors"]),
            "an executor",
            "safetensors",
            "executor",
        ),
        (
            command("scheduler_svc.client.cli", "up", "--device", "cuda", without=["torch", "triton"]),
            *("an executor", "torch and triton", "executor,gpu"),
        ),
        (command("executor_svc.__main__", without=["torch"]), "an executor", "torch", "executor"),
        (command("executor_svc.__main__", "--device", "cuda", without=["triton"]), "an executor", "triton", "gpu"),
    ],
    ids=["up", "demo", "up on a GPU", "executor", "executor on a GPU"],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, program, subject, missing, extra):
    for package in {"torch", "safetensors", "triton"} - set(missing.split(" and ")):  # whatever this environment has
        (tmp_path / f"{package}.py").touch()
    done = run(program, tmp_path)
    assert done.returncode == EXIT_USAGE
    are = "are" if " and " in missing else "is"
    [line] = done.stderr.splitlines()
    expected = f"{subject} needs {missing}, which {are} not installed; to install: {HERE.format(extra)}"
    assert line in (f"Error: {expected}", f"baton-executor: {expected}")
    assert done.stdout == ""


def test_kernels_without_torch_are_told_in_one_line():
    code = "import sys, runpy; sys.modules['torch'] = None; runpy.run_module('kernels.cpu', run_name='__main__')"
    done = run(code)
    assert (done.returncode, len(done.stderr.splitlines())) == (EXIT_USAGE, 1)
    assert "extra `executor`" in done.stderr


def test_a_package_that_cannot_be_loaded_is_told_in_one_line(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    (tmp_path / "safetensors.py").touch()
    done = run(command("executor_svc.__main__"), tmp_path)
    assert done.returncode == EXIT_USAGE
    [*_, line] = done.stderr.splitlines()
    assert line.startswith("baton-executor: torch cannot be imported: libcudart.so.13: cannot open ")


@pytest.mark.parametrize("module", SERVICES)
def test_a_package_of_another_project_in_place_of_common(tmp_path, module):
    """Also one in the folder where a service is started, which Python takes first."""
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").touch()
    for done in (run(f"import {module}", tmp_path), run(["-m", module], cwd=tmp_path)):
        assert done.returncode == EXIT_USAGE
        [line] = done.stderr.splitlines()
        where = f"'{tmp_path}/common/__init__.py'"
        assert line.endswith(f"{where}> is another project's; install Baton into an environment of its own.")


@pytest.mark.parametrize("program", [command("scheduler_svc.client.cli", "up"), command("executor_svc.__main__")])
def test_a_package_of_another_project_in_place_of_kernels(tmp_path, program):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").touch()
    done = run(program, tmp_path)
    assert done.returncode == EXIT_USAGE
    [line] = done.stderr.splitlines()
    assert f"the package kernels is another project's here: {tmp_path}/kernels; install Baton into" in line


@pytest.fixture
def site(tmp_path):
    """A folder of packages as pip makes it, with Baton in it."""
    for package in PACKAGES:
        (tmp_path / package).symlink_to(ROOT / package)
    distribution(tmp_path, DISTRIBUTION, RECORD="kernels/__init__.py,,\n", entry_points_txt=POINTS)
    return tmp_path


def test_what_was_installed_from_a_path_is_installed_from_there_again(site, tmp_path_factory):
    wheel = tmp_path_factory.mktemp("wheels of ours") / "baton_llm-0.1.0-py3-none-any.whl"
    wheel.touch()
    (site / "baton_llm-0.1.0.dist-info" / "direct_url.json").write_text(json.dumps({"url": wheel.as_uri()}))
    told = "from common.installation import install_command; print(install_command('executor'))"
    assert run(told, site).stdout == f"{sys.executable} -m pip install '{wheel}[executor]'\n"
    without_pip = run(f"import sys; sys.modules['pip'] = None; {told}", site).stdout
    assert without_pip == f"uv pip install --python {sys.executable} '{wheel}[executor]'\n"
    wheel.unlink()
    assert run(told, site).stdout == f"{sys.executable} -m pip install 'PATH/TO/{wheel.name}[executor]'\n"


def warnings(site):
    """What a scheduler says that finds no folder for its journal."""
    done = run(["-m", "scheduler_svc", "--port", "0", "--journal", "/nowhere/journal"], site, cwd=site)
    assert done.returncode == EXIT_USAGE
    return [line for line in done.stderr.splitlines() if "level=warning" in line]


def test_another_distribution_in_baton_s_packages_is_told(site):
    assert warnings(site) == []
    distribution(site, "kernels", RECORD="kernels/__init__.py,sha256=x,1\nkernels/layer.py,,\n")
    [line] = warnings(site)
    assert 'event="another distribution owns files of Baton"' in line
    assert "reason=\"the distribution kernels owns files of Baton's kernels; install Baton into an environment" in line


def test_an_installation_by_the_earlier_name_is_told_with_the_command_that_ends_it(site):
    distribution(site, "baton", RECORD="baton/__init__.py,,\n", entry_points_txt="[console_scripts]\nx = baton:main\n")
    assert warnings(site) == []  # another project, which owns nothing here
    (site / "baton-0.1.0.dist-info" / "entry_points.txt").write_text(POINTS)
    [line] = warnings(site)
    assert f"{sys.executable} -m pip uninstall --yes baton baton-llm && {sys.executable} -m pip install " in line


def test_children_take_nothing_from_the_folder_where_their_parent_was_started(tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").touch()
    options = ["--port", "0", "--no-journal", "--no-store", "--executor-endpoint", "tcp://127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "scheduler_svc", *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    ) as scheduler:
        said = []
        for line in scheduler.stderr:
            said.append(line)
            if "frontend started" in line or "another project" in line:
                break
        scheduler.terminate()
    assert "frontend started" in said[-1], said


def test_a_working_folder_that_was_removed_hides_nothing(tmp_path):
    code = "import os; os.mkdir('x'); os.chdir('x'); os.rmdir('../x')\n"
    code += "from common.installation import hide_working_folder; hide_working_folder()"
    assert run(code, cwd=tmp_path).stderr == ""


# --- what installs ---

INSTALLS = re.compile(r"\b(?:pip3?|pipx|uv|py_modules)\b.*?(?:\b(?:install|download|wheel|add|inject)\b|\[)(.*)")
OURS = re.compile(r"baton(?:[-_.]llm)?(?:\[[\w,-]*\])?(?:[=<>~!@].*)?")


def installed_by(line):
    """The words after a command that installs, or in a runtime environment of Ray."""
    return [word.strip("(){}.,:;") for found in INSTALLS.findall(line) for word in re.split(r"[\s'\"`]+", found)]


@pytest.mark.parametrize(
    ("name", "is_on_path", "told"),
    [
        ("baton", True, ["baton", "{path}"]),
        ("baton", False, ["{path}", "{path}"]),
        ("another baton", False, ["baton", "baton"]),
    ],
)
def test_a_command_is_named_as_a_shell_and_sudo_take_it(tmp_path, name, is_on_path, told):
    """Sudo looks into none of the folders on the PATH of an environment."""
    folder = tmp_path / "my bin"
    folder.mkdir()
    script = folder / name
    names = "this_command(), this_command(by_sudo=True)"
    script.write_text(f"#!{sys.executable}\nfrom common.installation import this_command\nprint({names}, sep='\\n')\n")
    script.chmod(0o755)
    path = os.environ["PATH"] + f":{folder}" * is_on_path
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [each.format(path=f"'{script}'") for each in told], done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "pip install 'baton[executor]'",
        "RUN pip install --quiet baton-llm==0.1.0",
        '\'{"pip": ["baton==0.2.0"]}\'',
        "uv tool install baton_llm",
        "(pip install 'baton-llm[executor,ray]', or a runtime environment)",
    ],
)
def test_a_line_that_asks_an_index_for_baton_is_found(line):
    assert any(OURS.fullmatch(word) for word in installed_by(line))


def test_nothing_asks_an_index_for_baton():
    """There the name `baton` is another project's, and `baton-llm` could become somebody's."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in files:
        path = ROOT / name
        if not path.is_file() or path == Path(__file__) or path.suffix in {".png", ".safetensors", ".sqlite3"}:
            continue
        for line in path.read_bytes().decode(errors="replace").splitlines():
            found = [word for word in installed_by(line) if OURS.fullmatch(word)]
            assert not found or "uninstall" in line, f"{name} asks an index for {found}"
    extras = PROJECT["optional-dependencies"]
    for requirement in PROJECT["dependencies"] + [each for names in extras.values() for each in names]:
        own = re.fullmatch(rf"{DISTRIBUTION}\[([\w,-]+)\]", requirement)
        assert not OURS.fullmatch(requirement) or (own and set(own[1].split(",")) <= set(extras)), requirement


def test_the_image_installs_what_baton_needs_and_not_baton_from_an_index(tmp_path):
    """The program in the Dockerfile that writes the lists, as it stands there."""
    [program] = re.findall(r"<<'PYTHON'\n(.*?)^PYTHON$", (ROOT / "Dockerfile").read_text(), re.DOTALL | re.MULTILINE)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    lists = {path.name: path.read_text().split("\n") for path in tmp_path.glob("*.txt")}
    assert "gpu.txt" in lists
    assert any(line.startswith("triton") for line in lists["gpu.txt"])
    for name, lines in lists.items():
        assert not [line for line in lines if OURS.fullmatch(line)], name
