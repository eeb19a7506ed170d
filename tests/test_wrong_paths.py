"""Whatever a path that a user names leads to, each command says in one line what is wrong with it: no traceback, no
wait, and what may not be looked at is never called missing."""

import json
import os
import re
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from scheduler_svc.store.backup import back_up
from scheduler_svc.store.database import connect
from tests.client.fake_server import FakeServer
from tests.client.fleet_model import FleetModel
from tests.support.forked_commands import Call, ForkedCommands
from tests.support.plain_rights import needs_plain_rights
from tests.support.service_calls import EXECUTOR, SCHEDULER, UP, filled

pytestmark = [needs_plain_rights, pytest.mark.timeout(300)]

KINDS = ("in a closed folder", "unreadable", "new where nothing may be made", "below a folder that is missing",
         "below a file", "of another kind", "garbage", "a device", "on a full disk", "too long a name", "a loop",
         "a pipe nobody writes")  # fmt: skip
DENIED = KINDS[:2]
# Exit codes: a wrong option or file, a service that is not there, or what passes.
FAILURES = {1, 2, 3, 75}
# Commands with PATH in place of what is wrong; before them, whether a FILE or a FOLDER is wanted, and is READ or MADE.
CASES = {
    "scheduler --model": ("FOLDER READ", *SCHEDULER, "--no-journal", "--model", "PATH"),
    "scheduler --pooling-model": ("FOLDER READ", *SCHEDULER, "--no-journal", "--pooling-model", "embed=PATH"),
    "scheduler --chat-template": ("FILE READ", *SCHEDULER, "--no-journal", "--chat-template", "PATH"),
    "scheduler --api-keys": ("FILE READ", *SCHEDULER, "--no-journal", "--api-keys", "PATH"),
    "scheduler --curve-keys": ("FOLDER READ", *SCHEDULER, "--no-journal", "--curve-keys", "PATH"),
    "scheduler --journal": ("FILE MADE", *SCHEDULER, "--journal", "PATH"),
    "scheduler --store": ("FOLDER MADE", *SCHEDULER[:-1], "--no-journal", "--store", "PATH"),
    "executor --model": ("FOLDER READ", *EXECUTOR, "--model", "PATH"),
    "executor --scheduler": ("FILE READ", *EXECUTOR, "--scheduler", "file:PATH"),
    "executor --curve-keys": ("FOLDER READ", *EXECUTOR, "--curve-keys", "PATH"),
    "executor --health-file": ("FILE MADE", *EXECUTOR, "--health-file", "PATH"),
    "executor --keeper": ("FILE READ", "baton-executor", "--standby", "--keeper", "PATH"),
    "keeper --socket": ("FILE MADE", "baton-keeper", "--socket", "PATH"),
    "keeper status": ("FILE READ", "baton", "keeper", "status", "--socket", "PATH"),
    "keeper drop": ("FILE READ", "baton", "keeper", "drop", "--socket", "PATH"),
    "keys init": ("FOLDER MADE", "baton", "keys", "init", "--dir", "PATH"),
    "keys api": ("FOLDER MADE", "baton", "keys", "api", "alice", "--dir", "PATH"),
    "keys executor": ("FOLDER READ", "baton", "keys", "executor", "gpu-1", "--dir", "PATH"),
    "keys list": ("FOLDER READ", "baton", "keys", "list", "--dir", "PATH"),
    "keys revoke": ("FOLDER READ", "baton", "keys", "revoke", "alice", "--dir", "PATH"),
    "generate --json-schema": ("FILE READ", "baton", "generate", "x", "--json-schema", "PATH"),
    "generate --tools": ("FILE READ", "baton", "generate", "x", "--tools", "PATH"),
    "chat --tools": ("FILE READ", "baton", "chat", "--tools", "PATH"),
    "responses --tools": ("FILE READ", "baton", "responses", "create", "x", "--tools", "PATH"),
    "responses --json-schema": ("FILE READ", "baton", "responses", "create", "x", "--json-schema", "PATH"),
    "embed --file": ("FILE READ", "baton", "embed", "--file", "PATH"),
    "embed --output": ("FILE MADE", "baton", "embed", "x", "--output", "PATH"),
    "batch in": ("FILE READ", "baton", "batch", "--direct", "PATH", "OUT"),
    "batch out": ("FILE MADE", "baton", "batch", "--direct", "IN", "PATH"),
    "bench --trace": ("FILE READ", "baton", "bench", "--trace-format", "mooncake", "--trace", "PATH"),
    "bench --prompt-file": ("FILE READ", "baton", "bench", "--prompt-file", "PATH"),
    "store backup": ("FILE MADE", "baton", "store", "backup", "PATH", "--store", "STORE"),
    "store backup --store": ("FOLDER READ", "baton", "store", "backup", "OUT", "--store", "PATH"),
    "store restore": ("FILE READ", "baton", "store", "restore", "PATH", "--store", "OUT"),
    "store restore --store": ("FOLDER MADE", "baton", "store", "restore", "BACKUP", "--store", "PATH"),
    "rollout --log-dir": ("FOLDER MADE", "baton", "rollout", "--replace-with", "true", "--log-dir", "PATH"),
    "up --log-dir": ("FOLDER MADE", *UP, "--no-journal", "--log-dir", "PATH"),
    "up --store": ("FOLDER MADE", *(word for word in UP if word != "--no-store"), "--no-journal", "--store", "PATH"),
    "up --keeper": ("FILE MADE", "baton", "up", "--standby", "--no-store", "--no-journal", "--keeper", "PATH"),
    "up --api-key-file": ("FILE READ", *UP, "--no-journal", "--api-key-file", "PATH"),
    "up --api-keys": ("FILE READ", *UP, "--no-journal", "--api-keys", "PATH"),
    "up --journal": ("FILE MADE", *UP, "--journal", "PATH"),
    "up --chat-template": ("FILE READ", *UP, "--no-journal", "--chat-template", "PATH"),
    "up --model": ("FOLDER READ", *UP, "--no-journal", "--model", "PATH"),
}
# They start processes, load torch, or wait for a keeper.
SLOW = ("scheduler --chat-template", "up --journal", "up --model", "up --chat-template", "up --store", "up --keeper",
        "up --api-keys", "up --api-key-file", "executor --model", "executor --keeper", "executor --scheduler",
        "executor --health-file")  # fmt: skip
IS_FINE = {
    ("embed --output", "garbage"),  # it is replaced
    ("embed --file", "a device"),  # an empty file has no text
    ("executor --health-file", "garbage"),  # likewise
    ("executor --health-file", "on a full disk"),  # it goes on, and its log says so
    ("keeper --socket", "on a full disk"),  # a socket takes no room
    ("up --log-dir", "on a full disk"),  # lines are lost; that stops nothing
}
# For a pipe's writer, as cat does.
WAITS = ("generate", "chat", "responses", "embed", "batch in", "bench", "store restore", "up --api-key-file")
LINE = '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 2}}\n'
MISSING = re.compile(r"no such|not exist|there is no (?!other)|not found|: is missing", re.IGNORECASE)


class Place:
    """A folder in which everything is wrong."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="baton-test-")).resolve()
        (self.root / "IN").write_text(LINE)
        connect(self.root / "STORE").close()
        back_up(self.root / "STORE", self.root / "BACKUP")
        self.disk = self.root / "disk"
        for folder in ("disk", "closed/there", "read-only", "garbage", "home", "a-folder"):
            (self.root / folder).mkdir(parents=True, mode=0o700)
        for name in ("config.json", "server.key_secret", "executor.key_secret", "scheduler/api-keys.json"):
            (self.root / "garbage" / name).parent.mkdir(exist_ok=True)
            (self.root / "garbage" / name).write_bytes(bytes(range(256)))
        for name in ("a-file", "closed/file", "garbage-file", "unreadable-file"):
            (self.root / name).write_bytes(bytes(range(256)))
            (self.root / name).chmod(0o600)
        os.mkfifo(self.root / "pipe")
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(self.root / "socket"))
        (self.root / "loop").symlink_to("loop")
        (self.root / "unreadable-folder").mkdir()
        for name, mode in (("unreadable-file", 0), ("unreadable-folder", 0), ("closed", 0), ("read-only", 0o500)):
            (self.root / name).chmod(mode)

    def path(self, kind: str, wanted: str) -> Path:
        """What a command is given."""
        is_file = wanted.startswith("FILE")
        names = {
            "in a closed folder": "closed/file" if is_file else "closed/there",
            "unreadable": "unreadable-file" if is_file else "unreadable-folder",
            "new where nothing may be made": "read-only/new",
            "below a folder that is missing": "nowhere/below/it",
            "below a file": "a-file/below",
            "of another kind": "a-folder" if is_file else "a-file",
            "garbage": "garbage-file" if is_file else "garbage",
            "on a full disk": "disk/new",
            "too long a name": "n" * 300,
            "a loop": "loop",
            "a pipe nobody writes": "pipe",
        }
        device = Path("/dev/null" if wanted.endswith("READ") else "/dev/full")  # what is read there has an end
        return device if kind == "a device" else self.root / names[kind]

    def remove(self) -> None:
        subprocess.run(["chmod", "-R", "u+rwx", self.root], check=False)
        subprocess.run(["rm", "-rf", self.root], check=True)


@pytest.fixture(scope="module")
def place():
    made = Place()
    yield made
    made.remove()


@pytest.fixture(scope="module")
def commands(place):
    running = ForkedCommands(place.disk)
    yield running
    running.close()


@pytest.fixture(scope="module")
def service():
    server = FakeServer()
    server.embeds = True
    server.fleet = FleetModel()
    server.start()
    yield server
    server.stop()


def complaint(done, path, kind):
    """What is wrong with how a command ended; empty if nothing is."""
    said = done.stdout + done.stderr
    if "Traceback" in said:
        return "a traceback"
    if done.exit_code not in FAILURES:
        return f"exit code {done.exit_code}"
    if path.name[:50] not in said and str(path.parent) not in said:
        return "the path is not named"
    [*_, last] = done.stderr.splitlines() or [""]
    return "called missing" if kind in DENIED and MISSING.search(last) else ""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES])
def test_each_kind_of_wrong_path_is_one_line(name, place, commands, service):
    wanted, *words = CASES[name]
    environment = {"BATON_URL": service.url, "BATON_API_KEY": None, "HF_HUB_OFFLINE": "1", "BATON_KEYS_DIR": None}
    environment |= {"HOME": str(place.root / "home"), "XDG_STATE_HOME": None, "BATON_KEEPER_SOCKET": None}
    complaints = {}
    for kind in KINDS:
        if kind == "a pipe nobody writes" and name.startswith(WAITS):
            continue
        if (name, kind) in IS_FINE:
            continue
        if wanted.endswith("MADE") and (
            kind == "below a folder that is missing" or ("FOLDER" in wanted and kind == "garbage")
        ):
            continue  # it is made; there is nothing wrong with it
        if kind == "on a full disk" and (wanted.endswith("READ") or not commands.has_full_disk):
            continue
        path = place.path(kind, wanted)
        given = {each: str(place.root / each) for each in ("OUT", "IN", "STORE", "BACKUP")}
        done = commands.run(Call(filled(words, str(path), given), environment, folder=str(place.root / "home")))
        if fault := complaint(done, path, kind):
            complaints[kind] = f"{fault}: {done.exit_code} {done.stderr[-700:]}"
    assert not complaints, json.dumps(complaints, indent=1)
