"""How long a training step takes, predicted from what was measured; and which mode is best.

The model: layers compute in order, forward and then backward; the gradient of a layer is complete
when its backward is; one link carries one gradient at a time, layer i for c_i seconds.  Where every
piece can be preempted at no cost these are exact: `barrier` is what no order of communication beats
while the update waits for all gradients, `crossing` what nothing beats at all (scheduling with
release dates and delivery tails; the proof is in docs/explain/scheduling.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["MODES", "Layer", "Link", "best_mode", "best_partition", "predict"]

# From the simplest to the one that changes most: a tie goes to the first.
MODES = ("barrier", "crossing", "dear")


@dataclass(frozen=True)
class Layer:
    """A point where the forward waits: its compute times in seconds, its gradient in bytes."""

    forward: float
    backward: float
    bytes: int


@dataclass(frozen=True)
class Link:
    """A line through measured times of one collective: latency + seconds_per_byte * bytes."""

    seconds_per_byte: float
    latency: float = 0.0


def best_partition(bytes_in_all: int, link: Link) -> int:
    """The size of a part, in bytes, at which overhead and delay of urgent parts are least in sum.

    Parts of p bytes cost bytes_in_all / p latencies, and an urgent one waits for p bytes.
    """
    if link.seconds_per_byte <= 0:
        return max(1, bytes_in_all)
    return max(1, round(math.sqrt(bytes_in_all * link.latency / link.seconds_per_byte)))


def sequential(layers: Sequence[Layer], costs: Sequence[float]) -> float:
    """Nothing overlaps."""
    return sum(layer.forward + layer.backward for layer in layers) + sum(costs)


def barrier(layers: Sequence[Layer], costs: Sequence[float]) -> float:
    """Communication overlaps with the backward; the forward waits for all of it."""
    return sum(layer.forward for layer in layers) + _latest(costs, [later.backward for later in layers])


def crossing(layers: Sequence[Layer], costs: Sequence[float]) -> float:
    """Layer i of the next forward waits for gradient i alone, and what is needed first goes first."""
    return _latest(costs, [layer.forward + layer.backward for layer in layers])


def dear(layers: Sequence[Layer], costs: Sequence[float]) -> float:
    """Reduce-scatter during the backward, all-gather during the next forward, a barrier between."""
    halves = [cost / 2 for cost in costs]
    return _latest(halves, [later.backward for later in layers]) + _latest(
        halves, [layer.forward for layer in layers]
    )


def predict(
    layers: Sequence[Layer], link: Link, partition_bytes: int, credit_bytes: int
) -> dict[str, float]:
    """Seconds of a step for each of MODES.

    Small neighbours travel together, so that latencies are paid by the part and not by the layer.
    What is urgent waits for the credit that is out, where it can come in between at all.
    """
    costs = [
        later.bytes * (link.seconds_per_byte + link.latency / partition_bytes) for later in layers
    ]
    ideal = {
        "barrier": barrier(layers, costs),
        "crossing": crossing(layers, costs),
        "dear": dear(layers, costs),
    }
    # Alone on the link at the end of the step, the last part does not overlap with another.
    delay = link.latency
    in_flight = min(credit_bytes, sum(layer.bytes for layer in layers)) * link.seconds_per_byte
    return {
        "barrier": ideal["barrier"] + delay,
        "crossing": min(ideal["crossing"] + delay + in_flight, ideal["barrier"] + delay),
        "dear": ideal["dear"] + 2 * delay,
    }


def best_mode(predicted: Mapping[str, float], margin: float = 0.02) -> str:
    """The simplest mode that is within `margin` of the fastest."""
    limit = min(predicted.values()) * (1 + margin)
    return next(mode for mode in MODES if mode in predicted and predicted[mode] <= limit)


def _latest(costs: Sequence[float], tails: Sequence[float]) -> float:
    """max over i of costs[0..i] + tails[i..end]."""
    behind = sum(tails)
    before = latest = 0.0
    for cost, tail in zip(costs, tails, strict=True):
        before += cost
        latest = max(latest, before + behind)
        behind -= tail
    return max(latest, sum(tails))
