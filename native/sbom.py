"""Writes what is in a wheel: a bill of materials in CycloneDX's JSON, for its .dist-info/sboms (PEP 770).

    python sbom.py pyproject.toml rabit/version.py OUTPUT [LIBRARY VERSION LICENSE]...

The libraries are those that are linked into librabit.so.  Nothing in it depends on when or where it is made.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def bill(project: dict[str, Any], version: str, linked: list[tuple[str, str, str]]) -> dict[str, Any]:
    name = project["name"]
    own = {
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "type": "library",
        "name": name,
        "version": version,
        "description": project["description"],
        "licenses": [{"license": {"id": project["license"]}}],
        "purl": f"pkg:pypi/{name}@{version}",
    }
    parts = [
        {
            "bom-ref": f"{library}@{release}",
            "type": "library",
            "name": library,
            "version": release,
            "scope": "required",
            "licenses": [{"expression": terms}],
            "description": "linked statically into librabit.so",
        }
        for library, release, terms in linked
    ]
    for requirement in project["dependencies"]:
        package = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        parts.append(
            {
                "bom-ref": f"pkg:pypi/{package}",
                "type": "library",
                "name": package,
                "scope": "required",
                "purl": f"pkg:pypi/{package}",
                "description": f"installed with it, not contained: {requirement}",
            }
        )
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"lifecycles": [{"phase": "build"}], "component": own},
        "components": parts,
        "dependencies": [
            {"ref": own["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": part["bom-ref"]} for part in parts),
        ],
    }


def main() -> None:
    pyproject, version_file, output, *rest = sys.argv[1:]
    project = tomllib.loads(Path(pyproject).read_text(encoding="utf-8"))["project"]
    found = re.search(r'__version__ = "([^"]+)"', Path(version_file).read_text(encoding="utf-8"))
    assert found, f"{version_file} has no version"
    linked = list(zip(rest[::3], rest[1::3], rest[2::3], strict=True))
    Path(output).write_text(json.dumps(bill(project, found[1], linked), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
