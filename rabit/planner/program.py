"""A linear programme with rational data: solved in floating point, then made exact and proved.

The simplex method finds which constraints hold with equality at the optimum. Those equations are solved
in rational numbers, and the answer is accepted only if the dual solution proves it optimal.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from rabit.errors import Internal

__all__ = ["LinearProgram", "Row"]

Row = dict[int, int]  # variable -> coefficient

_TOLERANCE = 1e-9
_PERTURBATION = 1e-7
_PIVOTS_MAX = 20_000
_DENOMINATORS = (100, 10_000, 1_000_000)


class LinearProgram:
    """Maximises `objective` over variables >= 0 with rows of the form sum(coefficient * variable) <= bound.

    Bounds are >= 0, so zero is feasible. Rows may be added after a solution, which continues from there.
    """

    def __init__(
        self, objective: Sequence[int], rows: Sequence[tuple[Row, int]], seed: int = 0
    ) -> None:
        self._objective = list(objective)
        self._rows: list[tuple[Row, int]] = []
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._scale = max((bound for _, bound in rows), default=1)
        count = len(self._objective)
        # Slack variables follow the variables; each row of the table says what a basic variable is.
        self._table = np.zeros((1, count + 1))
        self._table[-1, :count] = [-coefficient for coefficient in self._objective]
        self._nonbasic = list(range(count))
        self._basic: list[int] = []
        for row, bound in rows:
            self.add(row, bound)

    def add(self, row: Row, bound: int) -> None:
        """Adds a row; `solve` continues from the last solution."""
        count = len(self._objective)
        dense = np.zeros(count)
        for variable, coefficient in row.items():
            dense[variable] = coefficient
        # Bounds that differ by a little keep the simplex method from going in circles at a corner where
        # more constraints meet than are needed.
        shift = _PERTURBATION * (0.5 + self._random.random())
        line = np.zeros(count + 1)
        line[-1] = bound / self._scale + shift
        for place, variable in enumerate(self._nonbasic):
            if variable < count:
                line[place] += dense[variable]
        for place, variable in enumerate(self._basic):
            if variable < count and dense[variable]:
                line -= dense[variable] * self._table[place]
        self._table = np.vstack([self._table[:-1], line, self._table[-1:]])
        self._basic.append(count + len(self._rows))
        self._rows.append((row, bound))

    def again(self) -> LinearProgram:
        """The same programme with other perturbations, where rounding has misled `solve`."""
        return LinearProgram(self._objective, self._rows, self._seed + 1)

    def solve(self) -> list[float]:
        """The values of the variables at an optimum, in floating point and slightly perturbed."""
        for _ in range(_PIVOTS_MAX):
            place = self._next_pivot()
            if place is None:
                return [value * self._scale for value in self._values()]
            self._pivot(*place)
        raise Internal(
            f"the planner's linear programme took more than {_PIVOTS_MAX} steps. Report this."
        )

    def exact(self) -> list[Fraction] | None:
        """The optimum in rational numbers, with its proof checked; None where rounding misled `solve`."""
        count = len(self._objective)
        basic = sorted(variable for variable in self._basic if variable < count)
        tight = sorted(variable - count for variable in self._nonbasic if variable >= count)
        matrix = [[self._rows[row][0].get(variable, 0) for variable in basic] for row in tight]
        found = _solution(matrix, [self._rows[row][1] for row in tight])
        transposed = [list(column) for column in zip(*matrix, strict=True)] if matrix else []
        prices = _solution(transposed, [self._objective[variable] for variable in basic])
        if found is None or prices is None or min([*found, *prices, Fraction(0)]) < 0:
            return None
        values = [Fraction(0)] * count
        for variable, value in zip(basic, found, strict=True):
            values[variable] = value
        return values if self._is_optimal(values, dict(zip(tight, prices, strict=True))) else None

    def _is_optimal(self, values: list[Fraction], prices: dict[int, Fraction]) -> bool:
        """Weak duality: no feasible point is better than prices that cover the objective."""
        for row, bound in self._rows:
            if sum(coefficient * values[variable] for variable, coefficient in row.items()) > bound:
                return False
        covered = [Fraction(0)] * len(values)
        for row_index, price in prices.items():
            for variable, coefficient in self._rows[row_index][0].items():
                covered[variable] += price * coefficient
        return all(have >= want for have, want in zip(covered, self._objective, strict=True))

    def _values(self) -> list[float]:
        values = [0.0] * len(self._objective)
        for place, variable in enumerate(self._basic):
            if variable < len(values):
                values[variable] = max(float(self._table[place, -1]), 0.0)
        return values

    def _next_pivot(self) -> tuple[int, int] | None:
        """(row, column): a dual step while some row is violated, else a primal one; None at the optimum."""
        bounds, prices = self._table[:-1, -1], self._table[-1, :-1]
        row = int(bounds.argmin()) if len(bounds) else 0
        if len(bounds) and bounds[row] < -_TOLERANCE:
            line = self._table[row, :-1]
            allowed = line < -_TOLERANCE
            if not allowed.any():
                raise Internal("the planner's linear programme has no solution. Report this.")
            ratios = np.full(len(line), np.inf)
            np.divide(np.maximum(prices, 0.0), -line, out=ratios, where=allowed)
            return row, int(ratios.argmin())
        column = int(prices.argmin())
        if prices[column] >= -_TOLERANCE:
            return None
        line = self._table[:-1, column]
        allowed = line > _TOLERANCE
        if not allowed.any():
            raise Internal("the planner's linear programme has no bound. Report this.")
        ratios = np.full(len(line), np.inf)
        np.divide(np.maximum(bounds, 0.0), line, out=ratios, where=allowed)
        return int(ratios.argmin()), column

    def _pivot(self, row: int, column: int) -> None:
        table = self._table
        pivot = table[row, column]
        line = table[row] / pivot
        line[column] = 1 / pivot
        factors = table[:, column].copy()
        table -= np.outer(factors, line)
        table[:, column] = -factors / pivot
        table[row] = line
        self._basic[row], self._nonbasic[column] = self._nonbasic[column], self._basic[row]


def _solution(matrix: list[list[int]], right: list[int]) -> list[Fraction] | None:
    """The x with matrix @ x = right; None if the matrix is singular."""
    if not matrix:
        return []
    try:
        rough = np.linalg.solve(np.array(matrix, float), np.array(right, float))
    except np.linalg.LinAlgError:
        return None
    sparse = [{place: value for place, value in enumerate(line) if value} for line in matrix]
    for denominator in _DENOMINATORS:
        guess = [Fraction(float(value)).limit_denominator(denominator) for value in rough]
        if all(
            sum(value * guess[place] for place, value in line.items()) == want
            for line, want in zip(sparse, right, strict=True)
        ):
            return guess
    return _eliminated(sparse, right)


def _eliminated(lines: list[dict[int, int]], right: list[int]) -> list[Fraction] | None:
    """Gaussian elimination in rational numbers, the shortest line first."""
    left = [
        ({place: Fraction(value) for place, value in line.items()}, Fraction(want))
        for line, want in zip(lines, right, strict=True)
    ]
    done: list[tuple[int, dict[int, Fraction], Fraction]] = []
    while left:
        left.sort(key=lambda line: -len(line[0]))
        line, want = left.pop()
        if not line:
            return None
        pivot = min(line)
        for other_place, (other, other_want) in enumerate(left):
            if pivot not in other:
                continue
            factor = other[pivot] / line[pivot]
            for place, value in line.items():
                other[place] = other.get(place, Fraction(0)) - factor * value
                if not other[place]:
                    del other[place]
            left[other_place] = (other, other_want - factor * want)
        done.append((pivot, line, want))
    values: dict[int, Fraction] = {}
    for pivot, line, want in reversed(done):
        known = sum(
            (value * values[place] for place, value in line.items() if place != pivot), Fraction(0)
        )
        values[pivot] = (want - known) / line[pivot]
    return [values[place] for place in sorted(values)]
