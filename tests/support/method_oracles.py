"""What gradient methods are to do, in NumPy that has the gradients of all ranks in one place.

An oracle of a method is a function (gradients, first, lr) -> parameters: gradients[step, rank, ...] become the
parameters[step, rank, ...] after each step, from `first` on all ranks, where the optimizer is plain descent.  Those
below are made of smaller ones:

an encoding    x -> what arrives of x
an exchange    a maker of a function xs[rank, ...] -> (the value that all ranks get, what each has sent), which may
               keep something from call to call
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import rabit.strategies as methods

Array = np.ndarray
Encoding = Callable[[Array], Array]
Step = Callable[[Array], tuple[Array, Array]]
Exchange = Callable[[], Step]
Moves = Callable[[Array, Array, float], Array]


@dataclass(frozen=True)
class Oracle:
    """moves: see above.  given: the arguments of the text that it is of; small parameters are encoded too.

    is_expected: of a method that draws: what it comes to in the mean of many steps with the same gradients.
    of_mean: of the mean of the ranks alone, in the end.
    few_rows: gradients have rows of zeros, others on each rank.
    """

    moves: Moves
    given: str = ""
    is_expected: bool = False
    of_mean: bool = False
    few_rows: bool = False


def in_the_mean(exchange: Exchange, given: str = "") -> Oracle:
    """Of a method that draws."""
    return Oracle(descends(exchange), given, is_expected=True)


# --- exchanges --------------------------------------------------------------------------------------


def mean() -> Step:
    return lambda xs: (xs.mean(axis=0), xs)


def by_blocks(encoding: Callable[[Array, int], Array], block: int) -> Encoding:
    """An encoding of float32 that sees one block at a time, as those of the engine do."""

    def of_all(x: Array) -> Array:
        flat = x.reshape(-1).astype(np.float32)
        parts = [encoding(flat[at : at + block], 0) for at in range(0, flat.size, block)]
        return np.concatenate(parts).reshape(x.shape)

    return of_all


def largest(ratio: float) -> Encoding:
    def encode(x: Array) -> Array:
        flat, kept = x.reshape(-1), np.zeros(x.size)
        chosen = np.argsort(-np.abs(flat), kind="stable")[: max(1, round(ratio * x.size))]
        kept[chosen] = flat[chosen]
        return kept.reshape(x.shape)

    return encode


def gathered(encoding: Encoding) -> Exchange:
    def step(xs: Array) -> tuple[Array, Array]:
        sent = np.stack([encoding(x) for x in xs]).astype(np.float64)
        return sent.mean(axis=0), sent

    return lambda: step


def two_phases(encoding: Encoding, *, keeps: bool = False) -> Exchange:
    """keeps: what the sums lose is added to the next ones."""

    def make() -> Step:
        left: Any = np.float32(0)

        def step(xs: Array) -> tuple[Array, Array]:
            nonlocal left
            sent = np.stack([encoding(x) for x in xs]).astype(np.float32)
            total = np.zeros_like(sent[0])
            for each in sent:
                total += each
            total = total + left
            value = encoding(total)
            left = total - value if keeps else left
            return value.astype(np.float64) / len(xs), sent.astype(np.float64)

        return step

    return make


def fed_back(inner: Exchange, decay: float = 1.0) -> Exchange:
    def make() -> Step:
        step, left = inner(), np.float64(0)

        def around(xs: Array) -> tuple[Array, Array]:
            nonlocal left
            whole = xs + decay * left
            value, sent = step(whole)
            left = whole - sent
            return value, xs

        return around

    return make


def differences(inner: Exchange) -> Exchange:
    """EF21."""

    def make() -> Step:
        step, known = inner(), np.float64(0)

        def around(xs: Array) -> tuple[Array, Array]:
            nonlocal known
            known = known + step(xs - known)[1]
            return known.mean(axis=0), known

        return around

    return make


def local_momentum(inner: Exchange, rate: float) -> Exchange:
    def make() -> Step:
        step, v = inner(), np.float64(0)

        def around(xs: Array) -> tuple[Array, Array]:
            nonlocal v
            v = (1 - rate) * v + rate * xs
            return step(v)

        return around

    return make


def momentum_correction(inner: Exchange, momentum: float) -> Exchange:
    """DGC: what was sent starts from zero, its momentum too."""

    def make() -> Step:
        step, u, v = inner(), np.float64(0), np.float64(0)

        def around(xs: Array) -> tuple[Array, Array]:
            nonlocal u, v
            u = momentum * u + xs
            v = v + u
            value, sent = step(v)
            u, v = u * (sent == 0), v * (sent == 0)
            return value, sent

        return around

    return make


def clipped(inner: Exchange, deviations: float) -> Exchange:
    def make() -> Step:
        step = inner()

        def around(xs: Array) -> tuple[Array, Array]:
            most = deviations * np.sqrt(
                np.square(xs).mean(axis=tuple(range(1, xs.ndim)), keepdims=True)
            )
            return step(np.clip(xs, -most, most))

        return around

    return make


def low_rank(rank: int) -> Exchange:
    """PowerSGD."""

    def make() -> Step:
        q: Any = None

        def step(xs: Array) -> tuple[Array, Array]:
            nonlocal q
            if q is None:
                q = methods.generator(0, "w", 0).standard_normal((xs.shape[2], rank))
            p = np.linalg.qr(xs.mean(axis=0) @ q)[0]
            q = xs.mean(axis=0).T @ p
            return p @ q.T, p @ (p.T @ xs)

        return step

    return make


def accordion(low: Exchange, high: Exchange, interval: int, eta: float = 0.5) -> Exchange:
    """At a constant learning rate."""

    def make() -> Step:
        both, total, before, number, is_critical = (low(), high()), np.float64(0), 0.0, 0, True

        def step(xs: Array) -> tuple[Array, Array]:
            nonlocal total, before, number, is_critical
            if number and number % interval == 0:
                norm = float(np.linalg.norm(total))
                is_critical = not before or abs(before - norm) >= eta * before
                before, total = norm, np.float64(0)
            number += 1
            value, sent = both[0 if is_critical else 1](xs)
            total = total + value
            return value, sent

        return step

    return make


def adaptive_sum() -> Step:
    def combined(a: Array, b: Array) -> Array:
        dot = (a * b).sum()
        return (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b

    def step(xs: Array) -> tuple[Array, Array]:
        vectors = list(xs)
        while len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2], strict=False)
            vectors = [combined(a, b) for a, b in pairs] + vectors[len(vectors) // 2 * 2 :]
        return vectors[0], xs

    return step


def frequencies(momentum: float, chunk: int, count: int) -> Exchange:
    """DeMo, with signs; what is reduced has whole chunks."""
    places = np.arange(chunk)
    basis = np.sqrt(2 / chunk) * np.cos(np.pi * places[:, None] * (places + 0.5) / chunk)
    basis[0] /= np.sqrt(2)

    def make() -> Step:
        m = np.float64(0)

        def step(xs: Array) -> tuple[Array, Array]:
            nonlocal m
            m = momentum * m + xs
            waves = m.reshape(len(xs), -1, chunk) @ basis.T
            bar = np.sort(np.abs(waves), axis=2)[:, :, -count, None]
            kept = np.where(np.abs(waves) >= bar, waves, 0)
            senders = np.maximum((kept != 0).sum(axis=0), 1)
            m = m - (kept @ basis).reshape(m.shape)
            return np.sign((kept.sum(axis=0) / senders) @ basis).reshape(xs.shape[1:]), xs

        return step

    return make


# --- methods ----------------------------------------------------------------------------------------


def descends(exchange: Exchange) -> Moves:
    """Every gradient in every step."""

    def moves(gradients: Array, first: Array, lr: float) -> Array:
        step, x, found = exchange(), first, []
        for xs in gradients:
            x = x - lr * step(xs)[0]
            found.append(np.stack([x] * len(xs)))
        return np.stack(found)

    return moves


def by_samples(gradients: Array, first: Array, lr: float) -> Array:
    """Any batch: gradients are sums over as many samples as `samples_of` says."""
    total = sum(samples_of(rank) for rank in range(gradients.shape[1]))
    return descends(lambda: lambda xs: (xs.sum(axis=0) / total, xs))(gradients, first, lr)


def samples_of(rank: int) -> int:
    """What each rank has managed in a step."""
    return 1 + rank % 3


Outer = Callable[[Array, Array, Any, float], tuple[Array, Any]]


def take_mean(anchor: Array, move: Array, memory: Any, lr: float) -> tuple[Array, Any]:
    return anchor - move, memory


def slow_momentum(alpha: float, beta: float) -> Outer:
    def outer(anchor: Array, move: Array, memory: Any, lr: float) -> tuple[Array, Any]:
        memory = beta * memory + move / lr
        return anchor - alpha * lr * memory, memory

    return outer


def nesterov(rate: float, momentum: float) -> Outer:
    def outer(anchor: Array, move: Array, memory: Any, lr: float) -> tuple[Array, Any]:
        memory = momentum * memory + move
        return anchor - rate * (move + momentum * memory), memory

    return outer


def alone(
    every: int,
    outer: Outer = take_mean,
    exchange: Exchange = mean,
    *,
    meets: int = 0,
    delay: int = 0,
    mix: float = 0.0,
) -> Moves:
    """Local SGD: ranks step alone and meet after `every` steps, at first after `meets`; 0: `every`."""

    def moves(gradients: Array, first: Array, lr: float) -> Array:
        step, anchor, memory, found = exchange(), first, np.float64(0), []
        xs, move = np.stack([first] * gradients.shape[1]), None
        for number, gs in enumerate(gradients, 1):
            xs = xs - lr * gs
            begun = number - delay
            if number % every == (meets or every) % every:
                move = step(anchor - xs)[0]
            if move is not None and begun % every == (meets or every) % every:
                anchor, memory = outer(anchor, move, memory, lr)
                xs = mix * xs + (1 - mix) * anchor
            found.append(xs)
        return np.stack(found)

    return moves


def averages(weights: Array, *, samples: bool = False, late: bool = False) -> Moves:
    """x_i = Σ P_ij x_j after every step; `late`, before the next one.  samples: gradients and weights are by those."""

    def moves(gradients: Array, first: Array, lr: float) -> Array:
        ranks = range(gradients.shape[1])
        counts = np.array([samples_of(rank) if samples else 1.0 for rank in ranks])
        shares = weights * counts / (weights @ counts)[:, None]
        xs, found = np.stack([first] * len(counts)), []
        each = counts.reshape(-1, *[1] * first.ndim)
        for number, gs in enumerate(gradients):
            if late and number:
                xs = np.tensordot(shares, xs, 1)
            xs = xs - lr * gs / each
            if not late:
                xs = np.tensordot(shares, xs, 1)
            found.append(xs)
        return np.stack(found)

    return moves


RING = np.array([[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1]]) / 3  # of 4 ranks
ALL = np.full((4, 4), 0.25)


def ring_of_differences(encoding: Encoding) -> Moves:
    """Low-precision decentralized: y = x + l/3 + r/3 - 5/3·z; z = z + D(C(y)) on each rank, and x = z."""

    def moves(gradients: Array, first: Array, lr: float) -> Array:
        z, found = np.stack([first] * gradients.shape[1]), []
        for gs in gradients:
            near = np.roll(z, 1, axis=0) + np.roll(z, -1, axis=0)
            y = z - lr * gs + near / 3 - 5 / 3 * z
            z = z + np.stack([encoding(each) for each in y])
            found.append(z)
        return np.stack(found)

    return moves


def adam(exchange: Exchange, warmup: int) -> Moves:
    """1-bit Adam and QAdam: the momentum travels from `warmup` on, and the variance stays."""

    def moves(gradients: Array, first: Array, lr: float) -> Array:
        step, x, m, v, found = exchange(), first, np.float64(0), np.float64(0), []
        for now, gs in enumerate(gradients, 1):
            if now <= warmup:
                g = gs.mean(axis=0)
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            else:
                m = step(0.9 * m + 0.1 * gs)[0]
            root = np.sqrt(v / (1 - 0.999 ** min(now, warmup))) + 1e-8
            x = x - lr * m / root / (1 - 0.9**now)
            found.append(np.stack([x] * len(gs)))
        return np.stack(found)

    return moves


def lamb(exchange: Exchange, warmup: int) -> Moves:
    """1-bit LAMB: the mean ratio of the warm-up is scaled by the variance that continues."""

    def moves(gradients: Array, first: Array, lr: float) -> Array:
        step, x, found = exchange(), first, []
        m, v, w, trust, factor = np.float64(0), np.float64(0), np.float64(0), 0.0, 1.0
        for number, gs in enumerate(gradients):
            before = m
            m = gs.mean(axis=0) * 0.1 + 0.9 * m if number < warmup else step(0.9 * m + 0.1 * gs)[0]
            g = (m - 0.9 * before) / 0.1
            w = 0.999 * w + 0.001 * g * g
            v = w if number < warmup else v
            u = m / (np.sqrt(v) + 1e-6)
            if number < warmup:
                ratio = np.clip(np.linalg.norm(x) / np.linalg.norm(u), 0.01, 10)
                trust = 0.9 * trust + 0.1 * ratio
            else:
                wanted = np.max((np.sqrt(v) + 1e-6) / (np.sqrt(w) + 1e-6))
                factor = np.clip(np.clip(wanted, 0.9 * factor, 1.1 * factor), 0.5, 4.0)
                ratio = factor * trust / (1 - 0.9**warmup)
            x = x - lr * ratio * u
            found.append(np.stack([x] * len(gs)))
        return np.stack(found)

    return moves


def zero_one_adam(exchange: Exchange, refreshed: set[int], met: set[int]) -> Moves:
    """0/1 Adam: the variance takes the mean gradient in the steps `refreshed`, and ranks meet after those of `met`."""
    most = 0.1 / np.sqrt(0.001 * (1 - 0.81 / 0.999))

    def moves(gradients: Array, first: Array, lr: float) -> Array:
        step, together, v, times, rates, found = exchange(), first, np.float64(0), 0, 0.0, []
        xs = np.stack([first] * gradients.shape[1])
        ms, us = np.zeros_like(xs), np.zeros_like(xs)
        for number, gs in enumerate(gradients):
            if number in refreshed:
                gs = np.stack([gs.mean(axis=0)] * len(gs))
                v, times = 0.999 * v + 0.001 * gs[0] ** 2, times + 1
            root = np.sqrt(v / (1 - 0.999**times)) + 1e-8
            rate = lr / (1 - 0.9 ** (number + 1))
            ms, rates = 0.9 * ms + 0.1 * gs, rates + rate
            us = us + rate * ms
            xs = xs - np.clip(rate * ms / root, -most * rate, most * rate)
            if number in met:
                all_of_it = us[0] if number in refreshed else step(us)[0]
                together = together - np.clip(all_of_it / root, -most * rates, most * rates)
                xs, ms = np.stack([together] * len(gs)), np.stack([all_of_it / rates] * len(gs))
                us, rates = np.zeros_like(us), 0.0
            found.append(xs)
        return np.stack(found)

    return moves
