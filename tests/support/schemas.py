"""Kubernetes manifests against the schemas of their kinds, as far as the manifests use these.

`python tests/support/schemas.py FOLDER`, with a folder of CRDs, writes tests/support/schemas.json again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MANIFESTS = Path(__file__).resolve().parents[2] / "docs" / "deploy" / "kubernetes"
SCHEMAS = Path(__file__).with_suffix(".json")
_KEPT = (
    "type", "required", "enum", "minimum", "maximum", "pattern", "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
)  # fmt: skip


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each document of each manifest, with the name of its file."""
    import yaml

    for path in sorted(MANIFESTS.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path.name, document


def problems(value: Any, schema: dict[str, Any], where: str = "") -> Iterator[str]:
    """What in `value` its schema does not allow."""
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str):
            yield f"{where}: {value!r} is neither a number nor a text"
        return
    types = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "number": (int, float)}
    wanted = schema.get("type")
    if wanted and not isinstance(value, types[wanted]):
        yield f"{where}: {value!r} is not of the type {wanted}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is not one of {schema['enum']}"
    if isinstance(value, dict):
        yield from _problems_inside(value, schema, where)
    for index, item in enumerate(value if isinstance(value, list) else ()):
        yield from problems(item, schema.get("items", {}), f"{where}[{index}]")


def _problems_inside(value: dict[str, Any], schema: dict[str, Any], where: str) -> Iterator[str]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{where}: {name} is missing"
    known = schema.get("properties", {})
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or not known
    for name, item in value.items():
        if name in known:
            yield from problems(item, known[name], f"{where}.{name}")
        elif isinstance(schema.get("additionalProperties"), dict):
            yield from problems(item, schema["additionalProperties"], f"{where}.{name}")
        elif not is_open:
            yield f"{where}: {name} is unknown"


def pruned(schema: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """The part of `schema` that these values use."""
    found = {key: schema[key] for key in _KEPT if key in schema}
    objects = [value for value in values if isinstance(value, dict)]
    used = {name for value in objects for name in value}
    known = schema.get("properties", {})
    if known:
        found["properties"] = {
            name: pruned(known[name], [value[name] for value in objects if name in value])
            for name in sorted(known)
            if name in used
        }
    if isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = pruned(schema["additionalProperties"], [])
    if "items" in schema:
        inside = [item for value in values if isinstance(value, list) for item in value]
        found["items"] = pruned(schema["items"], inside)
    return found


def _written(folder: Path) -> dict[str, Any]:
    import yaml

    whole = {}
    for path in folder.glob("*.yaml"):
        crd = yaml.safe_load(path.read_text())
        for version in crd["spec"]["versions"]:
            key = f"{crd['spec']['group']}/{version['name']} {crd['spec']['names']['kind']}"
            whole[key] = version["schema"]["openAPIV3Schema"]
    # A JobSet holds whole Jobs, whose schema is not among the CRDs.
    job_set = whole["jobset.x-k8s.io/v1alpha2 JobSet"]["properties"]["spec"]["properties"]
    template = job_set["replicatedJobs"]["items"]["properties"]["template"]["properties"]
    whole["batch/v1 Job"] = {"type": "object", "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
        "spec": template["spec"],
    }}  # fmt: skip
    by_kind: dict[str, list[Any]] = {}
    for _, document in documents():
        by_kind.setdefault(f"{document['apiVersion']} {document['kind']}", []).append(document)
    return {kind: pruned(whole[kind], found) for kind, found in by_kind.items() if kind in whole}


if __name__ == "__main__":
    SCHEMAS.write_text(json.dumps(_written(Path(sys.argv[1])), indent=1, sort_keys=True) + "\n")
