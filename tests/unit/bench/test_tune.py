"""The parts of a tuning run that need no ranks: who wins, which rules follow, the picture."""

from __future__ import annotations

import random
import threading
import xml.dom.minidom
from types import SimpleNamespace

import pytest

from rabit.bench import budget, point
from rabit.bench.budget import Spent
from rabit.bench.cases import Spec
from rabit.bench.halving import duel, halve, turns_of
from rabit.bench.mixture import alternatives, choose, specs_of
from rabit.bench.plot import draw
from rabit.bench.progress import Progress
from rabit.bench.timing import Figures
from rabit.bench.tune_options import parse_tune
from rabit.bench.tuning_results import winners_so_far
from rabit.bench.winners import Candidate, Winner, rules_of
from rabit.errors import InvalidArgument
from rabit.testing import run_ranks
from rabit.types import DType, Kind


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


def test_two_turns_that_are_lost_decide_for_the_first():
    """Of five gains the median may be large by chance."""
    for lost, expected in ((1, True), (2, False)):
        gains = iter([0.9] * lost + [1.5] * (5 - lost))

        def measure(each, gains=gains):
            return [1.0 if each == "other" else next(gains)]

        won, times = duel("usual", "other", measure)

        assert won is expected
        assert {each: len(found) for each, found in times.items()} == {"usual": 5, "other": 5}


def winner(kind, candidate):
    return Winner(kind, "", 1 << 10, Candidate(*candidate.split("/")))


def test_a_mix_is_played_beside_each_of_its_backends_alone():
    mix = [winner("allreduce", "mpi/library"), winner("alltoall", "builtin/pairwise")]

    assert alternatives(mix, ["builtin", "mpi"]) == {
        "builtin": [winner("allreduce", "builtin"), winner("alltoall", "builtin/pairwise")],
        "mpi": [winner("allreduce", "mpi/library"), winner("alltoall", "mpi")],
        "mix": mix,
    }


def test_a_table_of_one_other_backend_is_played_as_well_and_one_of_the_jobs_own_is_not():
    other = [winner("allreduce", "mpi/library"), winner("alltoall", "mpi")]
    own = [winner("allreduce", "builtin/ring"), winner("alltoall", "builtin")]

    assert list(alternatives(other, ["builtin", "mpi"])) == ["builtin", "mpi"]
    assert alternatives(other, ["builtin", "mpi"])["mpi"] == other
    assert alternatives(own, ["builtin", "mpi"]) == {}


@pytest.mark.parametrize(
    ("mix", "alone", "expected"),
    [
        (0.80, 0.79, "mix"),  # as good as: what its calls said counts
        (0.80, 0.70, "ps"),
        (0.99, 0.80, "ps"),
        (0.98, 0.99, "builtin"),
        (1.50, 1.40, "builtin"),
        (0.80, 2.00, "mix"),
    ],
)
def test_a_mix_stays_unless_a_backend_alone_is_clearly_faster(mix, alone, expected):
    seconds = {"builtin": 1.0, "ps": alone, "mix": mix}
    # The first turn of the mix is a slow one, whatever the reason.
    slow = iter([1.3])

    def measure(each):
        return [seconds[each] * (next(slow, 1.0) if each == "mix" else 1.0)]

    name, times = choose(list(seconds), measure)

    assert name == expected
    assert times.keys() == seconds.keys() and all(times.values())


def test_the_table_that_the_calls_made_is_the_last_that_is_played():
    won = [winner("allreduce", "mpi"), winner("alltoall", "mpi")]

    assert list(alternatives(won, ["builtin", "mpi", "ps"])) == ["builtin", "ps", "mpi"]


def test_what_is_played_is_short_and_never_nothing():
    def specs(*sizes):
        return [
            Spec(kind, size, DType.FLOAT32)
            for size in sizes
            for kind in (Kind.ALLREDUCE, Kind.ALLTOALL)
        ]

    assert [each.bytes for each in specs_of(specs(1 << 22, 1 << 12))] == [1 << 12] * 2
    assert [each.bytes for each in specs_of(specs(1 << 24, 1 << 22))] == [1 << 22] * 2


class Played:
    """Stands in for the engines of a point: seconds of a call by candidate, alone and beside others."""

    def __init__(self, monkeypatch, alone, beside):
        self.alone, self.beside = alone, beside
        monkeypatch.setattr(point, "measure", self.measure)

    def of(self, kind, dtype):
        return [Candidate(*each.split("/")) for each in self.alone]

    def engine_of(self, kind, candidate):
        return candidate

    def measure(self, candidate, spec, *, in_flight=1, **_):
        seconds = (self.alone if in_flight == 1 else self.beside)[str(candidate)]
        return Figures(spec, 2, 1, spec.bytes, (seconds,), 0, "")


class Turns:
    """Stands in for a budget: of so many turns."""

    def __init__(self, left):
        self.left = left

    def turn(self, measure):
        self.left -= 1
        if self.left < 0:
            raise Spent
        return measure()


def test_a_point_is_measured_or_not(monkeypatch):
    contestants = Played(monkeypatch, {"builtin": 1.0, "builtin/ring": 0.8}, {})
    one = point.Point("allreduce", DType.FLOAT32, 1 << 10)
    turns = turns_of(2)

    with pytest.raises(Spent):
        one.compete(contestants, 1.0, Turns(turns - 1))
    assert not one.is_finished and str(one.winner) == "builtin"

    one.compete(contestants, 1.0, Turns(turns))
    assert one.is_finished and str(one.winner) == "builtin/ring"


def test_no_turn_begins_that_would_exceed_the_budget_by_the_clock_of_rank_0(monkeypatch):
    clock = threading.local()
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: getattr(clock, "now", 0.0)))

    def body(engine):
        clock.now, turns = 0.0, 0

        def measure():
            clock.now += 3.0 if engine.rank == 0 else 100.0

        whole = budget.Budget(engine, 10.0)
        part = whole.part(7.0)
        try:
            while True:
                part.turn(measure)
                turns += 1
        except Spent:
            return turns, part.left_s(), whole.left_s()

    assert run_ranks(2, body, timeout=60) == [(2, 1.0, 4.0)] * 2


@pytest.mark.parametrize(
    ("beside", "size", "expected"),
    [
        (0.5, 1 << 10, "mpi"),  # faster alone and in company
        (3.0, 1 << 10, "builtin/ring"),  # alone only: the best of the job's own backend
        (3.0, 1 << 24, "mpi"),  # so long that its parts are company
    ],
)
def test_another_backend_has_to_win_in_company(monkeypatch, beside, size, expected):
    contestants = Played(
        monkeypatch,
        {"builtin": 1.0, "builtin/ring": 0.8, "builtin/direct": 2.0, "mpi": 0.6},
        {"builtin": 1.0, "mpi": beside},
    )
    one = point.Point("allreduce", DType.FLOAT32, size)

    one.compete(contestants, 1.0, Turns(1000))

    assert str(one.winner) == expected
    assert str(one.win(DType.FLOAT32).candidate) == expected


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
        progress.end(4, 119.6)
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
        (["table.json"], "the argument table.json is unknown. See rabitrun tune --help."),
    ],
)
def test_mistakes_on_the_command_line_are_told(words, said):
    with pytest.raises(InvalidArgument) as told:
        parse_tune(words)

    assert said in str(told.value)


def finished(size, candidate):
    found = point.Point("allreduce", DType.FLOAT32, size)
    found.winner = candidate
    found.figures = {candidate: Figures(found.spec(), 2, size // 4, size, (1.0,), 0, str(candidate))}
    return found


def test_what_was_not_measured_ends_the_rules_of_what_was():
    ring = Candidate("builtin", "ring")
    points = [finished(1024, Candidate("builtin")), finished(4096, ring)]
    points += [point.Point("allreduce", DType.FLOAT32, size) for size in (16384, 65536)]
    points[2].winner = ring  # It is in the middle of its turns.

    winners = winners_so_far(points, DType.FLOAT32, ["builtin"])

    assert rules_of(winners, {Candidate("builtin")}) == "allreduce:2048-8192:builtin/ring"


def test_a_mix_that_was_not_played_keeps_to_the_backend_of_the_job():
    ring = Candidate("builtin", "ring")
    points = [finished(1024, ring), finished(4096, Candidate("mpi"))]
    points.append(point.Point("allreduce", DType.FLOAT32, 16384))

    winners = winners_so_far(points, DType.FLOAT32, ["builtin", "mpi"])

    assert rules_of(winners) == "allreduce:<2048:builtin/ring;allreduce:>=2048:builtin"
