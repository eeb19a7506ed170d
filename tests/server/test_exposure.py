"""What may be bound beyond loopback, and what `baton-scheduler` says about the rest."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from scheduler_svc.__main__ import main
from scheduler_svc.api_key_file import ApiKey, encode_key_file
from scheduler_svc.client.cli import main as baton
from scheduler_svc.server.exposure import is_beyond_loopback, is_beyond_loopback_host
from tests import ROOT
from tests.support.keyed import key_ring

LOCAL = [
    "tcp://127.0.0.1:5555",
    "tcp://127.1.2.3:0",
    "tcp://[::1]:5555",
    "tcp://::1:5555",
    "ipc:///run/baton/core",
    "ipc://@abstract",
    "inproc://x",
]
BEYOND = [
    "tcp://*:5555",
    "tcp://0.0.0.0:5555",
    "tcp://[::]:5555",
    "tcp://[::]:*",
    "tcp://10.0.0.7:5555",
    "tcp://[fe80::1]:5555",
    "tcp://[fe80::1%eth0]:5555",
    "tcp://eth0:5555",
    "tcp://lo:5555",
    "tcp://localhost:5555",
    "tcp://scheduler.example:5555",
    "tcp://127.0.0.1.example:5555",
    "tcp://127.0.0.1",
    "tcp://127.1:5555",
    "ws://127.0.0.1:80",
    "udp://127.0.0.1:80",
    "nonsense",
    "",
]

ASKS_NOBODY = "HTTP can be reached from other machines and asks nobody for a key"


@pytest.mark.parametrize("endpoint", LOCAL)
def test_local_endpoints(endpoint):
    assert not is_beyond_loopback(endpoint)


@pytest.mark.parametrize("endpoint", BEYOND)
def test_what_others_could_reach(endpoint):
    assert is_beyond_loopback(endpoint)


def test_hosts():
    assert [is_beyond_loopback_host(host) for host in ("127.0.0.1", "::1", "[::1]")] == [False] * 3
    assert [is_beyond_loopback_host(host) for host in ("0.0.0.0", "::", "", "box", "10.0.0.1")] == [True] * 5


@pytest.mark.parametrize("endpoint", ["tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://eth0:5555"])
def test_executors_socket_needs_keys_beyond_loopback(endpoint):
    result = CliRunner().invoke(main, ["--executor-endpoint", endpoint])
    assert result.exit_code == 2
    for part in (f"--executor-endpoint {endpoint}", "baton keys init", "--curve-keys", "--insecure"):
        assert part in result.stderr


def test_frontends_socket_has_no_keys(tmp_path):
    folder = key_ring(tmp_path / "keys").scheduler
    result = CliRunner().invoke(main, ["--frontend-endpoint", "tcp://0.0.0.0:5556", "--curve-keys", str(folder)])
    assert result.exit_code == 2
    for part in ("--frontend-endpoint tcp://0.0.0.0:5556", "ipc://", "--insecure"):
        assert part in result.stderr


@pytest.mark.parametrize("insecure", [[], ["--insecure"]])
@pytest.mark.parametrize("option", ["--kv-events", "--kv-events-replay"])
def test_routers_have_no_keys(tmp_path, option, insecure):
    """Keys for executors do not make it safe, and what is said of the executors' network says nothing of it."""
    folder = key_ring(tmp_path / "keys").scheduler
    options = {"--kv-events": "tcp://127.0.0.1:5557", option: "tcp://*:5558"}
    arguments = [word for each in options.items() for word in each]
    result = CliRunner().invoke(main, [*arguments, "--curve-keys", str(folder), *insecure])
    assert result.exit_code == 2
    for part in (f"{option} tcp://*:5558", "token ids", "--kv-events-insecure"):
        assert part in result.stderr


def test_trust_in_routers_opens_no_door_for_executors():
    """A pod that has lost its --curve-keys does not start."""
    arguments = ["--kv-events", "tcp://*:5557", "--kv-events-insecure", "--executor-endpoint", "tcp://*:5555"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "--executor-endpoint tcp://*:5555 could be reached" in result.stderr


@pytest.mark.parametrize("group", ["", "all of us", "a/b", "a" * 65, "a\n"])
def test_a_cache_group_that_no_key_could_have_is_refused(group):
    result = CliRunner().invoke(main, ["--kv-events", "tcp://127.0.0.1:0", "--kv-events-cache-group", group])
    assert result.exit_code == 2
    assert f"{group!r} is no name of a cache group" in result.stderr


def test_a_topic_that_is_no_text_is_refused():
    topic = os.fsdecode(b"kv@\xff")
    result = CliRunner().invoke(main, ["--kv-events", "tcp://127.0.0.1:0", "--kv-events-topic", topic])
    assert result.exit_code == 2
    assert "is no UTF-8" in result.stderr


@pytest.mark.parametrize(
    "option",
    [
        ["--kv-events-replay", "tcp://127.0.0.1:1"],
        ["--kv-events-topic", "kv@a@b"],
        ["--kv-events-cache-group", "a"],
        ["--kv-events-insecure"],
    ],
)
def test_options_of_kv_events_need_the_first_of_them(option):
    result = CliRunner().invoke(main, option)
    assert result.exit_code == 2
    assert "need --kv-events" in result.stderr


@pytest.mark.parametrize(
    ("option", "name", "content", "complaint"),
    [
        ("--curve-keys", "nothing", None, r"nothing/server\.key_secret cannot be read: No such file"),
        ("--api-keys", "keys.json", b"{}", "is no file of `baton keys api`"),
    ],
)
def test_keys_that_cannot_be_used_are_told_before_anything_starts(tmp_path, option, name, content, complaint):
    """And before that, a port of routers that may be reached from other machines if they are trusted is no fault."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, "-m", "scheduler_svc", option, str(tmp_path / name), "--no-journal", "--port", "0"]
    command += ["--kv-events", "tcp://*:5557", "--kv-events-insecure"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert re.search(complaint, done.stderr)
    assert "Traceback" not in done.stderr


UNUSED = {  # where API keys lie, below the working folder, and what says so
    "baton keys' own folder": ("baton-keys/scheduler", [], {}),
    "its variable": ("elsewhere/scheduler", [], {"BATON_KEYS_DIR": "elsewhere"}),
    "a Secret of Kubernetes": ("etc", [], {"BATON_KEYS_DIR": "etc"}),
    "with executors' keys": ("etc", ["--curve-keys", "etc"], {}),
    "in a state folder": ("state/keys/scheduler", ["--journal", "state/journal.sqlite3"], {}),
}
STARTS = {"baton-scheduler": (main, []), "baton up": (baton, ["up"]), "baton ray up": (baton, ["ray", "up"])}


@pytest.mark.parametrize("place", UNUSED)
@pytest.mark.parametrize("start", STARTS)
def test_keys_that_would_not_be_used_are_refused(tmp_path, monkeypatch, start, place):
    """Also where the last one was revoked: the service is not to be everyone's because of that."""
    command, words = STARTS[start]
    folder, options, variables = UNUSED[place]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATON_KEYS_DIR")
    Path(folder).mkdir(parents=True)
    (file := Path(folder, "api-keys.json")).write_bytes(encode_key_file([]))
    if "--curve-keys" in options and command is baton:
        return  # has no such option
    refused = CliRunner().invoke(command, [*words, *options], env=variables)
    assert refused.exit_code == 2
    for part in (f"the API keys in {file} are not used", f"--api-keys {file}", "BATON_API_KEYS_FILE", "--no-api-keys"):
        assert part in refused.stderr
    contradictory = CliRunner().invoke(command, [*words, "--no-api-keys"], env={"BATON_API_KEYS_FILE": str(file)})
    assert contradictory.exit_code == 2
    assert f"--no-api-keys and BATON_API_KEYS_FILE (--api-keys {file}) contradict" in contradictory.stderr


def test_a_folder_in_which_keys_may_lie_unseen_is_refused(tmp_path, monkeypatch):
    (tmp_path / "keys").symlink_to("keys")
    monkeypatch.setenv("BATON_KEYS_DIR", str(tmp_path / "keys"))
    refused = CliRunner().invoke(main, [])
    assert refused.exit_code == 2
    assert "api-keys.json may have API keys, and cannot be looked at (Too many levels" in refused.stderr


@pytest.mark.parametrize("consent", [{"BATON_API_KEYS": "secret"}, "--no-api-keys", "--frontends=0"])
def test_what_serves_nobody_without_a_key_or_says_so_goes_on(tmp_path, consent):
    (tmp_path / "api-keys.json").write_bytes(encode_key_file([]))
    command = [sys.executable, "-m", "scheduler_svc", "--model", str(tmp_path / "nothing"), "--no-journal"]
    said, variables = ([consent], {}) if isinstance(consent, str) else ([], consent)
    env = {**os.environ, "BATON_KEYS_DIR": str(tmp_path), **variables}
    done = subprocess.run([*command, *said], cwd=ROOT, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert str(tmp_path / "nothing") in done.stderr, "it looked at the model"
    assert "--no-api-keys" not in done.stderr


def test_http_without_keys_is_warned_of_and_both_processes_log_json():
    command = [sys.executable, "-m", "scheduler_svc", "--host", "0.0.0.0", "--port", "0", "--no-journal"]
    command += ["--executor-endpoint", "tcp://127.0.0.1:0", "--log-format", "json"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    events = []
    try:
        while "frontend connected" not in events:
            event = json.loads(process.stderr.readline())
            events.append(event["event"])
            assert event["service"] in ("scheduler", "frontend")
    finally:
        process.terminate()
        rest = process.communicate(timeout=20)[1]
    assert all(json.loads(line) for line in rest.splitlines())
    assert ASKS_NOBODY in events


@pytest.mark.parametrize(("group", "warned"), [("shared", False), ("share", True)])
def test_a_cache_group_that_no_key_has_is_warned_of_and_http_with_keys_is_not(tmp_path, group, warned):
    key = ApiKey(name="gateway", sha256="0" * 64, created="2026-11-25T00:00:00Z", cache_group="shared")
    (tmp_path / "keys.json").write_bytes(encode_key_file([key]))
    (tmp_path / "keys.json").chmod(0o600)
    command = [sys.executable, "-m", "scheduler_svc", "--host", "0.0.0.0", "--port", "0", "--no-journal"]
    command += ["--executor-endpoint", "tcp://127.0.0.1:0", "--kv-events", "tcp://127.0.0.1:0"]
    command += ["--kv-events-cache-group", group, "--api-keys", str(tmp_path / "keys.json"), "--log-format", "json"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    events = []
    try:
        while "listening" not in events:
            events.append(json.loads(process.stderr.readline())["event"])
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert ("no API key has the cache group that routers are told of" in events) is warned
    assert ASKS_NOBODY not in events
