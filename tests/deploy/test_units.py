"""deploy/systemd, as systemd itself reads it (tests/compose/test_by_systemd.py runs it)."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from common.exit_codes import EXIT_REJECTED, EXIT_USAGE
from tests.deploy import commands
from tests.deploy.manifests import ROOT

FOLDER = ROOT / "deploy" / "systemd"
UNITS = {path.name: path.read_text() for path in FOLDER.glob("*.service")}
GUIDE = (ROOT / "docs" / "operations.md").read_text()
SECTION = GUIDE[GUIDE.index("### With pip, under systemd") : GUIDE.index("### With Docker compose")]
SYSTEM_UNITS = Path("/usr/lib/systemd/system")
OK = 50  # tenths of systemd's level of exposure: below that it says OK

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None or not SYSTEM_UNITS.is_dir(), reason="needs systemd-analyze and its units"
)
ON_UNITS = pytest.mark.parametrize("unit", UNITS)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def root(tmp_path):
    """What the units are installed in: with systemd's own ones, and the programs that they start."""
    installed = tmp_path / "etc" / "systemd" / "system"
    shutil.copytree(SYSTEM_UNITS, tmp_path / "usr" / "lib" / "systemd" / "system", symlinks=True)
    shutil.copytree(FOLDER, installed)
    for program in commands.COMMANDS:
        path = tmp_path / "opt" / "baton" / "bin" / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755)
    for unit in ("baton-keeper.service", "baton-executor@.service"):
        (installed / f"{unit}.d").mkdir()
        shutil.copy(FOLDER / "gpu.conf", installed / f"{unit}.d")
    return tmp_path


def verified(root: Path) -> str:
    """What systemd says of all units; nothing if they are right."""
    units = (str(root / "etc" / "systemd" / "system" / unit) for unit in UNITS)
    return analyze("verify", f"--root={root}", *units).stderr


@needs_systemd
def test_systemd_takes_them(root):
    assert verified(root) == ""


@needs_systemd
@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("RestartSec=1", "RestartSec=soon", "Failed to parse sec value"),
        ("ProtectHome=", "ProtectHomes=", "Unknown key"),
        ("@system-service", "@system-servant", "Unknown system call group"),
        ("/opt/baton/bin/", "/opt/bin/", "is not executable"),
    ],
)
def test_systemd_would_say_what_is_wrong(root, right, wrong, complaint):
    unit = root / "etc" / "systemd" / "system" / "baton-scheduler.service"
    unit.write_text(unit.read_text().replace(right, wrong))
    assert complaint in verified(root)


@needs_systemd
@ON_UNITS
def test_systemd_calls_their_exposure_ok(root, unit):
    """With gpu.conf, which loosens two of them, and without."""
    installed = root / "etc" / "systemd" / "system"
    for with_gpu in (True, False):
        done = analyze("security", "--offline=true", f"--threshold={OK - 1}", f"--root={root}", str(installed / unit))
        assert done.returncode == 0, done.stdout
        assert re.search(r"Overall exposure level for \S+: \d\.\d OK", done.stdout), done.stdout
        if with_gpu:
            shutil.rmtree(installed / f"{unit}.d", ignore_errors=True)


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="needs systemd-sysusers")
def test_they_run_as_the_user_that_is_made_for_them(tmp_path):
    (tmp_path / "etc").mkdir()
    command = ["systemd-sysusers", f"--root={tmp_path}", str(FOLDER / "sysusers.conf")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    (user,) = (tmp_path / "etc" / "passwd").read_text().splitlines()
    name, _, _, _, _, home, shell = user.split(":")
    assert (name, home, shell) == ("baton", "/var/lib/baton", "/usr/sbin/nologin")
    assert all("\nUser=baton\n" in unit for unit in UNITS.values())


@ON_UNITS
def test_commands_take_their_arguments(unit):
    """With what the example of their options adds."""
    (start,) = commands.in_lines(UNITS[unit])
    given = dict(line.split("=", 1) for line in (FOLDER / "baton.env").read_text().splitlines() if line[:1] not in "#")
    (variable,) = re.findall(r"\$(\w+)$", start)
    words = shlex.split(start.replace(f"${variable}", given[variable]).replace("%H-%i", "box-1"))
    assert commands.complaints(words) == []


def test_they_start_again_what_no_change_of_configuration_mends():
    prevented = {}
    for name, unit in UNITS.items():
        (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.M)
        prevented[name] = set(map(int, codes.split()))
        for line in ("Restart=always", "RestartSec=1", "StartLimitIntervalSec=0"):
            assert f"\n{line}\n" in unit, name
    assert prevented == {
        "baton-keeper.service": {EXIT_USAGE},
        "baton-scheduler.service": {EXIT_USAGE},
        "baton-executor@.service": {EXIT_USAGE, EXIT_REJECTED},
    }


def test_no_start_forgets_the_api_keys():
    """They are named where no missing file or variable takes them away."""
    scheduler = UNITS["baton-scheduler.service"]
    assert "--api-keys /var/lib/baton/keys/scheduler/api-keys.json" in scheduler
    assert "BATON_KEYS_DIR=/var/lib/baton/keys" in scheduler
    assert not any("EnvironmentFile=-" in unit for unit in UNITS.values())


NOT_USED = {  # settings that look as if they could be set, and stop something that these units need
    "MemoryDenyWriteExecute": UNITS,
    "PrivateUsers": ("baton-keeper.service", "baton-executor@.service"),
    "PrivatePIDs": ("baton-keeper.service", "baton-executor@.service"),
    "ProcSubset": UNITS,
    "RemoveIPC": UNITS,
    "RestartSteps": UNITS,
}


@pytest.mark.parametrize("setting", NOT_USED)
def test_what_is_left_out_on_purpose_is_explained(setting):
    assert f"`{setting}`" in SECTION
    for unit in NOT_USED[setting]:
        assert f"\n{setting}=" not in UNITS[unit]


def test_all_files_are_named_in_the_guide():
    for path in FOLDER.iterdir():
        assert path.name in SECTION or path.suffix == ".service"
