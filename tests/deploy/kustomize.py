"""What `kubectl kustomize` makes of a folder, for the part of kustomize that our manifests keep to.

A key that is not known here is an error, so a test cannot pass because something was overlooked. Where kubectl is
installed, a test compares the two.
"""

import copy
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

KNOWN = {"apiVersion", "kind", "namespace", "nameSuffix", "labels", "resources", "components", "patches", "images"}
CLUSTER_WIDE = {"Namespace"}


def render(folder: Path) -> list[Manifest]:
    """All manifests of a kustomization."""
    return _apply(folder, [])


def _apply(folder: Path, manifests: list[Manifest]) -> list[Manifest]:
    """What a kustomization or component makes of the manifests before it: with its own, changed as it says."""
    (recipe,) = load(folder / "kustomization.yaml")
    assert recipe.keys() <= KNOWN, f"{folder}: {recipe.keys() - KNOWN} is not done here"
    manifests = copy.deepcopy(manifests)
    for name in recipe.get("resources", []):
        manifests += render(folder / name) if (folder / name).is_dir() else load(folder / name)
    for name in recipe.get("components", []):
        manifests = _apply(folder / name, manifests)
    for patch in recipe.get("patches", []):
        (operations,) = load(folder / patch["path"])
        for manifest in _targets(manifests, patch["target"]):
            patched(manifest, operations)
    for manifest in manifests:
        manifest["metadata"]["name"] += recipe.get("nameSuffix", "")  # nothing of ours refers to such a name
        for added in recipe.get("labels", []):
            assert added.keys() == {"pairs", "includeSelectors"}, added
            for labels in _labels(manifest):
                labels.update(added["pairs"])
        if "namespace" in recipe and manifest["kind"] not in CLUSTER_WIDE:
            for place in [manifest["metadata"], *manifest.get("subjects", [])]:
                place["namespace"] = recipe["namespace"]
        for container in all_containers(manifest):
            for image in recipe.get("images", []):
                container["image"] = _with_image(container["image"], image)
    return manifests


def load(path: Path) -> list[Any]:
    """The documents in a file, each part of its own: where one refers to another (YAML's anchors) it has a copy."""
    return [json.loads(document) for document in _documents(path.read_text())]


@functools.cache
def _documents(text: str) -> list[str]:
    """As JSON."""
    return [json.dumps(document) for document in yaml.safe_load_all(text)]


def all_containers(manifest: Manifest) -> list[Manifest]:
    """The containers of a workload, those that prepare its pods with them; none of anything else."""
    specs = [template["spec"] for template in pod_templates(manifest)]
    return [container for spec in specs for container in [*spec.get("initContainers", []), *spec["containers"]]]


def pod_templates(manifest: Manifest) -> list[Manifest]:
    """What a workload makes its pods of: one, or the leader's and the workers'; none of anything else."""
    spec = manifest.get("spec", {})
    groups = spec.get("leaderWorkerTemplate", {})
    found = (spec.get("template"), groups.get("leaderTemplate"), groups.get("workerTemplate"))
    return [template for template in found if template is not None]


def patched(manifest: Manifest, operations: list[Manifest]) -> None:
    """Carry a JSON patch (RFC 6902) out, as far as ours go."""
    for operation in operations:
        *parents, last = (part.replace("~1", "/") for part in operation["path"].strip("/").split("/"))
        place: Any = manifest
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place[name]
        match operation["op"], place:
            case "add", list() if last == "-":
                place.append(operation["value"])
            case "add", dict() if last not in place:
                place[last] = operation["value"]
            case "replace", dict() if last in place:
                place[last] = operation["value"]
            case "replace", list():
                place[int(last)] = operation["value"]
            case "remove", dict() if last in place:
                del place[last]
            case "remove", list():
                del place[int(last)]
            case _:
                raise AssertionError(f"{operation['op']} {operation['path']} is not done here, or has no place")


def _targets(manifests: list[Manifest], target: Manifest) -> Iterator[Manifest]:
    """What a patch is for. A component may bring patches for what only others have."""
    assert target.keys() == {"kind", "name"}, target
    return (m for m in manifests if m["kind"] == target["kind"] and re.fullmatch(target["name"], m["metadata"]["name"]))


def _labels(manifest: Manifest) -> Iterator[Manifest]:
    """The labels of a workload or a budget and of its pods, and those that select them."""
    yield manifest["metadata"]["labels"]
    yield manifest["spec"]["selector"]["matchLabels"]
    for template in pod_templates(manifest):
        yield template["metadata"]["labels"]
        for spread in template["spec"].get("topologySpreadConstraints", []):
            yield spread["labelSelector"]["matchLabels"]


def _with_image(image: str, change: Manifest) -> str:
    name, _, tag = image.partition(":")
    if name != change["name"]:
        return image
    return f"{change.get('newName', name)}:{change.get('newTag', tag)}"
