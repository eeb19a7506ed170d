"""Our manifests, rendered once, and ways to find one's way in them."""

import copy
import functools
from collections.abc import Iterator

from tests import ROOT
from tests.deploy.kustomize import Manifest, render

KUBERNETES = ROOT / "deploy" / "kubernetes"
FOLDERS = {
    **{name: KUBERNETES / name for name in ("base", "cpu", "gpu", "gateway", "tensor-parallel")},
    **{
        name: ROOT / "tests" / "deploy" / name.replace("-", "_")
        for name in ("node-keeper", "keda", "gateway-gpu", "edge")
    },
    "tensor-parallel-gpu": ROOT / "tests" / "deploy" / "tensor_parallel_gpu",
}
ALL = tuple(FOLDERS)
OLDEST = "1.28"
"""The oldest Kubernetes that takes them."""
OVERLAYS = ("base", "cpu", "gpu", "node-keeper", "keda", "edge")
"""Those with one scheduler, and executors in a pod each."""


@functools.cache
def manifests(overlay: str) -> tuple[Manifest, ...]:
    """What `kubectl apply -k` would send; for reading."""
    return tuple(render(FOLDERS[overlay]))


def of_kind(overlay: str, *kinds: str) -> list[Manifest]:
    """The manifests of some kinds."""
    return [manifest for manifest in manifests(overlay) if manifest["kind"] in kinds]


def only(overlay: str, kind: str) -> Manifest:
    """The one manifest of a kind; a copy, to write to."""
    (manifest,) = of_kind(overlay, kind)
    return copy.deepcopy(manifest)


def workloads(overlay: str) -> dict[str, Manifest]:
    """The manifests that have pods, by name."""
    return {m["metadata"]["name"]: m for m in of_kind(overlay, "StatefulSet", "Deployment", "DaemonSet")}


def pod(workload: Manifest) -> Manifest:
    """The specification of its pods."""
    spec: Manifest = workload["spec"]["template"]["spec"]
    return spec


def container(workload: Manifest) -> Manifest:
    """The container that its pods are for; behind it is the keeper's, if the pods have one of their own."""
    first: Manifest = pod(workload)["containers"][0]
    return first


def options(workload: Manifest) -> dict[str, str]:
    """What it passes to its command: name to value, which is empty for a flag."""
    given = (word.partition("=") for word in container(workload)["args"][1:])
    return {name: value for name, _, value in given}


def selected(overlay: str, selector: dict[str, str]) -> list[Manifest]:
    """The workloads whose pods carry these labels."""
    return [workload for workload in workloads(overlay).values() if selector.items() <= labels(workload).items()]


def labels(workload: Manifest) -> dict[str, str]:
    """The labels of its pods."""
    found: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return found


def port_names(workload: Manifest) -> set[str]:
    """Names of the ports that its container declares."""
    return {port["name"] for port in container(workload).get("ports", [])}


def exec_commands(workload: Manifest) -> Iterator[tuple[str, list[str]]]:
    """Whatever Kubernetes runs in its container: probes and hooks, by name."""
    only = container(workload)
    for name, action in [*only.items(), *only.get("lifecycle", {}).items()]:
        if isinstance(action, dict) and "exec" in action:
            yield name, action["exec"]["command"]


def urls(workload: Manifest) -> list[str]:
    """What its probes and hooks fetch by themselves."""
    return [word for _, command in exec_commands(workload) for word in command if "://" in word]
