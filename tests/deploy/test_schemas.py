"""deploy/kubernetes against the schemas of Kubernetes itself, in which no unknown field is let through."""

import copy
import re
import shutil
import subprocess
import tomllib

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.deploy.kustomize import all_containers
from tests.deploy.manifests import FOLDERS, KUBERNETES, OVERLAYS, ROOT, container, manifests, workloads

OLDEST = "1.28"
VERSIONS = (OLDEST, kubernetes_validate.latest_version().rpartition(".")[0])
MISTAKES = {  # what is easily written: where, what stands there, what would stand there
    "misspelt": ("baton-scheduler", "spec.template.spec", "terminationGracePeriodSeconds", "terminationGracePeriod"),
    "in the wrong place": ("baton-executor", "spec.template.spec", "securityContext", "readOnlyRootFilesystem"),
    "misspelt, deep down": ("baton-executor", "spec.template.spec.containers.0.livenessProbe.exec", "command", "cmd"),
    "in a network policy": ("baton-nothing-else", "spec", "policyTypes", "policyType"),
    "in a volume claim": ("baton-scheduler", "spec.volumeClaimTemplates.0.spec", "accessModes", "accessMode"),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_would_take_them(overlay, version):
    for manifest in manifests(overlay):
        assert kubernetes_validate.validate(manifest, version, strict=True) == version


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_field_that_does_not_exist_is_found(mistake):
    name, path, right, wrong = MISTAKES[mistake]
    for original in manifests("base"):
        if original["metadata"]["name"] != name or original["kind"] == "Service":
            continue
        manifest = copy.deepcopy(original)
        place = manifest
        for part in path.split("."):
            place = place[int(part)] if part.isdigit() else place[part]
        place[wrong] = place.pop(right)
        with pytest.raises(kubernetes_validate.ValidationError, match=wrong):
            kubernetes_validate.validate(manifest, OLDEST, strict=True)
        return
    raise AssertionError(f"there is no {name}")


def test_a_value_of_another_type_is_found():
    manifest = copy.deepcopy(workloads("base")["baton-executor"])
    container(manifest)["env"].append({"name": "HF_HUB_OFFLINE", "value": 1})
    with pytest.raises(kubernetes_validate.ValidationError, match="1 is not of type"):
        kubernetes_validate.validate(manifest, OLDEST, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl on the path, to compare with")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubectl_renders_the_same(overlay):
    """What these tests look at is what kustomize makes of the folder."""
    command = ["kubectl", "kustomize", str(FOLDERS[overlay])]
    theirs = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    assert sorted(yaml.safe_load_all(theirs), key=_name) == sorted(manifests(overlay), key=_name)


def test_the_documented_version_is_the_tested_one():
    text = (KUBERNETES / "base" / "kustomization.yaml").read_text() + (ROOT / "docs" / "operations.md").read_text()
    assert set(re.findall(r"Kubernetes (\d+\.\d+)", text)) == {OLDEST}


def test_images_are_those_of_this_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    images = {c["image"] for overlay in OVERLAYS for w in workloads(overlay).values() for c in all_containers(w)}
    assert images == {f"{name}:{version}" for name in ("baton-scheduler", "baton-executor", "baton-executor-gpu")}


def _name(manifest):
    return manifest["kind"], manifest["metadata"]["name"]
