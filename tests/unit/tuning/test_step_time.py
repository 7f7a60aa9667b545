"""The predicted step times: closed forms, bounds, and agreement with an event simulation."""

from __future__ import annotations

import math
import random

import pytest

from rabit.tuning.step_time import (
    Layer,
    Link,
    barrier,
    best_mode,
    best_partition,
    crossing,
    dear,
    predict,
    sequential,
)


def layers_of(*rows: tuple[float, float, int]) -> list[Layer]:
    return [Layer(*row) for row in rows]


def random_chain(seed: int) -> tuple[list[Layer], list[float]]:
    chooser = random.Random(seed)
    layers = [
        Layer(chooser.uniform(0, 1), chooser.uniform(0, 2), 4) for _ in range(chooser.randint(1, 9))
    ]
    return layers, [chooser.uniform(0, 2) * chooser.random() for _ in layers]


def simulated(layers: list[Layer], costs: list[float], *, has_barrier: bool) -> float:
    """A step, tick by tick: the link works on the first needed of what is ready."""
    ready, clock = [0.0] * len(layers), 0.0
    for index in reversed(range(len(layers))):
        clock += layers[index].backward
        ready[index] = clock
    left, done, now = list(costs), [0.0] * len(layers), 0.0
    for moment in [*sorted(ready), math.inf]:
        for index in range(len(layers)):
            if ready[index] < moment and left[index] > 0 and now < moment:
                start = max(now, ready[index])
                spent = min(left[index], moment - start)
                left[index] -= spent
                now = start + spent
                done[index] = now
    done = [max(d, r) for d, r in zip(done, ready, strict=True)]
    if has_barrier:
        clock = max([clock, *done])
    for index, layer in enumerate(layers):
        clock = max(clock, done[index]) + layer.forward
    return clock


def test_one_layer_cannot_overlap():
    layers, costs = layers_of((1, 2, 4)), [5.0]

    assert sequential(layers, costs) == crossing(layers, costs) == barrier(layers, costs) == 8
    assert dear(layers, costs) == 8


def test_two_layers_by_hand():
    layers, costs = layers_of((1, 1, 4), (1, 2, 4)), [3.0, 1.0]

    # Gradient 2 is there at 2 and sent by 3; gradient 1 is there at 3 and sent by 6; then forward.
    assert barrier(layers, costs) == 8
    assert crossing(layers, costs) == 8
    # Now the large one is needed late: it is sent behind forward 1.
    assert barrier(layers, [1.0, 3.0]) == 8
    assert crossing(layers, [1.0, 3.0]) == 7
    # 1.5 of 3 behind backward 1 and what is left; then 0.5 of 1 before forward 1, 1.5 of 3 beside.
    assert dear(layers, [1.0, 3.0]) == pytest.approx(2 + 1.5 + 0.5 + 0.5 + 1.5 + 1)


def test_without_communication_every_mode_computes():
    layers, costs = layers_of((1, 2, 4), (3, 4, 4)), [0.0, 0.0]

    assert barrier(layers, costs) == crossing(layers, costs) == dear(layers, costs) == 10


@pytest.mark.parametrize("seed", range(100))
def test_formulas_agree_with_a_simulation(seed):
    layers, costs = random_chain(seed)

    assert crossing(layers, costs) == pytest.approx(simulated(layers, costs, has_barrier=False))
    assert barrier(layers, costs) == pytest.approx(simulated(layers, costs, has_barrier=True))


@pytest.mark.parametrize("seed", range(100))
def test_modes_keep_their_order_and_their_bounds(seed):
    layers, costs = random_chain(seed)
    computing = sum(each.forward + each.backward for each in layers)
    forward = sum(each.forward for each in layers)
    least, most = crossing(layers, costs), barrier(layers, costs)

    assert max(computing, sum(costs)) <= least + 1e-12
    assert least <= most + 1e-12 <= sequential(layers, costs) + 2e-12
    assert most - least <= forward + 1e-12  # what crossing the barrier can gain at all
    assert least <= dear(layers, costs) + 1e-12


def test_uniform_chain_gains_a_third_where_communication_equals_computation():
    count = 300
    layers = [Layer(1 / count, 2 / count, 4)] * count
    costs = [3 / count] * count

    assert barrier(layers, costs) / crossing(layers, costs) == pytest.approx(4 / 3, rel=0.01)
    assert dear(layers, costs) / crossing(layers, costs) == pytest.approx(7 / 6, rel=0.01)


def test_partition_balances_overhead_and_delay():
    link = Link(seconds_per_byte=12.5e-9, latency=0.5e-3)
    best = best_partition(80_000_000, link)

    def extra(size: float) -> float:
        return 80e6 / size * link.latency + size * link.seconds_per_byte

    assert extra(best) <= min(extra(best * 1.1), extra(best / 1.1))
    assert best == pytest.approx(math.sqrt(80e6 * 0.5e-3 / 12.5e-9), abs=1)
    assert best_partition(1000, Link(0.0)) == 1000
    assert best_partition(1000, Link(1e-9, 0.0)) == 1


def test_prediction_counts_latency_by_the_part_and_never_loses_to_the_barrier():
    layers = [Layer(0.01, 0.02, 1 << 20)] * 30
    plain = predict(layers, Link(30e-9), 1 << 20, 2 << 20)
    dear_link = predict(layers, Link(30e-9, 0.01), 1 << 20, 2 << 20)

    assert plain["crossing"] < plain["barrier"]
    assert dear_link["barrier"] > plain["barrier"] + 0.2
    tiny = predict(layers, Link(1e-12), 1 << 20, 1 << 40)
    assert tiny["crossing"] <= tiny["barrier"]


@pytest.mark.parametrize(
    ("seconds_per_byte", "expected"),
    [
        (1e-10, "barrier"),  # communication is hidden anyway
        (30e-9, "crossing"),  # as long as the computation
        (1e-3, "barrier"),  # the forward is nothing beside it
    ],
)
def test_best_mode_changes_only_where_it_gains(seconds_per_byte, expected):
    layers = [Layer(0.01, 0.02, 1 << 20)] * 30

    assert best_mode(predict(layers, Link(seconds_per_byte), 1 << 20, 2 << 20)) == expected


def test_best_mode_prefers_the_simplest_of_equals():
    assert best_mode({"dear": 1.0, "crossing": 1.0, "barrier": 1.01}) == "barrier"
    assert best_mode({"dear": 1.0, "crossing": 1.5, "barrier": 2.0}) == "dear"
