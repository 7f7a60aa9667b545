"""What every gradient method must satisfy; run on ranks that are threads or processes.

A case is a function of an engine, which each rank calls; it returns this rank's parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import rabit.strategies as methods
from rabit import Compression

from .rows import text_of

SHAPES: dict[str, tuple[int, ...]] = {"w": (6, 5), "b": (5,)}
STEPS = 8
Arrays = dict[str, np.ndarray]


def noise(name: str, rank: int, step: int) -> np.ndarray:
    return np.random.default_rng([sum(map(ord, name)), rank, step]).standard_normal(SHAPES[name])


def usual(name: str, value: np.ndarray, rank: int, step: int) -> np.ndarray:
    return 0.3 * value + 0.02 * rank + 0.3 * noise(name, rank, step)


def pure_noise(name: str, value: np.ndarray, rank: int, step: int) -> np.ndarray:
    return noise(name, rank, step)


def of_rank_zero(name: str, value: np.ndarray, rank: int, step: int) -> np.ndarray:
    return noise(name, 0, step)


def few_rows(name: str, value: np.ndarray, rank: int, step: int) -> np.ndarray:
    rows = np.arange(len(value)) % 3 == (step + rank) % 3
    return usual(name, value, rank, step) * rows.reshape(-1, *[1] * (value.ndim - 1))


def nothing(name: str, value: np.ndarray, rank: int, step: int) -> np.ndarray:
    return 0.0 * value


def rate(step: int) -> float:
    """A learning rate that begins at zero, as warm-ups do, falls, and is zero once more."""
    return {0: 0.0, 5: 0.0}.get(step, 0.1 if step < 4 else 0.01)


# --- optimizers -----------------------------------------------------------------------------------


def descent() -> Callable[[Any], None]:
    def update(slot: Any) -> None:
        slot.value = slot.value - slot.lr * slot.grad

    return update


def heavy_ball(nesterov: bool = False) -> Callable[[Any], None]:
    momenta: Arrays = {}

    def update(slot: Any) -> None:
        m = momenta[slot.name] = 0.9 * momenta.get(slot.name, 0) + slot.grad
        slot.value = slot.value - slot.lr * (slot.grad + 0.9 * m if nesterov else m)

    return update


def adam() -> Callable[[Any], None]:
    moments: dict[str, Any] = {}

    def update(slot: Any) -> None:
        m, v, t = moments.get(slot.name, (0, 0, 0))
        m, v, t = 0.9 * m + 0.1 * slot.grad, 0.999 * v + 0.001 * slot.grad**2, t + 1
        moments[slot.name] = m, v, t
        slot.value = slot.value - slot.lr * (m / (1 - 0.9**t)) / (
            np.sqrt(v / (1 - 0.999**t)) + 1e-8
        )

    return update


def lamb() -> Callable[[Any], None]:
    moments: dict[str, Any] = {}

    def update(slot: Any) -> None:
        m, v = moments.get(slot.name, (0, 0))
        m, v = 0.9 * m + 0.1 * slot.grad, 0.999 * v + 0.001 * slot.grad**2
        moments[slot.name] = m, v
        u = m / (np.sqrt(v) + 1e-6)
        ratio = np.clip(np.linalg.norm(slot.value) / np.linalg.norm(u), 0.01, 10)
        slot.value = slot.value - slot.lr * ratio * u

    return update


def moving_average() -> Callable[[Any], None]:
    momenta: Arrays = {}

    def update(slot: Any) -> None:
        m = momenta[slot.name] = 0.9 * momenta.get(slot.name, 0) + 0.1 * slot.grad
        slot.value = slot.value - slot.lr * m

    return update


# --- one run ----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Run:
    """What one rank trains, and how it is disturbed."""

    method: Callable[[], methods.Strategy]
    steps: int = STEPS
    lr: Callable[[int], float] = lambda step: 0.1
    update: Callable[[], Callable[[Any], None]] = descent
    gradient: Callable[[str, np.ndarray, int, int], np.ndarray] = usual
    apart: float = 0.0  # how far the ranks' first parameters differ
    replaced: bool = (
        False  # the first parameters are set after the trainer was made, as by a broadcast
    )
    reverses: bool = False  # odd ranks wait for their gradients in the opposite order
    skips: int = -1  # the step before which another one is begun and taken back
    saves: int = -1  # the step before which the state is saved
    reloads: int = -1  # the step before which the state is saved, and loaded into a new strategy
    dtype: type = np.float64

    def trainer(self, engine: Any, parameters: Arrays) -> methods.ArrayTrainer:
        return methods.ArrayTrainer(
            parameters,
            self.method(),
            lr=self.lr(0),
            update=self.update(),
            engine=engine,
            name="run",
        )

    def __call__(self, engine: Any) -> Outcome:
        random = np.random.default_rng(1)
        parameters = {
            name: (random.standard_normal(shape) + self.apart * engine.rank).astype(self.dtype)
            for name, shape in SHAPES.items()
        }
        first = {name: value.copy() for name, value in parameters.items()}
        for value in parameters.values() if self.replaced else ():
            value += 1 + engine.rank
        trainer = self.trainer(engine, parameters)
        for name, value in first.items():
            parameters[name][:] = value
        for step in range(self.steps):
            trainer.set_lr(self.lr(step))
            if step == self.skips:
                trainer.start(
                    {n: (1e6 * noise(n, engine.rank, 999)).astype(self.dtype) for n in SHAPES}
                )
                trainer.skip_step()
            if step == self.saves:
                trainer.pipeline.state_dict()
            if step == self.reloads:
                trainer = self._reloaded(engine, parameters, trainer)
            for name in reversed(SHAPES):
                gradient = self.gradient(name, parameters[name], engine.rank, step)
                trainer.start({name: gradient.astype(self.dtype)})
            if self.reverses and engine.rank % 2:
                for slot in trainer.slots:
                    trainer.pipeline.wait([slot])
            elif self.reverses:
                for slot in reversed(trainer.slots):
                    trainer.pipeline.wait([slot])
            trainer.step()
        trainer.pipeline.finish()
        states = {slot.name: slot.state for slot in trainer.slots}
        return Outcome(parameters, first, states)

    def _reloaded(
        self, engine: Any, parameters: Arrays, before: methods.ArrayTrainer
    ) -> methods.ArrayTrainer:
        saved = before.pipeline.state_dict()
        trainer = self.trainer(engine, parameters)
        trainer.pipeline.load_state_dict(saved)
        trainer._update = before._update  # the optimizer's own state is the user's to save
        return trainer


@dataclasses.dataclass
class Outcome:
    """The parameters of one rank after and before, and the state of its method."""

    values: Arrays
    first: Arrays
    states: dict[str, Any]


def distance(some: list[Outcome], others: list[Outcome]) -> float:
    """The largest difference between the parameters of two runs, over all ranks."""
    return max(
        float(np.abs(a.values[name] - b.values[name]).max())
        for a, b in zip(some, others, strict=True)
        for name in SHAPES
    )


def spread(outcomes: list[Outcome], of: Callable[[Outcome, str], Any] | None = None) -> float:
    """The largest difference between ranks."""
    of = of or (lambda outcome, name: outcome.values[name])
    return max(
        float(np.abs(of(each, name) - of(outcomes[0], name)).max())
        for each in outcomes
        for name in SHAPES
    )


def unconserved(outcomes: list[Outcome], run: Run) -> float:
    """|Σ η·update + mean(η·e) - Σ η·mean(g)|, which error feedback keeps at zero."""
    worst = 0.0
    for name in SHAPES:
        moved = outcomes[0].first[name] - outcomes[0].values[name]
        states = [each.states[name] for each in outcomes]  # None: nothing is lost
        left = np.mean([_left(each) if each else 0.0 for each in states], axis=0)
        left = left + _left_of_sums(states, name)
        ranks = range(len(outcomes))
        whole = sum(
            run.lr(step) * np.mean([noise(name, rank, step) for rank in ranks], axis=0)
            for step in range(run.steps)
        )
        worst = max(worst, float(np.abs(moved + left - whole).max()))
    return worst


def _left(state: Any) -> Any:
    """What a rank has not sent, of its gradients and of sums that it encoded again."""
    return (state.residual + state.of_sums) * state.unit


def _left_of_sums(states: list[Any], name: str) -> Any:
    """What the second phase keeps, where the exchange inside keeps it.

    In NumPy each rank has that of its part of the mean, in the engine that of the sum.
    """
    inner = [getattr(each, "inner", None) for each in states]
    inner = [getattr(each, "then", each) for each in inner]
    if hasattr(inner[0], "of_sums"):
        return np.mean([each.of_sums * each.unit for each in inner], axis=0)
    if not hasattr(inner[0], "residual"):
        return 0.0
    whole = np.concatenate([each.residual * each.unit for each in inner])
    return whole.reshape(SHAPES[name])


# --- methods, as cases take them --------------------------------------------------------------------


def every(exchange: methods.Exchange) -> Callable[[], methods.Strategy]:
    return lambda: methods.Synchronous(exchange)


def topk(ratio: float) -> methods.Exchange:
    return methods.Gathered(methods.LargestEntries(ratio))


def power(rank: int) -> methods.Exchange:
    return methods.PowerSGD(rank, min_rate=0.0)


MEAN = Run(every(methods.Mean()))
MOMENTUM = Run(every(methods.Mean()), update=heavy_ball)
NESTEROV = Run(every(methods.Mean()), update=lambda: heavy_ball(True))
ADAM = Run(every(methods.Mean()), update=adam)


def with_gradient(run: Run, gradient: Any) -> Run:
    return dataclasses.replace(run, gradient=gradient)


def with_method(run: Run, method: Callable[[], methods.Strategy]) -> Run:
    return dataclasses.replace(run, method=method)


# name: (a method, what it must equal)
EQUIVALENCES: dict[str, tuple[Run, Run]] = {
    "powersgd of full rank is the mean": (Run(every(methods.ErrorFeedback(power(9)))), MEAN),
    "top-k of all entries is the mean": (Run(every(methods.ErrorFeedback(topk(1.0)))), MEAN),
    "random-k of all entries is the mean": (Run(every(methods.RandomK(1.0))), MEAN),
    "EF21 of all entries is the mean": (Run(every(methods.Differences(topk(1.0)))), MEAN),
    "DGC of all entries without masks is momentum": (
        Run(every(methods.MomentumCorrection(topk(1.0), masks=False))),
        MOMENTUM,
    ),
    "DGC of all entries with masks is plain descent": (
        Run(every(methods.MomentumCorrection(topk(1.0)))),
        MEAN,
    ),
    "EF21-SGDM of all entries is the moving average": (
        Run(every(methods.LocalMomentum(methods.Differences(topk(1.0)), 0.1))),
        Run(every(methods.Mean()), update=moving_average),
    ),
    "EF21-SGDM of rate 1 is EF21": (
        Run(every(methods.LocalMomentum(methods.Differences(topk(0.2)), 1.0))),
        Run(every(methods.Differences(topk(0.2)))),
    ),
    "DeMo of all frequencies without momentum is the mean": (
        Run(every(methods.FrequencyMomentum(0.0, 8, 8, signs=False))),
        MEAN,
    ),
    "DeMo of all frequencies keeps no momentum": (
        Run(every(methods.FrequencyMomentum(0.9, 8, 8, signs=False))),
        MEAN,
    ),
    "gossip with everybody is Local SGD at every step": (
        Run(lambda: methods.Gossip("ring")),  # of 2 or 3 ranks
        Run(lambda: methods.LocalSGD(1)),
    ),
    "row-sparse is the mean": (
        with_gradient(Run(every(methods.RowSparse())), few_rows),
        with_gradient(MEAN, few_rows),
    ),
    "adasum of equals is the mean": (
        with_gradient(Run(every(methods.AdaptiveSum())), of_rank_zero),
        with_gradient(MEAN, of_rank_zero),
    ),
    "a phase that never comes is the mean": (Run(every(methods.Phases(99, topk(0.1)))), MEAN),
    "what is small is the mean": (Run(every(methods.Bypass(topk(0.1)))), MEAN),
    "Local SGD at every step is descent": (Run(lambda: methods.LocalSGD(1)), MEAN),
    "post-local SGD before its start is descent": (
        Run(lambda: methods.LocalSGD(4, start=99)),
        MEAN,
    ),
    "SlowMo of alpha 1, beta 0 is Local SGD": (
        Run(lambda: methods.LocalSGD(4, methods.SlowMomentum(1, 0))),
        Run(lambda: methods.LocalSGD(4)),
    ),
    "SlowMo at every step is momentum": (
        Run(lambda: methods.LocalSGD(1, methods.SlowMomentum(1, 0.9))),
        MOMENTUM,
    ),
    "DiLoCo at every step is Nesterov": (
        Run(lambda: methods.LocalSGD(1, methods.Nesterov(1.0, 0.9))),
        NESTEROV,
    ),
    "streaming without parts and delay is DiLoCo": (
        Run(lambda: methods.LocalSGD(4, methods.Nesterov(), fragments=1, delay=0, mix=0.0)),
        Run(lambda: methods.LocalSGD(4, methods.Nesterov())),
    ),
    "1-bit Adam in its warm-up is Adam": (
        Run(lambda: methods.OneBitAdam(methods.Mean(), 99)),
        ADAM,
    ),
    "1-bit LAMB in its warm-up is LAMB": (
        Run(lambda: methods.OneBitLamb(methods.Mean(), 99)),
        Run(every(methods.Mean()), update=lamb),
    ),
    "0/1 Adam that refreshes and meets in every step is Adam": (
        Run(lambda: methods.ZeroOneAdam(methods.Mean(), 99, refresh=99)),
        ADAM,
    ),
    "any-batch mirror descent among all is the step on the union": (
        Run(lambda: _one_sample(methods.AnyBatchMirrorDescent())),
        MEAN,
    ),
    "a hierarchy of single ranks is its exchange": (
        Run(every(methods.Hierarchical(methods.AdaptiveSum(), 1))),
        Run(every(methods.AdaptiveSum())),
    ),
    "decentralized with all is Local SGD at every step": (
        dataclasses.replace(Run(lambda: methods.Decentralized("all")), steps=6),
        dataclasses.replace(Run(lambda: methods.LocalSGD(1)), steps=6),
    ),
}

# Residuals whose sum with the updates is that of the gradients.
CONSERVING: dict[str, methods.Exchange] = {
    "top-k": methods.ErrorFeedback(topk(0.1)),
    "powersgd": methods.ErrorFeedback(power(1)),
    "top-k in two phases": methods.ErrorFeedback(
        methods.TwoPhase(methods.LargestEntries(0.3), second_feedback=True)
    ),
    "random-k": methods.ErrorFeedback(methods.RandomK(0.2)),
    "two roads": methods.ErrorFeedback(methods.Accordion(topk(0.5), topk(0.1), interval=3)),
    "phases": methods.ErrorFeedback(methods.Phases(3, topk(0.1))),
    "hierarchy": methods.ErrorFeedback(methods.Hierarchical(topk(0.1), 1)),
}


def named(name: str) -> Callable[[], methods.Strategy]:
    """The method of that name, with the arguments of its row."""

    def make() -> methods.Strategy:
        return _one_sample(methods.make(text_of(name)))

    return make


def _one_sample(method: Any) -> methods.Strategy:
    if hasattr(method, "samples"):
        method.samples = 1
    return method


# Ranks are apart between exchanges; a saved state continues bit for bit all the same.
APART: dict[str, Callable[[], methods.Strategy]] = {
    "streaming-diloco": lambda: methods.LocalSGD(
        4, methods.Nesterov(), fragments=2, delay=2, mix=0.5
    ),
    "sparseloco": lambda: methods.LocalSGD(4, exchange=methods.ErrorFeedback(topk(0.1), 0.9)),
    "decentralized": lambda: methods.Decentralized("all"),
    "shift-one": lambda: methods.Decentralized("shift-one"),
    "lowprecision": lambda: methods.LowPrecisionRing(methods.MinMax8(8)),
    "gossip": lambda: methods.Gossip("ring", rounds=2),
    "dabmd on a ring": lambda: _one_sample(methods.AnyBatchMirrorDescent(graph="ring")),
}


# Ranks stay together bit for bit, nothing of a skipped step remains, a saved state continues bit for bit.
TOGETHER: dict[str, Callable[[], methods.Strategy]] = {
    **{name: named(name) for name in methods.available() if name not in {*APART, "async"}},
    "mean in 16 bits": lambda: methods.make("mean:codec=bf16"),
    "nuqsgd in NumPy": every(methods.Gathered(methods.Levels(methods.geometric(4), block=8))),
    "terngrad in NumPy": every(methods.Clipped(methods.Gathered(methods.Levels((0.0, 1.0))))),
    "bytegrad in NumPy": every(methods.TwoPhase(methods.MinMax8(8))),
    "topk in NumPy": every(methods.ErrorFeedback(topk(0.1))),
    "topk in two phases": every(
        methods.ErrorFeedback(methods.TwoPhase(methods.LargestEntries(0.3), second_feedback=True))
    ),
    "powersgd after the mean": every(methods.ErrorFeedback(methods.Phases(3, power(2)))),
    "accordion": every(methods.ErrorFeedback(methods.Accordion(power(2), power(1), interval=3))),
    "dgc with clipping": every(methods.MomentumCorrection(topk(0.2), clip=1.0)),
    "dgc with a ramp": lambda: methods.make("dgc:ratio=0.1,ramp=2,small=0"),
    "post-local": lambda: methods.LocalSGD(2, start=4),
    "hierarchy of thin factors": every(methods.ErrorFeedback(methods.Hierarchical(power(2), 1))),
    "levels of two bits": every(methods.FittedLevels(2, 8, every=3)),
    "signs of small blocks": lambda: methods.make("sign:block=8,small=0"),
}


def feedback(exchange: methods.Exchange) -> Callable[[], methods.Strategy]:
    return every(methods.ErrorFeedback(exchange))


NATIVE_TOPK = methods.InEngine(Compression.topk(0.2, exact=True))
NATIVE_SIGNS = methods.InEngine(Compression.sign(8))
NATIVE_TWO_MEANS = methods.InEngine(Compression.two_means(8))
NATIVE_TWO_PHASES = methods.InEngine(Compression.sign(8, phases=2))

# Codecs of the engine and of NumPy that send the same, but for rounding: (the one, the other).
SAME: dict[str, tuple[Callable[[], methods.Strategy], Callable[[], methods.Strategy]]] = {
    "topk": (feedback(NATIVE_TOPK), feedback(topk(0.2))),
    "topk without feedback": (every(NATIVE_TOPK), every(topk(0.2))),
    "ef21": (every(methods.Differences(NATIVE_TOPK)), every(methods.Differences(topk(0.2)))),
    "dgc": (
        every(methods.MomentumCorrection(NATIVE_TOPK)),
        every(methods.MomentumCorrection(topk(0.2))),
    ),
    "phases": (
        feedback(methods.Phases(3, NATIVE_TOPK)),
        feedback(methods.Phases(3, topk(0.2))),
    ),
}

# In float32, where the engine encodes.
TOGETHER_IN_ENGINE: dict[str, Callable[[], methods.Strategy]] = {
    **{name: pair[0] for name, pair in SAME.items()},
    **TOGETHER,
    "phases of signs": feedback(methods.Phases(3, NATIVE_SIGNS)),
    "powersgd": feedback(power(2)),
}
