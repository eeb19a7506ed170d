"""Runs many of our command lines in little time: a process that has imported the commands forks for each of them.

`python -m tests.support.forked_commands` reads a line of JSON for each call and answers with one.
"""

import contextlib
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tests import ROOT
from tests.support.plain_rights import with_plain_rights

TIMEOUT_S = 60.0
# Of the client, what commands import only if they need it.
IMPORTED_LATE = ("batch.remote_start", "batch.run", "bench.report", "bench.target", "chat.view", "embed.write",
                 "http.api", "keeper.ask", "keys.key_ring", "responses.follow", "rollout.plan",
                 "rollout.view")  # fmt: skip


@dataclass(frozen=True)
class Done:
    """How a command ended: minus a signal's number if that killed it, and what it said."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Call:
    """A command line with what is around it.

    Attributes:
        environment: variables beside this process's own; None takes one away.
        stdout: a file that stdout is written to instead.
        uid: of the user who runs it; None for this one. No account needs to have it.
    """

    words: tuple[str, ...]
    environment: dict[str, str | None] = field(default_factory=dict)
    stdout: str = ""
    folder: str = "/"
    uid: int | None = None


class ForkedCommands:
    """Starts the process and ends it.

    Args:
        disk: a folder that is a full disk for these commands, if this user may mount one; has to be this user's. The
            modes of files count for them then. None takes files as this user finds them.
        computes: executors get as far as to compute, so that torch is imported before the first call.
    """

    def __init__(self, disk: Path | None = None, *, computes: bool = False) -> None:
        command = [sys.executable, "-m", "tests.support.forked_commands", *["--computes"] * computes]
        self.has_full_disk = False
        if disk is not None:
            command = self._with_modes(disk, with_plain_rights(*command))
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _with_modes(self, disk: Path, command: list[str]) -> list[str]:
        mount = 'mount -t tmpfs -o size=16k,mode=700 none "$0" && ! head -c 16k /dev/zero >"$0/taken" 2>&-; exec "$@"'
        tried = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True)
        self.has_full_disk = tried.returncode == 0
        return ["unshare", "--mount", "sh", "-c", mount, str(disk), *command] if self.has_full_disk else command

    def run(self, call: Call) -> Done:
        """Run one to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(vars(call)).encode() + b"\n")
        self._process.stdin.flush()
        return Done(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _serve(*, computes: bool) -> None:
    from executor_svc.__main__ import main as baton_executor
    from keeper_svc.__main__ import main as baton_keeper
    from scheduler_svc.__main__ import main as baton_scheduler
    from scheduler_svc.client.cli import COMMANDS
    from scheduler_svc.client.cli import main as baton

    if computes:
        import executor_svc.startup  # noqa: F401
    for name in (*(f"commands.{each}" for each in COMMANDS), *IMPORTED_LATE):
        __import__(f"scheduler_svc.client.{name}")
    __import__("anyio")  # httpx's
    gc.freeze()  # to look through all that in each child would copy it
    commands = {"baton": baton, "baton-scheduler": baton_scheduler}
    commands |= {"baton-executor": baton_executor, "baton-keeper": baton_keeper}
    for line in sys.stdin:
        call = json.loads(line)
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            if (pid := os.fork()) == 0:
                os.setpgid(0, 0)
                _become(call, stdout, stderr)
                _run(commands[call["words"][0]], call["words"])
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            exit_code = _wait(pid)
            said = [file.seek(0) or file.read().decode(errors="surrogateescape") for file in (stdout, stderr)]
        answer = {"exit_code": exit_code, "stdout": said[0], "stderr": said[1]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _become(call: dict[str, Any], stdout: Any, stderr: Any) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(call["stdout"], os.O_WRONLY) if call["stdout"] else stdout.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    os.chdir(call["folder"])
    for name, value in call["environment"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    if call["uid"] is not None:
        os.setgroups([])
        os.setgid(call["uid"])
        os.setuid(call["uid"])
        os.umask(0)
    tempfile.tempdir = None
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", errors="backslashreplace") for fd in (1, 2))


def _run(command: Any, words: list[str]) -> NoReturn:
    """As the interpreter runs an entry point."""
    exit_code = 1
    try:
        command.main(args=words[1:], prog_name=words[0])
        exit_code = 0
    except SystemExit as ended:
        exit_code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        try:
            sys.stdout.flush()
        except OSError:
            traceback.print_exc()
        os._exit(exit_code)


def _wait(pid: int) -> int:
    """End it, and what it has started, when it takes too long."""
    descriptor = os.pidfd_open(pid)
    try:
        has_ended = bool(select.select([descriptor], [], [], TIMEOUT_S)[0])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        return os.waitstatus_to_exitcode(status) if has_ended else -signal.SIGALRM
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    _serve(computes="--computes" in sys.argv)
