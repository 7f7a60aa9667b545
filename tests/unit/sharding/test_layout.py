"""A layout divides every element once, by rows, and moves between numbers of ranks."""

from __future__ import annotations

import random

import pytest

from rabit.errors import InvalidArgument
from rabit.sharding import Entry, FlatLayout, rank_bytes, wire_bytes

MODEL = [
    Entry("embedding", (103,), "float32"),
    Entry("weight", (33, 65), "float32"),
    Entry("scalar", (), "float32"),
    Entry("empty", (0, 4), "float32"),
    Entry("half", (70,), "float16"),
    Entry("frozen", (64, 2), "float32", is_trained=False),
    Entry("head", (5, 13), "float32", group=1),
    Entry("unit weight", (129,), "float32", unit="layer.0"),
]


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7, 64])
def test_every_element_has_one_owner(parts):
    layout = FlatLayout(MODEL, parts)

    for entry in MODEL:
        owned = [layout.slice_of(entry.name, rank) for rank in range(parts)]
        elements = [
            (element, rank)
            for rank, part in enumerate(owned)
            for element in range(part.start, part.start + part.length)
        ]
        assert [element for element, _ in elements] == list(range(entry.count))
        assert all(layout.owner(entry.name, element) == rank for element, rank in elements)


def test_cuts_are_at_multiples_of_the_block():
    layout = FlatLayout(MODEL, 3, block=64)

    starts = [layout.slice_of(entry.name, rank).start for entry in MODEL for rank in range(3)]

    assert all(start % 64 == 0 for start in starts)


def test_a_tensor_of_two_rows_on_four_ranks():
    layout = FlatLayout([Entry("x", (103,), "float32")], 4)

    assert [layout.slice_of("x", rank).length for rank in range(4)] == [64, 39, 0, 0]


def test_flats_hold_what_is_equal_in_unit_type_group_and_training():
    layout = FlatLayout(MODEL, 2)

    assert {flat.name: [entry.name for entry in flat.entries] for flat in layout.flats} == {
        "float32": ["embedding", "weight", "scalar", "empty"],
        "float16": ["half"],
        "float32.frozen": ["frozen"],
        "float32.group1": ["head"],
        "layer.0.float32": ["unit weight"],
    }


@pytest.mark.parametrize(("before", "after"), [(4, 3), (4, 4), (3, 4), (1, 7), (8, 7), (2, 1)])
def test_moves_turn_one_division_into_another(before, after):
    source, target = FlatLayout(MODEL, before), FlatLayout(MODEL, after)
    owners = {
        (entry.name, element): source.owner(entry.name, element)
        for entry in MODEL
        for element in range(entry.count)
    }

    for move in source.moves(target):
        for element in range(move.start, move.start + move.length):
            assert owners[move.name, element] == move.source
            owners[move.name, element] = move.target

    assert all(owner == target.owner(*place) for place, owner in owners.items())


@pytest.mark.parametrize(
    ("before", "after", "lost", "share"), [(4, 3, 3, 1 / 2), (4, 3, 1, 1 / 3), (3, 4, None, 1 / 2)]
)
def test_a_change_of_the_number_of_ranks_moves_little(before, after, lost, share):
    entries = [Entry("x", (before * after * 6400,), "float32")]
    source, target = FlatLayout(entries, before), FlatLayout(entries, after)
    # Ranks above the lost one have the next lower numbers afterwards.
    stays = sum(
        source.owner("x", element) - (lost is not None and source.owner("x", element) > lost)
        == target.owner("x", element)
        and source.owner("x", element) != lost
        for element in range(0, entries[0].count, 64)
    )

    assert 1 - stays * 64 / entries[0].count == pytest.approx(share, abs=0.01)


def test_digests_tell_layouts_apart():
    changed = [MODEL[1], MODEL[0], *MODEL[2:]]

    assert FlatLayout(MODEL, 2).digest() == FlatLayout(list(MODEL), 2).digest()
    digests = {
        FlatLayout(entries, parts, block).digest()
        for entries, parts, block in [
            (MODEL, 2, 64),
            (MODEL, 3, 64),
            (MODEL, 2, 32),
            (changed, 2, 64),
        ]
    }
    assert len(digests) == 4


def test_a_name_that_occurs_twice_is_refused():
    with pytest.raises(InvalidArgument, match="'embedding' is listed twice"):
        FlatLayout([MODEL[0], MODEL[0]], 2)


# Bytes per parameter: 16 of DDP with Adam in float32, 8 + 8/N, 4 + 12/N and 16/N (Rajbhandari et al., 2020).
@pytest.mark.parametrize(
    ("shard", "per_parameter"),
    [(None, 16), ("optimizer", 10), ("gradients", 7), ("parameters", 4)],
)
def test_bytes_of_a_rank_follow_the_formula(shard, per_parameter):
    layout = FlatLayout([Entry(f"w{i}", (640, 100), "float32") for i in range(4)], 4)

    assert rank_bytes(layout, shard).total == per_parameter * 4 * 64_000


@pytest.mark.parametrize(
    ("shard", "micro_steps", "whole_models"),
    [
        (None, 1, 2),
        ("optimizer", 4, 2),
        ("gradients", 4, 5),
        ("parameters", 1, 3),
        ("parameters", 4, 12),
    ],
)
def test_bytes_on_the_wire_follow_the_formula(shard, micro_steps, whole_models):
    layout = FlatLayout([Entry("w", (640, 100), "float32")], 4)

    assert wire_bytes(layout, shard, micro_steps) == whole_models * 3 * 4 * 64_000


def test_frozen_tensors_have_no_gradient_and_no_state():
    layout = FlatLayout([Entry("w", (64,), "float32", is_trained=False)], 2)

    assert rank_bytes(layout, "optimizer") == (256, 0, 0)
    assert wire_bytes(layout, "optimizer") == 0


def test_an_unknown_stage_lists_the_known_ones():
    with pytest.raises(
        InvalidArgument, match="shard is 'zero3'; expected one of None, 'optimizer'"
    ):
        rank_bytes(FlatLayout(MODEL, 2), "zero3")


def test_random_models_are_divided_evenly_to_one_row():
    choose = random.Random(7)
    for _ in range(50):
        parts = choose.randint(1, 9)
        entries = [
            Entry(f"t{i}", (choose.randint(0, 900),), "float32")
            for i in range(choose.randint(1, 9))
        ]
        layout = FlatLayout(entries, parts)
        for flat in layout.flats:
            rows = [layout.part(flat, rank).length for rank in range(parts)]
            assert max(rows) - min(rows) <= 1
            assert sum(rows) == flat.rows
