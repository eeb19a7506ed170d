"""Keys made by `baton keys`, put where Kubernetes puts a Secret, and read by the services from there."""

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from common.curve import ClientCurve, ServerCurve, allowed_files, load_public
from scheduler_svc.client.keys.key_ring import KeyRing
from scheduler_svc.frontend import api_keys
from tests.deploy.manifests import ROOT, options, workloads

# kubelet's files are root's, and the pod's group may read them. This process must not own what a group may read.
MODE = 0o440 if os.geteuid() == 0 else 0o400


def mount(folder: Path, at: Path, version: int):
    """What kubelet does with a Secret, and again when it has changed: one link is swapped, behind which all files
    change together (k8s.io/kubernetes/pkg/volume/util/atomic_writer.go)."""
    data = at / f"..{version}"
    data.mkdir(parents=True)
    at.chmod(0o1777)
    for file in folder.iterdir():
        assert re.fullmatch(r"[-._a-zA-Z0-9]+", file.name), "no name for a Secret's key"
        copy = data / file.name
        shutil.copyfile(file, copy)
        copy.chmod(MODE)
    new_link = at / "..data_tmp"
    new_link.symlink_to(data.name)
    new_link.rename(at / "..data")
    for link in (link for link in at.iterdir() if not link.name.startswith("..")):
        if not link.exists():
            link.unlink()
    for file in data.iterdir():
        if not (at / file.name).is_symlink():
            (at / file.name).symlink_to(f"..data/{file.name}")


class Cluster:
    """Secrets by name, as kubectl changes them; each is the names of its files with their content."""

    def __init__(self):
        self.secrets: dict[str, dict[str, bytes]] = {}
        self._last_applied: dict[str, Mapping[str, bytes]] = {}

    def run(self, line: str, root: Path):
        """Carry a documented command out: one that creates a Secret, or pipes it into another kubectl."""
        create, _, after = line.partition("|")
        assert create.split()[:6] == ["kubectl", "-n", "baton", "create", "secret", "generic"]
        name, (option, _, folder) = create.split()[6], create.split()[7].partition("=")
        assert option == "--from-file"
        data = {file.name: file.read_bytes() for file in (root / folder).iterdir()}
        assert ("--dry-run=client" in create) == bool(after)
        match shlex.split(after, comments=True):
            case []:
                assert name not in self.secrets, "AlreadyExists"
                self.secrets[name] = data
            case ["kubectl", "replace", "-f", "-"]:
                assert name in self.secrets, "NotFound"
                self.secrets[name] = data
            case ["kubectl", "apply", "-f", "-"]:
                self._apply(name, data)
            case other:
                raise AssertionError(other)

    def _apply(self, name: str, data: Mapping[str, bytes]):
        """A merge of three: what the last `apply` gave and this one does not is deleted, and nothing else."""
        deleted = self._last_applied.get(name, {}).keys() - data.keys()
        kept = {key: value for key, value in self.secrets.get(name, {}).items() if key not in deleted}
        self.secrets[name] = {**kept, **data}
        self._last_applied[name] = data


def documented(name: str):
    """The guide's commands about a Secret: the one that makes it, and the one that brings it up to date."""
    guide = re.sub(r"\\\n\s*", "", (ROOT / "docs" / "operations.md").read_text())
    make, update = (line.strip() for line in re.findall(rf"^.*create secret generic {name} .*$", guide, re.MULTILINE))
    return make, update


def mount_secret(data: Mapping[str, bytes], at: Path, version: int):
    """A Secret's files in a pod."""
    with tempfile.TemporaryDirectory() as folder:
        for file, content in data.items():
            (Path(folder) / file).write_bytes(content)
        mount(Path(folder), at, version)


@pytest.fixture
def ring(tmp_path):
    ring = KeyRing(tmp_path / "baton-keys")
    ring.init()
    ring.add_executor("kubernetes")
    return ring


def test_both_services_find_their_keys(ring, tmp_path):
    mount(ring.scheduler, tmp_path / "scheduler", version=1)
    mount(ring.executor_folder("kubernetes"), tmp_path / "executor", version=1)
    server, client = ServerCurve.load(tmp_path / "scheduler"), ClientCurve.load(tmp_path / "executor")
    assert client.server_public == server.keys.public
    allowed = allowed_files(tmp_path / "scheduler")
    assert {name: load_public(path) for name, path in allowed.items()} == {"kubernetes": client.keys.public}


def test_a_changed_secret_is_noticed(ring, tmp_path, monkeypatch):
    monkeypatch.setattr(api_keys, "RELOAD_INTERVAL_S", 0.0)
    alice = ring.add_api_key("alice", max_open_requests=0, admin=False)
    mounted = tmp_path / "scheduler"
    mount(ring.scheduler, mounted, version=1)
    name = PurePosixPath(options(workloads("base")["baton-scheduler"])["--api-keys"]).name
    keys = api_keys.ApiKeys(path=mounted / name)
    assert keys.client_of(alice).name == "alice"

    bob = ring.add_api_key("bob", max_open_requests=0, admin=False)
    ring.revoke("alice")
    ring.revoke("kubernetes")
    ring.add_executor("other")
    mount(ring.scheduler, mounted, version=2)
    assert keys.client_of(alice) is None
    assert keys.client_of(bob).name == "bob"
    assert allowed_files(mounted).keys() == {"other"}


def test_a_revoked_key_leaves_the_secret(ring, tmp_path):
    """The documented way from `baton keys revoke` into the scheduler's folder."""
    make, update = documented("baton-scheduler-keys")
    cluster, mounted = Cluster(), tmp_path / "mounted"
    cluster.run(make, tmp_path)
    mount_secret(cluster.secrets["baton-scheduler-keys"], mounted, version=1)
    assert allowed_files(mounted).keys() == {"kubernetes"}
    ring.add_executor("other")
    ring.revoke("kubernetes")
    cluster.run(update, tmp_path)
    mount_secret(cluster.secrets["baton-scheduler-keys"], mounted, version=2)
    assert allowed_files(mounted).keys() == {"other"}


def test_an_executor_gets_its_new_key(ring, tmp_path):
    make, update = documented("baton-executor-keys")
    cluster = Cluster()
    cluster.run(make, tmp_path)
    ring.add_executor("NEW-NAME")
    cluster.run(update, tmp_path)
    mount_secret(cluster.secrets["baton-executor-keys"], tmp_path / "mounted", version=1)
    keys = ClientCurve.load(tmp_path / "mounted").keys
    assert keys.public == load_public(allowed_files(ring.scheduler)["NEW-NAME"])


def test_with_apply_a_revoked_key_would_stay(ring, tmp_path):
    """Why the guide says `replace`: `apply` does not know what `create` made. (So did kubectl 1.32.)"""
    make, update = documented("baton-scheduler-keys")
    cluster = Cluster()
    cluster.run(make, tmp_path)
    ring.revoke("kubernetes")
    for _ in range(2):
        cluster.run(update.replace("kubectl replace", "kubectl apply"), tmp_path)
        assert "executor-kubernetes.key" in cluster.secrets["baton-scheduler-keys"]
