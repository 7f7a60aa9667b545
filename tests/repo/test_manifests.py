"""The manifests of docs/deploy are what Kubernetes takes, and what rabit reads."""

from __future__ import annotations

import json

import pytest
from support.schemas import SCHEMAS, documents, problems

from rabit.config.config import Config

yaml = pytest.importorskip("yaml")
FOUND = list(documents())
IDS = [f"{name} {document['kind']}" for name, document in FOUND]


def containers(value):
    if isinstance(value, dict):
        if "image" in value:
            yield value
        for item in value.values():
            yield from containers(item)
    elif isinstance(value, list):
        for item in value:
            yield from containers(item)


@pytest.mark.parametrize(("name", "document"), FOUND, ids=IDS)
def test_a_manifest_is_of_its_schema(name, document):
    kind = f"{document['apiVersion']} {document['kind']}"
    schemas = json.loads(SCHEMAS.read_text())
    if kind == "v1 Service":
        assert document["spec"]["clusterIP"] == "None"
        return

    assert list(problems(document, schemas[kind])) == []


def test_what_is_not_of_its_schema_is_found():
    schemas = json.loads(SCHEMAS.read_text())
    (job,) = [document for _, document in FOUND if document["kind"] == "Job"]
    wrong = json.loads(json.dumps(job))
    wrong["spec"]["completion"] = wrong["spec"].pop("completions")
    wrong["spec"]["parallelism"] = "four"

    found = list(problems(wrong, schemas["batch/v1 Job"]))

    assert ".spec: completion is unknown" in found
    assert ".spec.parallelism: 'four' is not of the type integer" in found


@pytest.mark.parametrize(("name", "document"), FOUND, ids=IDS)
def test_variables_are_settings_with_values_that_they_take(name, document):
    for container in containers(document):
        environ = {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}

        assert Config.from_environ(environ).notices == ()


def test_every_pod_has_shared_memory_and_no_secret_in_its_variables():
    for name, document in FOUND:
        text = json.dumps(document)
        if document["kind"] != "Service":
            assert '"mountPath": "/dev/shm"' in text, name
        assert "secretKeyRef" not in text
