"""Mistakes in deploy/kubernetes' resources of other projects are found. (test_schemas.py checks them as they are.)"""

import os
import re
import subprocess

import pytest
import yaml

from tests.deploy import custom_resources
from tests.deploy.manifests import ALL, OLDEST, ROOT, manifests, only

MISTAKES = {  # kind: overlay, path, what stands there, what would stand there
    "InferencePool": ("gateway", "spec", "endpointPickerRef", "extensionRef"),
    "HTTPRoute": ("gateway", "spec.rules.0.timeouts", "request", "requests"),
    "ScaledObject": ("keda", "spec", "pollingInterval", "pollInterval"),
    "LeaderWorkerSet": ("tensor-parallel", "spec.leaderWorkerTemplate", "size", "sise"),
    "ServiceMonitor": ("edge", "spec.endpoints.0.authorization", "credentials", "credential"),
}
WRONG_VALUES = {
    "InferencePool": ("gateway", "spec.endpointPickerRef.failureMode", "Open"),
    "HTTPRoute": ("gateway", "spec.rules.0.timeouts.request", "never"),
    "ScaledObject": ("keda", "spec.triggers.0.metadata.threshold", 1),
    "LeaderWorkerSet": ("tensor-parallel", "spec.leaderWorkerTemplate.restartPolicy", "RecreateGroup"),
    "ServiceMonitor": ("edge", "spec.endpoints.0.interval", "15 seconds"),
}


def place(manifest, path: str):
    """What stands at a path in it."""
    for part in path.split("."):
        manifest = manifest[int(part)] if part.isdigit() else manifest[part]
    return manifest


def test_every_custom_kind_has_its_mistakes():
    kinds = {m["kind"] for overlay in ALL for m in manifests(overlay) if custom_resources.is_custom(m)}
    assert kinds == custom_resources.SCHEMAS.keys() - {"PrometheusRule"} == MISTAKES.keys() == WRONG_VALUES.keys()


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_field_of_a_custom_resource_that_does_not_exist_is_found(kind):
    overlay, path, right, wrong = MISTAKES[kind]
    manifest = only(overlay, kind)
    there = place(manifest, path)
    there[wrong] = there.pop(right)
    with pytest.raises(Exception, match=f"'{wrong}' was unexpected"):
        custom_resources.validate(manifest, OLDEST)


@pytest.mark.parametrize("kind", WRONG_VALUES)
def test_a_value_that_a_custom_resource_cannot_have_is_found(kind):
    overlay, path, wrong = WRONG_VALUES[kind]
    manifest = only(overlay, kind)
    above, _, last = path.rpartition(".")
    assert place(manifest, above)[last] != wrong
    place(manifest, above)[last] = wrong
    with pytest.raises(Exception, match=re.escape(repr(wrong))):
        custom_resources.validate(manifest, OLDEST)


def test_the_command_makes_a_rule_of_all_alerts(tmp_path):
    """docs/kubernetes.md, with a kubectl that shows what it would apply."""
    (command,) = re.findall(r"^\{ printf .*?apply -f -$", (ROOT / "docs" / "kubernetes.md").read_text(), re.M | re.S)
    (tmp_path / "kubectl").write_text("#!/bin/sh\nexec cat\n")
    (tmp_path / "kubectl").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    made = subprocess.run(["sh", "-c", command], cwd=ROOT, env=env, capture_output=True, check=True, timeout=60).stdout
    rule = yaml.safe_load(made)
    custom_resources.validate(rule, OLDEST)
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())
    rule["spec"]["groups"][0]["rules"][0]["for"] = "a minute"
    with pytest.raises(Exception, match="a minute"):
        custom_resources.validate(rule, OLDEST)


@pytest.mark.parametrize("role", ["leader", "worker"])
def test_a_mistake_in_a_pod_of_a_group_is_found(role):
    manifest = only("tensor-parallel", "LeaderWorkerSet")
    spec = place(manifest, f"spec.leaderWorkerTemplate.{role}Template.spec")
    spec["terminationGracePeriod"] = spec.pop("terminationGracePeriodSeconds")
    with pytest.raises(Exception, match="terminationGracePeriod"):
        custom_resources.validate(manifest, OLDEST)
