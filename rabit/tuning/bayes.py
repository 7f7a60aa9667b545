"""Bayesian optimisation of a few knobs: a Gaussian process and expected improvement, in NumPy.

Points lie in the unit cube, values are minimised, at most a few hundred of them.  Sources: Rasmussen
and Williams, Gaussian Processes for Machine Learning, 2006 (algorithm 2.1, Matérn 5/2, marginal
likelihood); Jones, Schonlau and Welch, Efficient Global Optimization, 1998 (expected improvement).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

__all__ = ["GaussianProcess", "Minimizer", "expected_improvement"]

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.floating[Any]]
else:
    Array = np.ndarray

# What the fit tries.  Lengths are in units of the cube's edge, noise is the standard deviation of a
# measurement in units of that of the function.
_LENGTHS = tuple(float(length) for length in np.geomspace(0.08, 4.0, 9))
_NOISES = (0.003, 0.03, 0.1, 0.25, 0.5, 0.9)
# A few points fit any length: in doubt the function is smooth over half of the cube.
_USUAL_LENGTH, _LENGTH_SPREAD = 0.5, 1.0
_SWEEPS = 2
# The first points are the farthest of this many random ones.
_SPREAD_AMONG = 64
# Values that lie higher above the lowest than this many times the median are cut off.
_CLIP = 2.0

_erf = np.vectorize(math.erf, otypes=[np.float64])


def expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """How much lower than `best` a value is on average, if it is normal; where higher, by nothing.

    mean, deviation: shape (n,); deviation is not negative.
    """
    gain = best - mean
    z = np.clip(gain / np.maximum(deviation, 1e-300), -40.0, 40.0)
    below = 0.5 * (1.0 + _erf(z / math.sqrt(2.0)))
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    improvement = gain * below + deviation * density
    return np.maximum(np.where(deviation > 0.0, improvement, gain), 0.0)


class GaussianProcess:
    """A smooth random function with a constant mean, known at some points but for noise.

    dimensions: of the points.
    categorical: which of them are names and not numbers: two values are equal or not, no more.
    """

    def __init__(self, dimensions: int, categorical: Sequence[int] = ()) -> None:
        self.lengths: Array = np.full(dimensions, _USUAL_LENGTH)
        self.noise = _NOISES[0]
        self.scale = 1.0  # standard deviation of the function, in units of the values
        self._is_name = np.isin(np.arange(dimensions), np.asarray(categorical, dtype=int))
        self._points: Array = np.zeros((0, dimensions))
        self._shift = 0.0
        self._factor: Array = np.zeros((0, 0))
        self._weights: Array = np.zeros(0)

    def fit(self, points: Array, values: Array) -> None:
        """Learns from `values` (n,) at `points` (n, dimensions), and chooses lengths and noise.

        Of a grid the likeliest: first one length for all dimensions, then one after the other.
        """
        points, values = np.asarray(points, np.float64), np.asarray(values, np.float64)
        squares = self._squares(points, points)
        centred = values - values.mean()
        dimensions = points.shape[1]
        trials = [(np.full(dimensions, length), noise) for length in _LENGTHS for noise in _NOISES]
        best = max(trials, key=lambda trial: self._likelihood(squares, centred, *trial))
        for _ in range(_SWEEPS if dimensions > 1 else 0):
            for dimension in range(dimensions):
                trials = [best]
                for length in _LENGTHS:
                    lengths: Array = np.array(best[0])
                    lengths[dimension] = length
                    trials.append((lengths, best[1]))
                best = max(trials, key=lambda trial: self._likelihood(squares, centred, *trial))
        self.condition(points, values, *best)

    def condition(self, points: Array, values: Array, lengths: Array, noise: float) -> None:
        """Learns from `values` at `points`, with lengths and noise as given."""
        self.lengths, self.noise = np.asarray(lengths, np.float64), noise
        self._points = np.asarray(points, np.float64)
        values = np.asarray(values, np.float64)
        self._shift = float(values.mean())
        covariance = self._correlation(self._squares(self._points, self._points), self.lengths)
        covariance[np.diag_indices_from(covariance)] += noise * noise + 1e-10
        self._factor = np.linalg.cholesky(covariance)
        half = np.linalg.solve(self._factor, values - self._shift)
        self._weights = np.linalg.solve(self._factor.T, half)
        # The likeliest scale has a closed form; without any spread one is as good as another.
        self.scale = math.sqrt(max(float(half @ half) / len(values), 1e-300))

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the function at `points`, shape (n,) each.  No noise."""
        points = np.asarray(points, np.float64)
        cross = self._correlation(self._squares(points, self._points), self.lengths)
        mean = self._shift + cross @ self._weights
        half = np.linalg.solve(self._factor, cross.T)
        variance = np.maximum(1.0 - np.sum(half * half, axis=0), 0.0)
        return mean, self.scale * np.sqrt(variance)

    def _squares(self, a: Array, b: Array) -> Array:
        """Squared difference in each dimension, shape (len(a), len(b), dimensions)."""
        difference = a[:, None, :] - b[None, :, :]
        return np.where(self._is_name, (difference != 0.0).astype(np.float64), difference**2)

    @staticmethod
    def _correlation(squares: Array, lengths: Array) -> Array:
        scaled = np.sqrt(5.0 * np.maximum(squares @ (1.0 / lengths**2), 0.0))
        result: Array = (1.0 + scaled + scaled * scaled / 3.0) * np.exp(-scaled)
        return result

    def _likelihood(self, squares: Array, centred: Array, lengths: Array, noise: float) -> float:
        """Logarithm, but for a constant, of the likelihood with the likeliest scale, and prior."""
        covariance = self._correlation(squares, lengths)
        covariance[np.diag_indices_from(covariance)] += noise * noise + 1e-10
        try:
            factor = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return -math.inf
        half = np.linalg.solve(factor, centred)
        spread = max(float(half @ half) / len(centred), 1e-300)
        unusual = np.log(lengths / _USUAL_LENGTH) / _LENGTH_SPREAD
        return (
            -0.5 * len(centred) * math.log(spread)
            - float(np.sum(np.log(np.diag(factor))))
            - 0.5 * float(unusual @ unusual)
        )


class Minimizer:
    """Proposes where to measure next, so that few measurements find a low value.

    candidates: shape (n, dimensions): the only points that can be measured; None: the whole cube.
    initial: how many points are spread over the cube before the first guess.
    """

    def __init__(
        self,
        dimensions: int,
        *,
        seed: int,
        candidates: Array | None = None,
        categorical: Sequence[int] = (),
        initial: int = 5,
    ) -> None:
        self.points: list[Array] = []
        self.values: list[float] = []
        self.gain = math.inf  # that the last proposal promised: expected improvement
        self._process = GaussianProcess(dimensions, categorical)
        self._dimensions = dimensions
        self._names = np.asarray(categorical, dtype=int)
        self._candidates = candidates
        self._initial = initial
        self._seed = seed

    def tell(self, point: Array, value: float) -> None:
        """`value` has been measured at `point`; a point may be measured again."""
        self.points.append(np.asarray(point, np.float64))
        self.values.append(float(value))

    def ask(self) -> Array | None:
        """The point to measure next; None if every candidate has been.

        Depends only on what has been reported, so that a record of it can be replayed.
        """
        random = np.random.default_rng([self._seed, len(self.values)])
        fresh = self._fresh(random)
        if len(fresh) == 0:
            return None
        if len(self.values) < self._initial:
            return self._spread(fresh, random)
        self._process.fit(np.array(self.points), self._clipped())
        known, _ = self._process.predict(np.array(self.points))
        gains = expected_improvement(*self._process.predict(fresh), float(known.min()))
        chosen = int(np.argmax(gains))
        self.gain = float(gains[chosen])
        found: Array = fresh[chosen]
        return found

    def best(self) -> tuple[Array, float]:
        """The measured point whose value is lowest once noise is taken off, and that value."""
        points = np.array(self.points)
        if len(points) < 3:
            lowest = int(np.argmin(self.values))
            return points[lowest], self.values[lowest]
        self._process.fit(points, self._clipped())
        mean, _ = self._process.predict(points)
        lowest = int(np.argmin(mean))
        return points[lowest], float(mean[lowest])

    def _clipped(self) -> Array:
        """The values, without the height of cliffs: bad is bad, and how bad would bend the rest."""
        values = np.array(self.values)
        lowest = float(values.min())
        clipped: Array = np.minimum(values, lowest + _CLIP * (float(np.median(values)) - lowest))
        return clipped

    def _fresh(self, random: np.random.Generator) -> Array:
        """Points that may be measured: candidates, or random ones in the cube and near the best."""
        if self._candidates is not None:
            if not self.points:
                return self._candidates
            known = {tuple(point) for point in self.points}
            keep = [tuple(candidate) not in known for candidate in self._candidates]
            left: Array = self._candidates[np.array(keep)]
            return left
        anywhere: Array = random.random((600, self._dimensions))
        if not self.points:
            return anywhere
        centre = self.points[int(np.argmin(self.values))]
        steps = random.normal(size=(200, self._dimensions))
        steps *= np.where(np.arange(200) % 2, 0.1, 0.02)[:, None]
        return np.concatenate([anywhere, np.clip(centre + steps, 0.0, 1.0)])

    def _spread(self, fresh: Array, random: np.random.Generator) -> Array:
        """Of some random points the one that is farthest from all that is known.

        Another name is farther away than any number, so the first points take every name in turn.
        """
        some = fresh[random.permutation(len(fresh))[:_SPREAD_AMONG]]
        if not self.points:
            return np.array(some[0])
        difference = np.abs(some[:, None, :] - np.array(self.points)[None])
        difference[..., self._names] = (difference[..., self._names] != 0.0) * self._dimensions
        away = np.linalg.norm(difference, axis=2).min(axis=1)
        return np.array(some[int(np.argmax(away))])
