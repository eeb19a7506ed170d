"""deploy/kubernetes against the schemas of Kubernetes itself, in which no unknown field is let through."""

import copy
import functools
import json
import re
import shutil
import subprocess
import tomllib

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.deploy import custom_resources
from tests.deploy.kustomize import all_containers
from tests.deploy.manifests import ALL, FOLDERS, KUBERNETES, OLDEST, ROOT, container, manifests, workloads

VERSIONS = (OLDEST, kubernetes_validate.latest_version().rpartition(".")[0])
SCHEDULER, EXECUTOR = ("StatefulSet", "baton-scheduler"), ("Deployment", "baton-executor")
POD = "spec.template.spec"
MISTAKES = {  # what is easily written: where, what stands there, what would stand there
    "misspelt": (SCHEDULER, POD, "terminationGracePeriodSeconds", "terminationGracePeriod"),
    "in the wrong place": (EXECUTOR, POD, "securityContext", "readOnlyRootFilesystem"),
    "misspelt, deep down": (EXECUTOR, f"{POD}.containers.0.livenessProbe.exec", "command", "cmd"),
    "in a network policy": (("NetworkPolicy", "baton-nothing-else"), "spec", "policyTypes", "policyType"),
    "in a volume claim": (SCHEDULER, "spec.volumeClaimTemplates.0.spec", "accessModes", "accessMode"),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", ALL)
def test_kubernetes_would_take_them(overlay, version):
    for manifest in manifests(overlay):
        validate(json.dumps(manifest), version)


@functools.cache  # overlays have most of their manifests in common
def validate(text, version):
    manifest = json.loads(text)
    if custom_resources.is_custom(manifest):
        custom_resources.validate(manifest, version)
    else:
        assert kubernetes_validate.validate(manifest, version, strict=True) == version


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_field_that_does_not_exist_is_found(mistake):
    named, path, right, wrong = MISTAKES[mistake]
    for original in manifests("base"):
        if _name(original) != named:
            continue
        manifest = copy.deepcopy(original)
        place = manifest
        for part in path.split("."):
            place = place[int(part)] if part.isdigit() else place[part]
        place[wrong] = place.pop(right)
        with pytest.raises(kubernetes_validate.ValidationError, match=wrong):
            kubernetes_validate.validate(manifest, OLDEST, strict=True)
        return
    raise AssertionError(f"there is no {named}")


def test_a_value_of_another_type_is_found():
    manifest = copy.deepcopy(workloads("base")["baton-executor"])
    container(manifest)["env"].append({"name": "HF_HUB_OFFLINE", "value": 1})
    with pytest.raises(kubernetes_validate.ValidationError, match="1 is not of type"):
        kubernetes_validate.validate(manifest, OLDEST, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl on the path, to compare with")
@pytest.mark.parametrize("overlay", ALL)
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
    images = {c["image"] for overlay in ALL for manifest in manifests(overlay) for c in all_containers(manifest)}
    (others,) = (image for image in images if not image.startswith("baton-"))
    assert others.startswith("ghcr.io/llm-d/llm-d-router-endpoint-picker:v")
    ours = ("baton-scheduler", "baton-executor", "baton-executor-gpu")
    assert images - {others} == {f"{name}:{version}" for name in ours}


def _name(manifest):
    return manifest["kind"], manifest["metadata"]["name"]
