"""Alert rules and the dashboard name metrics that exist, in a form that Prometheus and Grafana read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rabit.diagnostics.metrics import openmetrics
from rabit.record import layout
from rabit.record.reader import Record

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
METRIC = re.compile(r"\brabit_[a-z_]+")


def served() -> set[str]:
    """The names of all series of a rank."""
    counters = dict.fromkeys(layout.COUNTER_PLACES, 1)
    facts = {"user_ms": 1, "system_ms": 1, "run_delay_ms": 1, "major_faults": 1, "rss_bytes": 1}
    text = openmetrics([(Record({"rank": 0, "host": "h"}, counters), facts)], "job")
    return {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")}


def test_alert_rules_are_whole_and_name_what_is_served():
    yaml = pytest.importorskip("yaml")
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]

    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert {"alert", "expr", "labels", "annotations"} <= set(rule)
        assert {"summary", "action"} <= set(rule["annotations"])
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert set(METRIC.findall(rule["expr"])) <= served()


def test_the_dashboard_is_whole_and_names_what_is_served():
    board = json.loads((DEPLOY / "grafana.json").read_text())
    panels = board["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        (target,) = panel["targets"]
        assert set(METRIC.findall(target["expr"])) <= served()
        assert 'job="$job"' in target["expr"]
