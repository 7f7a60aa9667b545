"""AutoOverlap: overlap="auto" measures, predicts the step of every mode, and checks the best one.

The job starts with overlap="backward".  After some steps the model of rabit.tuning.step_time says which mode
would be fastest; if that is another one, it is tried, and stays unless a step takes longer with it.
Every rank decides after the same step from the same numbers: those of rank 0, and of the slowest rank.

That is the choice, unless the autotuner works (RABIT_AUTOTUNE=1, `overlap` among its knobs).  The
tuner begins when the choice is made, may try other modes together with other sizes, and returns to
it where that is not slower.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

import rabit
from rabit.framework import offer_overlap
from rabit.tuning.step_time import MODES, Layer, Link, best_mode, predict
from rabit_torch.optimizer.hooks import GradientHooks

if TYPE_CHECKING:
    from rabit_torch.optimizer.mode import Overlap
    from rabit_torch.optimizer.reducer import GradientReducer

__all__ = ["AutoOverlap", "layers_from"]

_OVERLAPS: dict[str, Overlap] = {
    "barrier": "backward",
    "crossing": "next-forward",
    "dear": "reduce-scatter",
}
# The first steps allocate, and the first after a change waits like a barrier.
_SETTLE_STEPS = 4
_MEASURED_STEPS = 8
# A mode that does not gain this much over what the job began with is given up.
_MARGIN = 0.99


class AutoOverlap:
    """Call end_step after every step of the optimizer, on all ranks."""

    def __init__(self, reducer: GradientReducer, process_set: rabit.ProcessSet) -> None:
        self.report: dict[str, Any] = {"phase": "measuring"}
        self._reducer = reducer
        self._process_set = process_set
        is_global = process_set.size() == reducer.engine.size
        self._choice = offer_overlap(reducer.engine) if is_global else None
        self._arrived: list[tuple[float, int]] = []  # gradients of this step: moment, bytes
        self._began = 0.0
        self._hooks = GradientHooks(self)
        for state in reducer.states:
            self._hooks.add(state.parameter, _note(weakref.ref(self), state.bytes))
        if self._choice is not None:
            weakref.finalize(self, self._choice.close).atexit = False
        self._script: Generator[None, float, None] | None = self._run()
        next(self._script)

    def end_step(self) -> None:
        """A step has ended; now and then exchanges a few numbers, and may change the overlap."""
        if self._script is None:
            return
        now = time.perf_counter()
        took, self._began = now - self._began, now
        try:
            self._script.send(took)
        except StopIteration:
            self._script = None
        self._began = time.perf_counter()

    def stop(self) -> None:
        """Leaves the overlap as it is, on all ranks after the same step."""
        self._script = None
        self._hooks.remove()
        if self._choice is not None:
            self._choice.close()

    def note_arrival(self, size: int) -> None:
        """A gradient is complete; `bytes` is its size."""
        self._arrived.append((time.perf_counter() - self._began, size))

    def _run(self) -> Generator[None, float, None]:
        """Every yield is a step, and gives its duration."""
        before = yield from self._measure()
        predicted = self._predict()
        chosen = best_mode(predicted)
        # One exchange: what rank 0 predicts, and the slowest rank's time.
        names = [mode for mode in MODES if mode in predicted]
        tunes = self._choice is not None and self._reducer.engine.tunes_overlap
        mine = np.array([tunes, MODES.index(chosen), *(predicted[name] for name in names)])
        is_tuned, agreed_mode, *agreed = rabit.broadcast(
            mine, self._process_set.ranks[0], "rabit.overlap", self._process_set
        )
        chosen = MODES[int(agreed_mode)]
        self.report["predicted_s"] = {
            _OVERLAPS[name]: float(value) for name, value in zip(names, agreed, strict=True)
        }
        measured = {"backward": self._slowest(before)}
        self.report["measured_s"] = measured
        overlap = _OVERLAPS[chosen]
        if overlap != "backward":
            self._reducer.set_overlap(overlap)
            self.report["phase"] = f"trying {overlap}"
            measured[overlap] = self._slowest((yield from self._measure()))
            if measured[overlap] > _MARGIN * measured["backward"]:
                self._reducer.set_overlap("backward")
        self._hooks.remove()
        if is_tuned:
            yield from self._follow([_OVERLAPS[name] for name in names])
        if self._choice is not None:
            self._choice.close()
        self.report.update(phase="done", overlap=self._reducer.overlap)

    def _follow(self, names: Sequence[str]) -> Generator[None, float, None]:
        """Does as the autotuner says until it has ended."""
        choice = self._choice
        assert choice is not None, "rank 0 tunes what it has offered, as all ranks have"
        self.report["phase"] = "tuning"
        choice.open(names, self._reducer.overlap)
        while choice.is_open:
            yield
            self._reducer.set_overlap(cast("Overlap", choice.end_step()))

    def _measure(self) -> Generator[None, float, float]:
        """The median step; leaves the gradients' arrivals of the measured steps in _rounds."""
        for _ in range(_SETTLE_STEPS):
            yield
        self._rounds: list[list[tuple[float, int]]] = []
        self._link_before = self._reducer.engine.statistics()
        times = []
        for _ in range(_MEASURED_STEPS):
            self._arrived = []
            times.append((yield))
            self._rounds.append(self._arrived)
        return float(np.median(times))

    def _predict(self) -> dict[str, float]:
        layers = layers_from(self._rounds)
        before, after = self._link_before, self._reducer.engine.statistics()
        size = after["totals"]["bytes"] - before["totals"]["bytes"]
        took = (after["communication_us"] - before["communication_us"]) / 1e6
        limits = after["tunables"]
        credit = limits["credit_bytes"] or 2 * limits["partition_bytes"]
        predicted = predict(
            layers, Link(took / max(size, 1)), max(limits["partition_bytes"], 1), credit
        )
        if not self._reducer.can_scatter:
            del predicted["dear"]
        return predicted

    def _slowest(self, seconds: float) -> float:
        found = rabit.allreduce(
            np.array([seconds]),
            name="rabit.overlap.step",
            op=rabit.Max,
            process_set=self._process_set,
        )
        return float(found[0])


def _note(auto: Callable[[], AutoOverlap | None], size: int) -> Callable[[torch.Tensor], None]:
    """auto: a weak reference; the parameter may live longer."""

    def note(_: torch.Tensor) -> None:
        alive = auto()
        if alive is not None:
            alive.note_arrival(size)

    note._torchdynamo_disable = True  # type: ignore[attr-defined]
    return note


def layers_from(rounds: Sequence[Sequence[tuple[float, int]]]) -> list[Layer]:
    """Compute times by gradient, in the order of the forward, from when gradients were complete.

    rounds: of some steps, (seconds after the step before, bytes) of each gradient as it came.
    The forward ends nowhere to be seen: a backward is taken for twice as long as its forward.
    Steps that lack gradients are left out.
    """
    count = max((len(each) for each in rounds), default=0)
    whole = [each for each in rounds if len(each) == count]
    if not count:
        return []
    moments = [float(np.median([each[i][0] for each in whole])) for i in range(count)]
    backward = [after - before for before, after in itertools.pairwise(moments)]
    # moments[0] is the whole forward, half of all backwards, and the backward of the last layer.
    last = max(0.0, (moments[0] - sum(backward) / 2) / 1.5)
    backward.insert(0, last)
    scale = max(0.0, moments[0] - last) / max(sum(backward), 1e-12)
    sizes = [size for _, size in whole[0]]
    return [
        Layer(scale * each, each, size)
        for each, size in zip(reversed(backward), reversed(sizes), strict=True)
    ]
