"""What people look for before they trust a project is there, and says what is so."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from rabit.config.config import Config
from rabit.config.older import TWINS
from rabit.version import __version__

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
VERSIONS = (ROOT / "docs" / "contribute" / "versions.md").read_text()


@pytest.mark.parametrize(
    "name",
    [
        "SECURITY.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "PULL_REQUEST_TEMPLATE.md", "CODEOWNERS",
        "dependabot.yml",
    ],
)
def test_a_file_of_trust_is_there_with_links_that_lead_somewhere(name):
    path = GITHUB / name
    dead = [
        target
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text())
        if not re.match(r"[a-z]+:", target) and not (path.parent / target).exists()
    ]

    assert dead == []


def test_the_recipe_and_the_citation_name_this_version_and_what_the_package_needs():
    yaml = pytest.importorskip("yaml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = yaml.safe_load((ROOT / "docs" / "deploy" / "conda" / "recipe.yaml").read_text())
    needed = {requirement.partition(";")[0].strip() for requirement in project["dependencies"]}

    assert recipe["context"]["version"] == __version__
    assert {line.replace(" ", "") for line in recipe["requirements"]["run"]} == needed | {
        f"python{project['requires-python']}"
    }
    assert yaml.safe_load((GITHUB / "CITATION.cff").read_text())["version"] == __version__


def test_hooks_and_the_dev_container_name_what_is_there():
    yaml = pytest.importorskip("yaml")
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())

    assert [repository["repo"] for repository in hooks] == ["local"], "hooks run without the network of others"
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).is_file()
    target = container["postCreateCommand"].removeprefix("make ")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.parametrize("path", sorted(GITHUB.rglob("*.yml")), ids=lambda path: path.name)
def test_a_file_of_github_is_yaml(path):
    yaml = pytest.importorskip("yaml")

    assert isinstance(yaml.safe_load(path.read_text()), dict)


@pytest.mark.parametrize("path", sorted((GITHUB / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_a_workflow_has_no_rights_that_it_does_not_name_and_pins_what_it_uses(path):
    text = path.read_text()

    assert "\npermissions: {}\n" in text
    assert "secrets." not in text, "PyPI trusts the workflow: no token is stored"
    for used in re.findall(r"uses: (\S+)", text):
        assert used.startswith("./") or re.search(r"@[0-9a-f]{40}$", used), used


def test_workflows_run_targets_of_make_that_are_there():
    makefile = (ROOT / "Makefile").read_text()
    for path in (GITHUB / "workflows").glob("*.yml"):
        for target in re.findall(r"run: make ([\w-]+)", path.read_text()):
            assert re.search(rf"^{target}:", makefile, re.M), f"{path.name}: make {target}"


def test_tests_run_on_each_python_that_the_package_names():
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    tested = re.search(r"python: \[(.*)\]", (GITHUB / "workflows" / "test.yml").read_text())

    assert tested is not None
    assert set(named) <= set(re.findall(r"3\.\d+", tested[1]))


def test_older_names_warn_are_listed_and_go_when_it_was_said():
    rows = dict(re.findall(r"^\| `(RABIT_\w+)`.*\| ([\d.]+) \|$", VERSIONS, re.M))

    assert set(rows) == {twin.variable for twin in TWINS}
    for name, last in rows.items():
        notices = " ".join(Config.from_environ({name: "1" if name == "RABIT_CROSS_BARRIER" else "none"}).notices)
        assert name in notices and "RABIT_OVERLAP" in notices
        assert tuple(map(int, __version__.split(".")[:2])) < tuple(map(int, last.split("."))), f"{name} was to go"
