"""The summary out of a statistics document."""

from __future__ import annotations

from rabit.diagnostics.summary import summary_text

DOCUMENT = {
    "rank": 0,
    "size": 2,
    "steps": 10,
    "communication_us": 2_000_000,
    "blocked_us": 500_000,
    "hidden_share": 0.75,
    "totals": {"tensors": 200, "buckets": 20, "bytes": 20 << 20},
    "algorithms": {"ring": {"bytes": 15 << 20}, "direct": {"bytes": 5 << 20}, "": {"bytes": 0}},
    "backend_details": {"builtin": {"transport": {"name": "shm"}}},
    "controller": {
        "waited_for": [
            {"rank": 0, "times": 1, "total_us": 0, "max_us": 0, "worst_tensor": ""},
            {"rank": 1, "times": 9, "total_us": 1_500_000, "max_us": 250_000, "worst_tensor": "w"},
        ]
    },
}


def test_four_lines_and_who_was_waited_for():
    assert summary_text(DOCUMENT).splitlines() == [
        "rabit: 20 tensors and 2 MiB per step, 10 steps, 2 ranks",
        "rabit: 20 buckets, 10.0 tensors and 1 MiB each",
        "rabit: communication 2.000 s, 75 % hidden behind compute (0.500 s waited for)",
        "rabit: transport shm; algorithm ring 75 %, direct 25 %",
        "rabit: others waited for rank 1 for 1.500 s (at most 0.250 s, for 'w')",
    ]


def test_an_engine_that_did_nothing():
    assert summary_text({}).splitlines() == [
        "rabit: 0 tensors and 0 B in all, 1 rank",
        "rabit: 0 buckets",
        "rabit: communication 0.000 s, 0 % hidden behind compute (0.000 s waited for)",
        "rabit: transport none; algorithm none",
    ]


def test_results_that_came_with_the_negotiation_are_counted():
    found = summary_text({"size": 2, "inlined": 1, "inlined_bytes": 96}).splitlines()

    assert found[:2] == [
        "rabit: 1 tensor and 96 B in all, 2 ranks",
        "rabit: 0 buckets; 1 tensor went with the negotiation",
    ]


def test_bytes_of_gradients_stand_next_to_those_on_the_wire():
    totals = {**DOCUMENT["totals"], "wire_bytes": 5 << 20}
    codecs = {"identity": {"bytes": 4 << 20}, "onebit": {"bytes": 16 << 20}}
    document = {**DOCUMENT, "totals": totals, "codecs": codecs, "methods": {"gradient_bytes": 24 << 20}}

    assert summary_text(document).splitlines()[:2] == [
        "rabit: 20 tensors and 2 MiB per step before codecs, 10 steps, 2 ranks",
        "rabit: methods and codecs: gradients 4 MiB, on the wire 512 KiB per step",
    ]
