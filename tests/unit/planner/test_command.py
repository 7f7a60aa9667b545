"""`rabitrun plan` prints, writes and draws a plan."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from support.topologies import racks

from rabit.command import run_command
from rabit.planner import Plan
from rabit.planner.command import main


@pytest.fixture
def network(tmp_path):
    path = tmp_path / "network.json"
    path.write_text(json.dumps(racks(2, 2, 5).to_json()))
    return str(path)


def test_json_holds_exact_fractions_and_the_trees(network, capsys):
    assert main(["--topology", network, "--json"]) == 0

    plan = json.loads(capsys.readouterr().out)
    assert plan["allreduce"] == {
        "optimum": "5",
        "ring": "10/3",
        "ring_in_order": "10/3",
        "tree": "5/2",
    }
    assert (plan["allgather"], plan["reducescatter"]) == ({"optimum": "10"}, {"optimum": "10"})
    assert plan["broadcast"]["roots"] == dict.fromkeys(("h0", "h1", "h2", "h3"), "5")
    assert plan["order"] == ["h0", "h1", "h2", "h3"]
    assert [tree["share"] for tree in plan["trees"]] == ["1"]
    assert len(plan["trees"][0]["reduce"]) == len(plan["trees"][0]["broadcast"]) == 3


def test_the_table_says_what_ring_and_tree_reach(network, capsys):
    assert main(["--topology", network]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert "4 hosts, 2 switches, 10 one-way links" in lines[0]
    shares = {
        line.split("  ")[0]: line.split()[-1] for line in lines if line.startswith("allreduce")
    }
    assert shares == {
        "allreduce, plan": "100%",
        "allreduce, ring in the order of the ranks": "67%",
        "allreduce, ring in the best order": "67%",
        "allreduce, binary tree": "50%",
    }


def test_a_plan_is_written_and_drawn(network, tmp_path, capsys):
    written, drawn = tmp_path / "plan.json", tmp_path / "plan.svg"

    assert main(["--topology", network, "-o", str(written), "--svg", str(drawn)]) == 0

    assert json.loads(written.read_text())["topology"] == Plan(racks(2, 2, 5)).topology.digest
    picture = ElementTree.parse(drawn).getroot()
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"h0", "h3", "s0", "s1", "5", "10"} <= set(texts)


def test_names_are_escaped_in_the_picture_and_on_the_terminal(tmp_path, capsys):
    names = ["<b>", "\x1b[31m"]
    links = [{"a": names[0], "b": names[1], "capacity": 1}]
    path = tmp_path / "network.json"
    path.write_text(json.dumps({"nodes": [{"name": name} for name in names], "links": links}))

    assert main(["--topology", str(path), "--svg", str(tmp_path / "plan.svg")]) == 0

    assert "\x1b" not in capsys.readouterr().out
    ElementTree.parse(tmp_path / "plan.svg")


def test_a_file_that_is_missing_is_reported_in_one_line(tmp_path, capsys):
    status = run_command("rabitrun plan", lambda: main(["--topology", str(tmp_path / "none.json")]))

    assert status != 0
    assert "none.json: No such file" in capsys.readouterr().err


def test_the_guide_shows_what_the_command_prints(tmp_path, capsys):
    guide = Path(__file__).resolve().parents[3] / "docs" / "howto" / "uneven_network.md"
    network = re.findall(r"```json\n(.*?)```", guide.read_text(), re.S)[0]
    shown = re.findall(r"```\n(\$ rabitrun plan --topology .*?)```", guide.read_text(), re.S)[0]
    (tmp_path / "network.json").write_text(network)
    _, printed = shown.split("\n", 1)

    assert main(["--topology", str(tmp_path / "network.json")]) == 0

    assert capsys.readouterr().out == printed
    exec(re.findall(r"```python\n(.*?)```", guide.read_text(), re.S)[0], {})
