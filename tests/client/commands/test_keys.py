"""`baton keys`: what it makes, what it refuses, and that both services take it."""

import grp
import json
import multiprocessing
import os
import pwd
import re
import stat
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf

import pytest
from click.testing import CliRunner

from common.curve import ClientCurve, ServerCurve, load_public
from scheduler_svc.api_key_file import digest
from scheduler_svc.client.cli import main
from scheduler_svc.client.keys.key_ring import KeyRing
from scheduler_svc.frontend.api_keys import ApiClient, ApiKeys
from scheduler_svc.key_uses import KeyUses
from tests import ROOT
from tests.support.other_user import UID, command_as, folder_of_all, needs_root

SERVICE = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from common.curve import ClientCurve, ServerCurve
from pathlib import Path
from scheduler_svc.client.cli import main
from scheduler_svc.client.keys import key_ring
from scheduler_svc.frontend.api_keys import ApiKeys
"""


@pytest.fixture
def root(tmp_path):
    return tmp_path / "keys"


@pytest.fixture
def keys(root):
    def run(*arguments):
        return CliRunner().invoke(main, ["keys", *arguments], env={"BATON_KEYS_DIR": str(root)})

    return run


def refusal(result):
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_folders_for_both_services(keys, root):
    assert keys("init").exit_code == 0
    made = keys("executor", "gpu-1")
    assert made.stdout == f"{root}/executors/gpu-1\n"
    server, client = ServerCurve.load(root / "scheduler"), ClientCurve.load(root / "executors" / "gpu-1")
    assert client.server_public == server.keys.public
    assert load_public(root / "scheduler" / "executor-gpu-1.key") == client.keys.public
    assert sorted(path.name for path in (root / "executors" / "gpu-1").iterdir()) == [
        "executor.key_secret",
        "server.key",
    ]
    for path in (root / "scheduler" / "server.key_secret", root / "executors" / "gpu-1" / "executor.key_secret"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (root, root / "scheduler", root / "executors", root / "executors" / "gpu-1"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (root / ".gitignore").read_text() == "*\n"


def test_doing_it_again_changes_nothing(keys, root):
    def content():
        return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    for command in (["init"], ["init", "--executor", "a", "--executor", "b"], ["executor", "gpu-1"]):
        assert keys(*command).exit_code == 0
        before = content()
        again = keys(*command)
        assert again.exit_code == 0
        assert "before" in again.stderr
        assert content() == before


def test_both_ends_in_one_command(keys, root):
    assert keys("init", "--executor", "compose").exit_code == 0
    ServerCurve.load(root / "scheduler")
    ClientCurve.load(root / "executors" / "compose")
    assert "is no name" in refusal(keys("init", "--executor", "../x"))


def test_what_was_broken_off_is_completed(keys, root):
    keys("init")
    keys("executor", "gpu-1")
    secret = (root / "executors" / "gpu-1" / "executor.key_secret").read_bytes()
    (root / "scheduler" / "executor-gpu-1.key").unlink()
    (root / "executors" / "gpu-1" / "server.key").unlink()
    assert keys("executor", "gpu-1").exit_code == 0
    assert (root / "executors" / "gpu-1" / "executor.key_secret").read_bytes() == secret
    ClientCurve.load(root / "executors" / "gpu-1")
    assert (root / "scheduler" / "executor-gpu-1.key").exists()


def test_api_keys(keys, root):
    rights = ("--max-open-requests", "3", "--min-priority", "-5", "--cache-group", "team")
    alice = keys("api", "alice", *rights).stdout.strip()
    root_key = keys("api", "root", "--admin").stdout.strip()
    assert alice.startswith("sk-baton-")
    scraper = keys("api", "scraper", "--metrics").stdout.strip()
    assert len({alice, root_key, scraper}) == 3
    path = root / "scheduler" / "api-keys.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert alice not in path.read_text()
    store = ApiKeys(path=path)
    ids = {name: digest(key)[:32] for name, key in (("alice", alice), ("root", root_key), ("scraper", scraper))}
    assert store.client_of(alice) == ApiClient(
        ids["alice"],
        "alice",
        3,
        is_admin=False,
        may_read_status=False,
        min_priority=-5,
        cache_domain="group team",
        sha256=digest(alice),
    )
    assert store.client_of(root_key) == ApiClient(
        ids["root"],
        "root",
        0,
        is_admin=True,
        may_read_status=True,
        cache_domain=f"key {ids['root']}",
        sha256=digest(root_key),
    )
    assert store.client_of(scraper) == ApiClient(
        ids["scraper"],
        "scraper",
        0,
        is_admin=False,
        may_read_status=True,
        min_priority=0,
        cache_domain=f"key {ids['scraper']}",
        sha256=digest(scraper),
    )
    assert store.client_of("sk-baton-" + "x" * 43) is None


def test_list_and_revoke(keys, root):
    keys("init")
    keys("executor", "gpu-1")
    keys("executor", "gpu-2")
    key = keys("api", "alice", "--max-open-requests", "7").stdout.strip()
    keys("api", "scraper", "--metrics")
    keys("api", "root", "--admin")
    listed = json.loads(keys("list", "--json").stdout)
    assert [(entry["kind"], entry["name"]) for entry in listed] == [
        ("executor", "gpu-1"),
        ("executor", "gpu-2"),
        ("api", "alice"),
        ("api", "scraper"),
        ("api", "root"),
    ]
    assert [(entry["admin"], entry["metrics"]) for entry in listed[2:]] == [
        (False, False),
        (False, True),
        (True, False),
    ]
    public = load_public(root / "executors" / "gpu-1" / "server.key").decode()
    table = keys("list").stdout
    assert key not in table
    assert public not in table, "the scheduler's own key cannot be revoked"
    assert table.splitlines()[3].split()[:2] == ["api", "alice"]
    assert "  7  " in table
    rights = {row.split()[1]: row.split()[-3] for row in table.splitlines()[3:]}
    assert [row.split()[-1] for row in table.splitlines()[3:]] == [entry["id"] for entry in listed[2:]]
    assert rights == {"alice": "-", "scraper": "metrics", "root": "admin"}
    assert keys("revoke", "gpu-1").exit_code == 0
    assert not (root / "scheduler" / "executor-gpu-1.key").exists()
    assert not (root / "executors" / "gpu-1").exists()
    assert keys("revoke", "alice").exit_code == 0
    assert ApiKeys(path=root / "scheduler" / "api-keys.json").client_of(key) is None
    assert [entry["name"] for entry in json.loads(keys("list", "--json").stdout)] == ["gpu-2", "scraper", "root"]
    assert keys("executor", "gpu-1").exit_code == 0, "the name is free again"


def test_a_client_is_given_a_new_key_and_stays_itself(keys, root):
    old = keys("api", "alice", "--max-open-requests", "7", "--metrics").stdout.strip()
    bob = keys("api", "bob").stdout.strip()
    new = keys("api", "alice", "--rotate", "--no-metrics").stdout.strip()
    rows = [line for line in keys("list").stdout.splitlines() if "alice" in line]
    assert [
        f"{digest(key)[:12]}" in row and "alice (old)" in row for key, row in zip((old, new), rows, strict=True)
    ] == [
        True,
        False,
    ]
    store = ApiKeys(path=root / "scheduler" / "api-keys.json")
    before, after = store.client_of(old), store.client_of(new)
    assert after == replace(before, may_read_status=False, sha256=digest(new))
    assert before.id == digest(old)[:32]
    assert before.max_open_requests == 7
    assert "baton keys revoke alice --old" in refusal(keys("api", "alice", "--rotate"))
    assert keys("revoke", "alice", "--old").exit_code == 0
    store = ApiKeys(path=root / "scheduler" / "api-keys.json")
    assert (store.client_of(old), store.client_of(new)) == (None, after)
    again = keys("api", "alice", "--rotate").stdout.strip()
    assert ApiKeys(path=root / "scheduler" / "api-keys.json").client_of(again).id == before.id
    assert keys("revoke", before.id).exit_code == 0, "all keys of the client, which has this id"
    store = ApiKeys(path=root / "scheduler" / "api-keys.json")
    assert [store.client_of(key) is not None for key in (old, new, again, bob)] == [False, False, False, True]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "x" * 65, "ä", ".hidden", "a\n"])
@pytest.mark.parametrize("command", ["executor", "api", "revoke"])
def test_names_that_are_none(keys, root, command, name):
    keys("init")
    before = sorted(root.rglob("*"))
    assert "is no name" in refusal(keys(command, "--", name))
    assert sorted(root.rglob("*")) == before


def test_refusals(keys, root):
    assert "`baton keys init` makes it" in refusal(keys("executor", "gpu-1"))
    assert "`baton keys init` makes it" in refusal(keys("list"))
    assert "`baton keys init` makes it" in refusal(keys("revoke", "gpu-1"))
    keys("init")
    keys("executor", "gpu-1")
    keys("api", "alice")
    assert "gpu-1 is the name of an executor" in refusal(keys("api", "gpu-1"))
    assert "alice is the name of an API key" in refusal(keys("executor", "alice"))
    assert "--rotate makes another" in refusal(keys("api", "alice"))
    assert "bob has no API key" in refusal(keys("api", "bob", "--rotate"))
    assert "alice has one API key" in refusal(keys("revoke", "alice", "--old"))
    assert "there is no key of gpu-1" in refusal(keys("revoke", "gpu-1", "--old"))
    for name in ("env-1", "env-a7937b64", "env-prod", "0" * 32):
        assert f"{name} is how" in refusal(keys("api", name))
    assert "there is no key of bob" in refusal(keys("revoke", "bob"))
    (root / "executors" / "gpu-1" / "executor.key_secret").unlink()
    assert "revoke gpu-1 first" in refusal(keys("executor", "gpu-1"))
    (root / "scheduler" / "server.key_secret").chmod(0o644)
    assert "chmod 600" in refusal(keys("init"))
    (root / "scheduler" / "api-keys.json").write_text("{}")
    assert "is no file of `baton keys api`" in refusal(keys("list"))


def test_several_at_once_lose_nothing(root):
    context = multiprocessing.get_context("spawn")
    all_started = context.Barrier(4)
    workers = [context.Process(target=_add, args=(root, worker, all_started)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(KeyRing(root).entries({})) == 40


def _add(root, worker, all_started):
    all_started.wait(60)
    for number in range(10):
        KeyRing(root).add_api_key(f"{worker}-{number}", max_open_requests=0, admin=False)


def owner_and_mode(path):
    status = path.stat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


def by_service(uid, code, *arguments):
    """What a process of this user, in its own group, says."""
    command = command_as(uid, code, *arguments, before=SERVICE)
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)


@needs_root
def test_root_makes_the_keys_of_the_user_whose_folder_it_is():
    """`sudo baton keys --dir /var/lib/baton/keys`: the service reads all of it, before and after each command."""
    with folder_of_all(0o700) as home:
        os.chown(home, UID, UID)
        root = home / "state" / "keys"

        def run(*arguments):
            done = CliRunner().invoke(main, ["keys", *arguments, "--dir", str(root)])
            assert done.exit_code == 0, done.output
            return done.stdout.strip()

        (home / "state").mkdir()
        os.chown(home / "state", UID, UID)
        run("init", "--executor", "gpu-1")
        keys = [run("api", "alice"), run("api", "bob"), run("api", "bob", "--rotate")]
        run("revoke", "bob", "--old")
        reads = (
            "ServerCurve.load(Path(sys.argv[1], 'scheduler')); ClientCurve.load(Path(sys.argv[1], 'executors/gpu-1'))"
        )
        reads += "; print(*(ApiKeys(path=Path(sys.argv[1], 'scheduler/api-keys.json')).client_of(key) is not None"
        done = by_service(UID, f"{reads} for key in sys.argv[2:]))", root, *keys)
        assert done.stdout.split() == ["True", "False", "True"], done.stderr
        owners = {path: owner_and_mode(path)[:2] for path in (root, *root.rglob("*"))}
        assert {uid for uid, _ in owners.values()} == {UID}, owners
        assert os.geteuid() == 0, "root again"


@needs_root
@pytest.mark.parametrize("owner", [0, UID])
def test_a_file_that_is_written_again_keeps_its_owner_group_and_mode(owner):
    """Such as root's keys, of which the service's group may read those that it needs."""
    with folder_of_all(0o755) as root:

        def run(*arguments):
            done = CliRunner().invoke(main, ["keys", *arguments, "--dir", str(root)])
            assert done.exit_code == 0, done.output

        run("init", "--executor", "gpu-1")
        run("api", "alice")
        api_keys, server_key = root / "scheduler/api-keys.json", root / "executors/gpu-1/server.key"
        server_key.write_bytes((root / "scheduler/executor-gpu-1.key").read_bytes())  # of another scheduler
        for path in (root, *root.rglob("*")):
            os.chown(path, owner, 4711)
        os.chown(server_key, 0, 8)  # in a folder of whomever
        api_keys.chmod(0o640)
        before = [(owner, 4711, 0o640), (0, 8, 0o644)]
        assert [owner_and_mode(file) for file in (api_keys, server_key)] == before
        run("executor", "gpu-1")
        run("api", "bob")
        run("revoke", "alice")
        assert [owner_and_mode(file) for file in (api_keys, server_key)] == before
        assert load_public(server_key).decode() in (root / "scheduler/server.key_secret").read_text()
        assert '"bob"' in api_keys.read_text()


@needs_root
def test_another_user_is_told_whose_the_folder_is():
    with folder_of_all(0o755) as home:
        root = home / "keys"
        assert CliRunner().invoke(main, ["keys", "init", "--dir", str(root)]).exit_code == 0
        for command in (["list"], ["api", "bob"], ["revoke", "bob"], ["init"], ["executor", "gpu-1"]):
            done = by_service(UID, "main(['keys', *sys.argv[1:]])", *command, "--dir", root)
            assert done.returncode == 2, done.stderr
            assert done.stderr.count("\n") == 1
            assert "Permission denied" in done.stderr
            assert f"{root} is for user root: sudo -u root baton keys" in done.stderr
        root.chmod(0o755)
        done = by_service(UID, "main(['keys', 'list', *sys.argv[1:]])", "--dir", home / "keys" / "x" / "y")
        assert "there is no folder" in done.stderr, "which is said of what is missing only"


@needs_root
@pytest.mark.parametrize("part", ["api-keys.json", "."])
@pytest.mark.parametrize("is_service", [False, True])
def test_what_root_has_put_back_is_given_to_the_user_of_the_folder_by_the_command_that_is_told(part, is_service):
    """Such as `cp api-keys.json` as root: neither root, who acts as the folder's user, nor that user may read it."""
    with folder_of_all(0o755) as home:
        os.chown(home, UID, UID)
        root = home / "keys"
        for words in (["init"], ["api", "alice"]):
            assert CliRunner().invoke(main, ["keys", *words, "--dir", str(root)]).exit_code == 0
        place = root / "scheduler" / part
        os.chown(place, 0, 0)
        place.chmod(0o700 if place.is_dir() else 0o600)

        def run():
            words = ["api", "carl", "--dir", str(root)]
            if not is_service:
                done = CliRunner().invoke(main, ["keys", *words])
                return done.exit_code, done.stderr
            done = by_service(UID, "main(['keys', *sys.argv[1:]])", *words)
            return done.returncode, done.stderr

        exit_code, said = run()
        assert exit_code == 2
        owner, group = pwd.getpwuid(UID).pw_name, grp.getgrgid(UID).gr_name
        whose = f"{place} belongs to user root, and {root} to user {owner}; as root: "
        assert f"Permission denied; {whose}chown " in said
        assert "sudo" not in said
        command = said.strip().rpartition("as root: ")[2].split()
        assert command[-2:] == [f"{owner}:{group}", str(place)]
        subprocess.run(command, check=True)
        assert run()[0] == 0


@needs_root
def test_another_user_is_told_whose_the_folder_is_also_where_it_cannot_be_looked_at():
    with folder_of_all(0o700) as home:
        done = by_service(UID, "main(['keys', 'list', '--dir', sys.argv[1]])", home / "keys")
        assert (done.returncode, f"{home / 'keys'} is for user root: sudo -u root" in done.stderr) == (2, True), done


def test_limits_of_a_minute_and_an_end(keys, root):
    limits = ("--requests-per-minute", "60", "--tokens-per-minute", "100000")
    key = keys("api", "alice", *limits, "--expires", "90d").stdout.strip()
    path = root / "scheduler" / "api-keys.json"
    found = ApiKeys(path=path).client_of(key)
    assert (found.requests_per_minute, found.tokens_per_minute) == (60, 100000)
    assert timedelta(days=89) < datetime.fromtimestamp(found.expires_at, UTC) - datetime.now(UTC) < timedelta(days=90)
    keys("api", "bob")
    alice, bob = json.loads(keys("list", "--json").stdout)
    assert (alice["requests_per_minute"], alice["tokens_per_minute"]) == (60, 100000)
    assert datetime.fromisoformat(alice["expires"]).timestamp() == found.expires_at
    assert (bob["requests_per_minute"], bob["tokens_per_minute"], bob["expires"]) == (0, 0, "")
    _, first, second = keys("list").stdout.splitlines()
    assert f"  {alice['expires'][:10]}  no limit       60            100000      1       -  " in first
    assert "  -           no limit       no limit      no limit    1       -  " in second
    assert "--expires says when the new one does" in refusal(keys("api", "alice", "--rotate"))
    again = keys("api", "alice", "--rotate", "--expires", "never", "--requests-per-minute", "0").stdout.strip()
    found = ApiKeys(path=path).client_of(again)
    assert (found.requests_per_minute, found.tokens_per_minute, found.expires_at) == (0, 100000, inf)


def test_a_weight_is_listed_and_stays_when_the_key_is_rotated(keys, root):
    path = root / "scheduler" / "api-keys.json"
    keys("init", "--executor", "gpu-1")
    made = [keys("api", "alice", "--weight", "2.5"), keys("api", "bob"), keys("api", "alice", "--rotate")]
    assert [ApiKeys(path=path).client_of(each.stdout.strip()).weight for each in made] == [2.5, 1.0, 2.5]
    assert keys("revoke", "alice", "--old").exit_code == 0
    keys("api", "alice", "--rotate", "--weight", "0.01")
    listed = json.loads(keys("list", "--json").stdout)
    assert [entry["weight"] for entry in listed] == [1.0, 1.0, 2.5, 0.01]
    head, *rows = keys("list").stdout.splitlines()
    at = head.index("WEIGHT")
    assert [row[at:].split()[0] for row in rows] == ["-", "1", "2.5", "0.01"]
    assert [entry.get("weight") for entry in json.loads(path.read_text())["keys"]] == [None, 2.5, 0.01]


@pytest.mark.parametrize("weight", ["0", "0.009", "100.1", "-1", "nan", "inf", "much"])
def test_a_weight_that_is_none_makes_no_key(keys, root, weight):
    refused = keys("api", "alice", "--weight", weight)
    assert (refused.exit_code, "Invalid value for '--weight'" in refused.stderr) == (2, True)
    assert not (root / "scheduler" / "api-keys.json").exists()


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("2999-03-01", datetime(2999, 3, 1, tzinfo=UTC)),
        ("2999-03-01T12:30", datetime(2999, 3, 1, 12, 30, tzinfo=UTC)),
        ("2999-03-01T12:30:00+02:00", datetime(2999, 3, 1, 10, 30, tzinfo=UTC)),
    ],
)
def test_moments_at_which_keys_expire(keys, root, when, expected):
    key = keys("api", "alice", "--expires", when).stdout.strip()
    assert ApiKeys(path=root / "scheduler" / "api-keys.json").client_of(key).expires_at == expected.timestamp()


@pytest.mark.parametrize("when", ["", "soon", "90", "90y", "1e3d", "2027-13-01", "9999999d", "0d", "2020-01-01"])
def test_what_is_no_moment_to_come_makes_no_key(keys, root, when):
    refused = keys("api", "alice", "--expires", when)
    assert refused.exit_code == 2
    assert "is over" in refused.stderr if when in ("0d", "2020-01-01") else "is no time: write 90d" in refused.stderr
    assert not (root / "scheduler" / "api-keys.json").exists()


def test_a_key_that_has_expired_is_listed_as_that(keys, root):
    keys("api", "alice", "--expires", "12h")
    path = root / "scheduler" / "api-keys.json"
    path.write_text(re.sub(r'"expires": ".*?"', '"expires": "2020-01-01T00:00:00Z"', path.read_text()))
    assert "  expired  " in keys("list").stdout


def test_when_keys_were_last_used(keys, root, tmp_path, monkeypatch):
    used, unused = (keys("api", name).stdout.strip() for name in ("used", "unused"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def seen(*options):
        return {entry["name"]: entry["last_used"] for entry in json.loads(keys("list", "--json", *options).stdout)}

    assert seen() == {"used": "", "unused": ""}
    for folder, used_at in ((tmp_path / "state" / "baton", 1.8e9), (root.parent, 1.8e9 + 60), (tmp_path / "x", 0.0)):
        folder.mkdir(parents=True, exist_ok=True)
        KeyUses(folder).note({digest(used): used_at})
    assert seen() == {"used": "2027-01-15T08:01:00+00:00", "unused": ""}, "the last one that either place knows"
    assert seen("--state", str(tmp_path / "x"))["used"] == "1970-01-01T00:00:00+00:00"
    _, first, second = keys("list").stdout.splitlines()
    assert "  2027-01-15 08:01  -        no limit" in first
    assert "  -                 -        no limit" in second
    assert digest(unused)[:12] in second


@needs_root
def test_who_may_not_read_when_keys_were_used_is_told_so_and_sees_the_rest():
    with folder_of_all(0o755) as home:
        CliRunner().invoke(main, ["keys", "api", "alice", "--dir", str(home / "keys")])
        for path in (home / "keys", *(home / "keys").rglob("*")):
            os.chown(path, UID, UID)
        (home / "state").mkdir(mode=0o700)
        KeyUses(home / "state").note({digest("x"): 1.0})
        options = ("--dir", home / "keys", "--state", home / "state")
        done = by_service(UID, "main(['keys', 'list', *sys.argv[1:]])", *options)
        assert done.returncode == 0, done.stderr
        assert "alice" in done.stdout
        assert f"is not known: {home}/state/key-uses: Permission denied" in done.stderr
