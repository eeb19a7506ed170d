"""A process that a later start could mend ends with 75; 2 is what only another configuration mends.

Each error is one that the code of a service raises where it happens.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import huggingface_hub.errors as hub
import pytest
from safetensors import SafetensorError

from common.errors import BatonError, KeeperError, TryAgainError
from common.exit_codes import EXIT_TRY_AGAIN, EXIT_USAGE, exit_code_of
from common.model_files import DEMO_MODEL_DIR, resolve_model
from common.vocabulary import read_vocabulary
from executor_svc.model import checkpoint
from keeper_svc.listening import Listening
from scheduler_svc.api_key_file import read_key_file
from scheduler_svc.core.requests.journal_records import FORMAT_VERSION
from scheduler_svc.server import addresses, store_folder
from scheduler_svc.server.journal import Journal
from scheduler_svc.server.journal_database import APPLICATION_ID
from scheduler_svc.server.listener import Listener
from scheduler_svc.server.store_folder import StoreFolder
from scheduler_svc.store.database import connect
from tests.support.forked_commands import Call, ForkedCommands

PASSING: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {}
SETTLED: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {}


def kind(kinds):
    """Add a function that raises to those of a kind."""
    return lambda function: kinds.setdefault(function.__name__, function)


@kind(PASSING)
def port_in_use(folder, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        addresses.listen("127.0.0.1", other.getsockname()[1], timeout_s=0.0)


@kind(PASSING)
def endpoint_in_use(folder, monkeypatch):
    with contextlib.closing(Listener("tcp://127.0.0.1:0")) as other:
        Listener(other.endpoint)


@kind(PASSING)
def address_that_this_machine_does_not_have_yet(folder, monkeypatch):
    Listener("tcp://192.0.2.1:0")


@kind(PASSING)
def journal_in_use(folder, monkeypatch):
    journal = Journal(folder / "journal")
    try:
        Journal(folder / "journal")
    finally:
        journal.close()


@kind(PASSING)
def journal_that_another_program_reads_at_the_moment(folder, monkeypatch):
    Journal(folder / "journal").close()
    with contextlib.closing(sqlite3.connect(folder / "journal", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        Journal(folder / "journal")


@kind(PASSING)
def journal_without_room(folder, monkeypatch):
    fail(monkeypatch, os, "open", errno.ENOSPC)
    Journal(folder / "journal")


@kind(PASSING)
def store_in_use(folder, monkeypatch):
    monkeypatch.setattr(store_folder, "LOCK_TIMEOUT_S", 0.0)
    with contextlib.closing(StoreFolder(folder, durable=False)):
        StoreFolder(folder, durable=False)


@kind(PASSING)
def store_that_another_process_opens(folder, monkeypatch):
    fail(monkeypatch, fcntl, "flock", errno.EAGAIN)
    connect(folder, open_timeout_s=0.0)


@kind(PASSING)
def socket_of_another_keeper(folder, monkeypatch):
    with Listening(folder / "keeper.sock") as other:
        assert other
        Listening(folder / "keeper.sock")


@kind(PASSING)
def socket_of_another_keeper_whose_lock_was_tidied_up(folder, monkeypatch):
    with Listening(folder / "keeper.sock") as other:
        assert other
        (folder / "keeper.sock.lock").unlink()
        Listening(folder / "keeper.sock")


@kind(PASSING)
def model_on_a_disk_that_fails(folder, monkeypatch):
    fail(monkeypatch, os, "open", errno.EIO)
    read_vocabulary(folder)


@kind(PASSING)
def weights_that_a_library_in_rust_cannot_read(folder, monkeypatch):
    def safe_open(*_, **__):
        raise SafetensorError("Stale file handle (os error 116)")

    monkeypatch.setattr(checkpoint, "safe_open", safe_open)
    checkpoint.Checkpoint(DEMO_MODEL_DIR)


@kind(PASSING)
def too_many_files(folder, monkeypatch):
    fail(monkeypatch, os, "open", errno.EMFILE)
    read_key_file(folder / "keys")


@kind(PASSING)
def hub_that_does_not_answer(folder, monkeypatch):
    ask_hub(monkeypatch, hub.LocalEntryNotFoundError("no network"))


@kind(PASSING)
def what_says_so(folder, monkeypatch):
    raise TryAgainError("the GPU's memory is taken")


@kind(SETTLED)
def port_that_root_alone_may_have(folder, monkeypatch):
    fail(monkeypatch, socket, "create_server", errno.EACCES)
    addresses.listen("127.0.0.1", 80)


@kind(SETTLED)
def endpoint_that_is_none(folder, monkeypatch):
    Listener("http://127.0.0.1:5555")


@kind(SETTLED)
def host_that_is_not_there(folder, monkeypatch):
    fail(monkeypatch, socket, "getaddrinfo", socket.EAI_NONAME, socket.gaierror)
    Listener("tcp://no-such-host:0")


@kind(SETTLED)
def journal_of_a_newer_release(folder, monkeypatch):
    with contextlib.closing(sqlite3.connect(folder / "journal")) as made:
        Journal(folder / "another").close()
        newer = FORMAT_VERSION + 1
        made.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        made.execute(f"PRAGMA user_version = {newer << 16 | newer}")
    Journal(folder / "journal")


@kind(SETTLED)
def journal_without_a_folder(folder, monkeypatch):
    Journal(folder / "nowhere" / "journal")


@kind(SETTLED)
def journal_that_is_something_else(folder, monkeypatch):
    (folder / "journal").write_bytes(b"x" * 5000)
    Journal(folder / "journal")


@kind(SETTLED)
def store_in_a_file(folder, monkeypatch):
    (folder / "file").touch()
    StoreFolder(folder / "file", durable=False)


@kind(SETTLED)
def keeper_without_a_folder(folder, monkeypatch):
    Listening(folder / "not" / "there" / "keeper.sock")


@kind(SETTLED)
def model_that_is_nowhere(folder, monkeypatch):
    resolve_model("/nowhere", weights=False)


@kind(SETTLED)
def model_that_is_none(folder, monkeypatch):
    (folder / "config.json").write_text(json.dumps({"vocab_size": "many"}))
    read_vocabulary(folder)


@kind(SETTLED)
def model_that_the_hub_does_not_have(folder, monkeypatch):
    answer = type("Answer", (), {"status_code": 404, "headers": {}, "request": None})()
    ask_hub(monkeypatch, hub.RepositoryNotFoundError("404", response=answer))


@kind(SETTLED)
def hub_that_must_not_be_asked(folder, monkeypatch):
    error = hub.LocalEntryNotFoundError("outgoing traffic has been disabled")
    error.__cause__ = hub.OfflineModeIsEnabled("HF_HUB_OFFLINE")
    ask_hub(monkeypatch, error)


@kind(SETTLED)
def file_of_keys_that_others_may_not_read(folder, monkeypatch):
    fail(monkeypatch, os, "open", errno.EACCES)
    read_key_file(folder / "keys")


def fail(monkeypatch, where, name, number, kind=OSError):
    def failing(*_, **__):
        raise kind(number, os.strerror(number) if number > 0 else "no such name")

    monkeypatch.setattr(where, name, failing)


def ask_hub(monkeypatch, error):
    def failing(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", failing)
    resolve_model("owner/name", weights=False)


@pytest.mark.parametrize(
    ("happens", "code"),
    [(each, EXIT_TRY_AGAIN) for each in PASSING.values()] + [(each, EXIT_USAGE) for each in SETTLED.values()],
    ids=[*PASSING, *SETTLED],
)
def test_each_kind_of_error_has_its_code(tmp_path, monkeypatch, happens, code):
    tmp_path.chmod(0o700)
    with pytest.raises((BatonError, OSError)) as caught:
        happens(tmp_path, monkeypatch)
    monkeypatch.undo()
    assert exit_code_of(caught.value) == code, caught.value


def test_what_passes_for_one_process_need_not_for_another():
    """A keeper that is missing comes; its own folder does not."""
    error = BatonError("no memory that is kept")
    error.__cause__ = KeeperError("no keeper")
    assert (exit_code_of(error), exit_code_of(error, KeeperError)) == (EXIT_USAGE, EXIT_TRY_AGAIN)


@pytest.fixture(scope="module")
def commands():
    running = ForkedCommands()
    yield running
    running.close()


@pytest.mark.parametrize(("held", "code", "said"), [(True, 75, "in use by another scheduler"), (False, 2, "no folder")])
def test_the_scheduler_ends_with_it_and_one_line(tmp_path, commands, held, code, said):
    path = tmp_path / ("" if held else "nowhere") / "journal"
    journal = Journal(path) if held else None
    words = ("baton-scheduler", "--port", "0", "--executor-endpoint", "tcp://127.0.0.1:0", "--log-level", "error")
    done = commands.run(Call((*words, "--journal", str(path))))
    if journal is not None:
        journal.close()
    assert done.exit_code == code
    assert re.fullmatch(f"baton-scheduler: journal .*{said}.*\n", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"ALL_PROXY": "socks://127.0.0.1:9"},
            r"Unknown scheme .*'socks://127\.0\.0\.1:9'.*; see HF_ENDPOINT .*ALL_PROXY.*",
        ),
        ({"ALL_PROXY": "socks5://127.0.0.1:9"}, r".*'socksio' package .*; see .* ALL_PROXY, .*"),
        ({"HTTPS_PROXY": "http://127.0.0.1:abc"}, r".* \(InvalidURL\); see .* HTTPS_PROXY .*"),
        ({"HF_ENDPOINT": "junk"}, r".* \(UnsupportedProtocol\); see HF_ENDPOINT .*"),
        ({"HF_ENDPOINT": "http://["}, r".* \(\w+\); see HF_ENDPOINT .*"),
        ({"HF_HUB_DOWNLOAD_TIMEOUT": "x"}, r".*'x' \(ValueError\); see HF_ENDPOINT .*"),
        ({}, r"Repo id .*'\."),
    ],
)
def test_what_keeps_the_hub_from_being_asked_is_said_in_one_line(commands, variables, said):
    """Not only what its library raises on purpose."""
    model = "owner/name" if variables else "no owner/a name"
    words = ("baton-scheduler", "--model", model, "--port", "0", "--no-journal")
    environment = {name: None for name in os.environ if name.upper().endswith("_PROXY")}
    done = commands.run(Call(words, {**environment, "HF_HUB_OFFLINE": "0", **variables}))
    assert done.exit_code == EXIT_USAGE
    assert re.fullmatch(
        f"baton-scheduler: {model} is no folder here and cannot be fetched from the hub: {said}\n", done.stderr
    )


LONG = f"ipc:///tmp/{'x' * 120}/socket"


@pytest.mark.parametrize(
    "command",
    [
        ["baton-scheduler", "--port", "0", "--no-journal", "--executor-endpoint", LONG],
        ["baton-scheduler", "--port", "0", "--no-journal", "--frontend-endpoint", LONG],
        ["baton-executor", "--no-keep", "--scheduler", LONG],
    ],
    ids=["executors", "frontends", "executor"],
)
def test_an_endpoint_that_is_too_long_for_a_socket_is_said_in_one_line(commands, command):
    done = commands.run(Call(tuple(command)))
    assert done.exit_code == EXIT_USAGE
    assert "the endpoint's path has 132 bytes, the limit of a socket's is 107" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
