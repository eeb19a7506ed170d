"""Keys made by `baton keys`, put where Kubernetes puts a Secret, and read by the services from there."""

import os
import re
import shutil
from pathlib import Path, PurePosixPath

import pytest

from common.curve import ClientCurve, ServerCurve, allowed_files, load_public
from scheduler_svc.client.key_ring import KeyRing
from scheduler_svc.frontend import api_keys
from tests.deploy.manifests import options, workloads

# kubelet's files are root's, and the pod's group may read them. Whoever runs this must not own what a group may read.
MODE = 0o440 if os.geteuid() == 0 else 0o400


def mount(folder: Path, at: Path, version: int):
    """What kubelet does with a Secret, and again when it has changed: one link is swapped, behind which all files
    change together (k8s.io/kubernetes/pkg/volume/util/atomic_writer.go)."""
    data = at / f"..{version}"
    data.mkdir(parents=True)
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


@pytest.fixture
def ring(tmp_path):
    ring = KeyRing(tmp_path / "keys")
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
