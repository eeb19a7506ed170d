"""Resources of other projects held against their schemas, which lie in `custom/`; its README says where they are from.

The API server drops a field that a schema does not name, unless it is asked to be strict. Here that is an error.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]

from tests.deploy.kustomize import Manifest

SCHEMAS = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "custom").glob("*.json")}
POD_TEMPLATE = "x-pod-template"


def is_custom(manifest: Manifest) -> bool:
    """Whether Kubernetes itself does not know the kind."""
    return manifest["kind"] in SCHEMAS


def validate(manifest: Manifest, version: str) -> None:
    """Raise an error if the manifest does not fit its schema; its labels and pods, those of a version of Kubernetes."""
    schema = SCHEMAS[manifest["kind"]]
    jsonschema.Draft202012Validator(_closed(schema)).validate(manifest)
    for part in [_holder(manifest["metadata"]), *map(_workload, _pod_templates(schema, manifest))]:
        kubernetes_validate.validate(part, version, strict=True)


def _closed(schema: Any) -> Any:
    """The schema, in which objects have the properties that it names and no others."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed["additionalProperties"] = False
    return closed


def _pod_templates(schema: Any, value: Any) -> Iterator[Any]:
    if schema.get(POD_TEMPLATE):
        yield value
    for name, below in schema.get("properties", {}).items():
        if name in value:
            yield from _pod_templates(below, value[name])


def _holder(metadata: Any) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def _workload(template: Any) -> Manifest:
    labels = template["metadata"]["labels"]
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "any"}, "spec": spec}
