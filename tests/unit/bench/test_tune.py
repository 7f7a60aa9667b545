"""The parts of a tuning run that need no ranks: who wins, which rules follow, the picture."""

from __future__ import annotations

import random
import xml.dom.minidom

import pytest

from rabit.bench.halving import halve, turns_of
from rabit.bench.plot import draw
from rabit.bench.progress import Progress
from rabit.bench.tune_options import parse_tune
from rabit.bench.winners import Candidate, Winner, rules_of
from rabit.errors import InvalidArgument


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 11])
def test_the_fastest_of_noisy_candidates_wins_in_as_many_turns_as_are_told(count):
    for seed in range(20):
        noise = random.Random(seed)
        speeds = {each: 1 + 0.05 * each for each in range(count)}
        fastest = noise.randrange(count)
        speeds[fastest] = 0.8
        turns = []

        def measure(each, noise=noise, speeds=speeds, turns=turns):
            turns.append(each)
            return [speeds[each] * noise.uniform(0.95, 1.3) for _ in range(9)]

        winner, times = halve(range(count), measure, seed)

        assert winner == fastest
        assert len(turns) == turns_of(count)
        assert sum(map(len, times.values())) == 9 * len(turns)
        assert all(times.values())


@pytest.mark.parametrize("usual", [1.0, 4.0])
def test_the_hopeless_have_one_turn_only(usual):
    speeds = {"usual": usual, "close": 1.2, "best": 0.9, **{f"slow{i}": 5.0 for i in range(6)}}
    turns = []

    def measure(each):
        turns.append(each)
        return [speeds[each]]

    winner, times = halve(list(speeds), measure, seed=3)

    assert winner == "best"
    assert all(turns.count(f"slow{i}") == 1 for i in range(6))
    assert turns.count("close") == 2
    assert len(turns) < turns_of(len(speeds))
    assert times["slow3"] == [5.0]


def test_where_nobody_comes_near_the_first_one_round_is_enough():
    turns = []

    def measure(each):
        turns.append(each)
        return [0.1 if each == "usual" else 1.0]

    assert halve(["usual", "a", "b", "c"], measure, seed=3)[0] == "usual"
    assert sorted(turns) == ["a", "b", "c", "usual"]


def test_the_first_stays_where_nothing_is_clearly_faster():
    assert (
        halve(["usual", "other"], lambda each: [1.0 if each == "usual" else 0.98], 1)[0] == "usual"
    )
    assert (
        halve(["usual", "other"], lambda each: [1.0 if each == "usual" else 0.96], 1)[0] == "other"
    )


def test_rules_reach_half_way_to_the_next_size_and_equal_neighbours_join():
    ring, tree, usual = Candidate("builtin", "ring"), Candidate("builtin", "tree"), Candidate("mpi")
    winners = [
        Winner("allreduce", "", 1 << 10, tree),
        Winner("allreduce", "", 1 << 12, tree),
        Winner("allreduce", "", 1 << 16, ring),
        Winner("alltoall", "", 1 << 10, usual),
        Winner("allreduce", "float16", 1 << 10, usual),
    ]

    assert rules_of(winners) == (
        "allreduce.float16:*:mpi;allreduce:<16384:builtin/tree;allreduce:>=16384:builtin/ring;"
        "alltoall:*:mpi"
    )


def test_what_a_job_does_by_itself_needs_no_rule_but_in_the_way_of_a_wider_one():
    itself, ring = Candidate("builtin"), Candidate("builtin", "ring")
    winners = [
        Winner("allreduce", "", 1 << 10, itself),
        Winner("allreduce", "", 1 << 20, ring),
        Winner("allreduce", "float16", 1 << 20, itself),
    ]

    assert (
        rules_of(winners, {itself}) == "allreduce.float16:*:builtin;allreduce:>=32768:builtin/ring"
    )


def rows():
    for kind in ("allreduce", "alltoall"):
        for power in (10, 14, 18):
            for place, name in enumerate(("builtin", "builtin/ring", "a<b>")):
                yield {
                    "kind": kind, "type": "float32", "bytes": 1 << power, "candidate": name,
                    "p50_us": 2.0**power / 100 + place, "busbw": 0.1 * power, "is_winner": place == 1,
                }  # fmt: skip


def test_the_picture_is_xml_with_a_line_for_each_candidate_and_a_ring_for_each_winner():
    text = draw(list(rows()), "4 ranks & more")

    document = xml.dom.minidom.parseString(text)
    assert len(document.getElementsByTagName("polyline")) == 2 * 2 * 3
    assert len(document.getElementsByTagName("circle")) == 2 * 2 * 3
    assert "a&lt;b&gt;" in text and "4 ranks &amp; more" in text


def test_the_picture_has_room_for_every_name_of_its_legends():
    names = [
        "builtin",
        *(f"builtin/algorithm_{i}" for i in range(14)),
        "mpi/" + "hierarchical_" * 4,
    ]
    wide = [{**row, "candidate": name} for row in rows() for name in names]

    document = xml.dom.minidom.parseString(draw(wide, "4 ranks"))

    width, height = (
        float(document.documentElement.getAttribute(each)) for each in ("width", "height")
    )
    texts = [
        (float(each.getAttribute("x")), float(each.getAttribute("y")), each.firstChild.data)
        for each in document.getElementsByTagName("text")
    ]
    legend = [each for each in texts if each[2].removesuffix(" by itself") in names]
    assert len(legend) == 2 * len(names)
    assert all(x + 0.6 * 11 * len(text) <= width for x, _, text in legend)
    titles = sorted({y for _, y, text in texts if ": time" in text})
    first = [y for _, y, _ in legend if y < titles[1]]
    assert len(first) == len(names) and max(first) < titles[1] - 10
    assert max(y for _, y, _ in texts) < height


def test_a_candidate_looks_alike_for_all_kinds():
    other = [{**row, "candidate": {"builtin/ring": "mpi", "a<b>": "builtin/ring"}.get(row["candidate"], "builtin")}
             for row in rows() if row["kind"] == "alltoall"]  # fmt: skip
    mixed = [row for row in rows() if row["kind"] == "allreduce"] + other

    document = xml.dom.minidom.parseString(draw(mixed, "4 ranks"))

    samples = [
        (each.previousSibling.previousSibling.getAttribute("stroke"), each.firstChild.data)
        for each in document.getElementsByTagName("text")
        if each.firstChild.data in ("builtin/ring", "mpi", "a<b>")
    ]
    assert len(samples) == 4
    assert len(set(samples)) == 3
    assert len({colour for colour, _ in samples}) == 3


def test_progress_says_how_much_is_left(tmp_path):
    with (tmp_path / "out").open("w") as stream:
        progress = Progress(4, stream)
        progress.show(2, "allreduce", 75)
        progress.end(119.6)
    Progress(4, None).show(1, "silent", 1)

    first, second = (tmp_path / "out").read_bytes().decode().split("\r")[-2:]
    assert "2/4 allreduce" in first and "about 1 min 15 s left" in first
    assert "4/4 in 2 min 00 s" in second


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kinds", "barrier"], "has no size and nothing to choose"),
        (["--kinds", "all"], "'all' is unknown"),
        (["--budget", "0"], "is not between 0 and 1 hour"),
        (["--bytes", "x"], "--bytes is 'x'"),
        (["table.json"], "unrecognized arguments: table.json"),
    ],
)
def test_mistakes_on_the_command_line_are_told(words, said):
    with pytest.raises(InvalidArgument) as told:
        parse_tune(words)

    assert said in str(told.value)
