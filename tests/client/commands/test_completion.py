"""`baton completion`: the scripts, run by the shells that are there."""

import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from scheduler_svc.client.cli import COMMANDS, main

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


def script(shell):
    result = CliRunner().invoke(main, ["completion", shell])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


@pytest.fixture
def bash(tmp_path):
    """Run lines in a bash that has read the script and finds this tree's `baton`."""
    program = tmp_path / "baton"
    program.write_text(f"#!{sys.executable}\nfrom scheduler_svc.client.cli import main\nmain(prog_name='baton')\n")
    program.chmod(0o755)
    (tmp_path / "completion").write_text(script("bash"))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.getcwd()}

    def run(lines):
        command = ["bash", "--norc", "-c", f"source {tmp_path}/completion\n{lines}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@needs_bash
def test_bash_knows_the_function(bash):
    assert bash("complete -p baton").strip() == "complete -o nosort -F _baton_completion baton"


@needs_bash
@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("ch", ["chat"]),
        ("", list(COMMANDS)),
        ("chat --reas", ["--reasoning-effort"]),
        ("chat --reasoning-effort m", ["minimal", "medium"]),
        ("completion z", ["zsh"]),
    ],
)
def test_bash_completes(bash, typed, found):
    words = ["baton", *typed.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    ask = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _baton_completion baton"
    assert bash(f"{ask}; printf '%s\\n' \"${{COMPREPLY[@]}}\"").split() == found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_their_own_script(shell):
    assert f"_BATON_COMPLETE={shell}_complete " in script(shell)
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=script(shell), text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_another_shell_is_wrong_usage():
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2
