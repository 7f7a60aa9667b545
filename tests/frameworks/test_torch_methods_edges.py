"""Training by every method on a bad day: as right as on a good one, or refused with the reason.

Gradients are given and optimizers of a run are made in the same order, so that runs can be compared bit by bit.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import front_ends
from support.front_ends import OF_STEPS, TEXTS

import rabit
import rabit_torch
from rabit.strategies.catalog import METHODS
from rabit.testing import run_ranks

RANKS, STEPS, BAD_STEP = 2, 6, 3
SHAPES: dict[str, tuple[int, ...]] = {"table": (12, 6), "bias": (6,), "one": (), "none": (0,), "wide": (3, 0)}
ON_GRADIENTS = sorted(set(TEXTS) - OF_STEPS)
Tensors = dict[str, torch.Tensor]


def given(name: str, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + 10 * rabit.rank() + len(name))
    return 0.5 + torch.randn(SHAPES[name], generator=generator)


class Training:
    """Steps of one method on one rank."""

    def __init__(self, method: str, dtypes: tuple[torch.dtype, ...] = (torch.float32,), **arguments: Any):
        self.parameters: Tensors = {
            name: torch.nn.Parameter(torch.ones(shape, dtype=dtypes[number % len(dtypes)]))
            for number, (name, shape) in enumerate(SHAPES.items())
        }
        self.optimizer = rabit_torch.DistributedOptimizer(
            torch.optim.SGD(self.parameters.values(), lr=2.0**-6),
            list(self.parameters.items()),
            strategy=TEXTS[method],
            **arguments,
        )
        self.method = method

    def gradients(self, step: int) -> Tensors:
        return {name: given(name, step).to(each.dtype) for name, each in self.parameters.items()}

    def backward(self, step: int, gradients: Tensors | None = None) -> None:
        front_ends.before(self.optimizer.strategy, rabit.rank(), step)
        found = self.gradients(step) if gradients is None else gradients
        used = [(self.parameters[name] * each).sum().float() for name, each in found.items()]
        torch.stack(used).sum().backward()

    def step(self, step: int, gradients: Tensors | None = None, to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none=to_none)
        self.backward(step, gradients)
        self.optimizer.step()
        if front_ends.waits_for_averages(self.method):
            self.optimizer.strategy_state_dict()

    def run(self, first: int = 0, end: int = STEPS) -> Tensors:
        for step in range(first, end):
            self.step(step)
        return self.now()

    def now(self) -> Tensors:
        return {name: each.detach().clone() for name, each in self.parameters.items()}


def by_all(case: Callable[[str], Any]) -> list[dict[str, Any]]:
    """What `case` gives for each method, on each rank."""

    def on_rank(engine: Any) -> dict[str, Any]:
        found = {}
        for method in TEXTS:
            try:
                found[method] = case(method)
            except Exception as error:
                raise AssertionError(f"{method} on rank {engine.rank}: {error}") from error
        return found

    return run_ranks(RANKS, on_rank, deterministic=True)


def wrong(ranks: list[dict[str, Any]], judge: Callable[..., str], *others: Any) -> dict[str, str]:
    """What the judge of (values, those of others...) says of methods that are not as they must be."""
    found = {}
    for rank, methods in enumerate(ranks):
        for method, values in methods.items():
            says = judge(values, *(other[rank][method] for other in others))
            if says:
                found[method] = f"rank {rank}: {says}"
    return found


def difference(found: Tensors, expected: Tensors) -> str:
    return " ".join(f"{name} differs" for name in found if not torch.equal(found[name], expected[name]))


def unsound(found: Tensors) -> str:
    """What is not finite, or stands where it began."""
    for name, each in found.items():
        if not torch.isfinite(each).all():
            return f"{name} is not finite"
        if each.numel() and torch.equal(each, torch.ones_like(each)):
            return f"{name} has not moved"
    return ""


def apart(ranks: list[dict[str, Tensors]]) -> dict[str, str]:
    """Methods for gradients that leave ranks with different parameters."""
    pairs = {method: difference(ranks[0][method], ranks[1][method]) for method in ranks[0]}
    return {method: says for method, says in pairs.items() if says and method in ON_GRADIENTS}


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except rabit.InvalidArgument as error:
        return str(error)
    return ""


@functools.cache
def good_day() -> list[dict[str, Tensors]]:
    return by_all(lambda method: Training(method).run())


@functools.cache
def without_the_bad_step(dtype: torch.dtype = torch.float32) -> list[dict[str, Tensors]]:
    def case(method: str) -> Tensors:
        training = Training(method, (dtype,))
        training.run(0, BAD_STEP)
        return training.run(BAD_STEP + 1)

    return by_all(case)


def test_empty_tensors_and_scalars_are_trained_by_every_method():
    found = good_day()

    assert wrong(found, unsound) == {}
    assert apart(found) == {}


# --- what is not finite ------------------------------------------------------------------------


def spoiled(training: Training, bad: float) -> Tensors:
    gradients = training.gradients(BAD_STEP)
    if rabit.rank() == 1:
        gradients["table"][4, 2] = bad
    return gradients


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_what_is_not_finite_is_named_in_its_step_which_leaves_no_trace(bad):
    says = f"gradient 'table' of rank 1 has {bad} at index (4, 2) in step {BAD_STEP + 1}"

    def case(method: str) -> Tensors:
        training = Training(method, check_finite=True)
        before = training.run(0, BAD_STEP)
        with pytest.raises(rabit.IntegrityError) as caught:
            training.step(BAD_STEP, spoiled(training, bad))
        assert says in str(caught.value)
        assert difference(training.now(), before) == ""
        return training.run(BAD_STEP + 1)

    assert wrong(by_all(case), difference, without_the_bad_step()) == {}


@pytest.mark.parametrize(
    ("bad", "dtype"),
    [(float("nan"), torch.float32), (float("inf"), torch.float32), (float("nan"), torch.float64)],
)
def test_every_rank_s_loss_scaler_sees_it_in_its_step_and_what_it_skips_leaves_no_trace(bad, dtype):
    """Without check_finite.  A scaler looks at the gradients after backward(), and skips step() for itself."""

    def case(method: str) -> Tensors:
        training = Training(method, (dtype,))
        training.run(0, BAD_STEP)
        training.optimizer.zero_grad()
        training.backward(BAD_STEP, spoiled(training, bad))
        seen = [torch.isfinite(each.grad).all() for each in training.parameters.values()]
        if method in ON_GRADIENTS or rabit.rank() == 1:
            assert not all(seen), "this rank's gradients look as if they were finite"
        return training.run(BAD_STEP + 1)

    assert wrong(by_all(case), difference, without_the_bad_step(dtype)) == {}


# --- steps that are not like others ------------------------------------------------------------


def test_a_step_that_does_not_happen_leaves_no_trace():
    def case(method: str) -> Tensors:
        training = Training(method)
        training.run(0, BAD_STEP)
        training.backward(BAD_STEP)
        training.optimizer.zero_grad()
        return training.run(BAD_STEP + 1)

    assert wrong(by_all(case), difference, without_the_bad_step()) == {}


def test_gradients_that_stay_where_they_are_change_no_bit():
    """zero_grad(set_to_none=False)"""

    def case(method: str) -> Tensors:
        training = Training(method)
        for step in range(STEPS):
            training.step(step, to_none=False)
        return training.now()

    assert wrong(by_all(case), difference, good_day()) == {}


def test_a_learning_rate_of_zero_and_of_a_tenth():
    """At zero nothing moves but to where other ranks are; methods that divide by it say so."""

    def case(method: str) -> Any:
        training = Training(method)
        training.run(0, BAD_STEP)
        group = training.optimizer.param_groups[0]
        group["lr"], rate = 0.0, group["lr"]
        before = training.now()
        refused = refusal(lambda: training.step(BAD_STEP))
        if method in ("slowmo", "zero-one-adam"):
            assert "divides by the" in refused and "which is 0" in refused
            return before
        assert refused == ""
        if method in ON_GRADIENTS:
            assert difference(training.now(), before) == ""
        group["lr"] = rate / 10
        return training.run(BAD_STEP + 1)

    found = by_all(case)

    assert wrong(found, unsound) == {}
    assert apart(found) == {}


@pytest.mark.parametrize("overlap", ["next-forward", "reduce-scatter"])
def test_updates_that_are_put_off_are_those_of_the_step(overlap):
    def case(method: str) -> Tensors:
        training = Training(method, **({"overlap": overlap} if method in ON_GRADIENTS else {}))
        training.run()
        if method in ON_GRADIENTS:
            training.optimizer.flush()
        return training.now()

    assert wrong(by_all(case), difference, good_day()) == {}


# --- parameters that are not like others ---------------------------------------------------------


def test_no_gradient_on_one_rank_or_on_all_is_one_of_zeros():
    def run(method: str, puts_zeros: bool) -> Tensors:
        training = Training(method)
        for step in range(STEPS):
            gradients = training.gradients(step)
            for name, has_none in (("bias", step == 2 and rabit.rank() == 1), ("table", step == 4)):
                if has_none and puts_zeros:
                    gradients[name] = torch.zeros_like(gradients[name])
                elif has_none:
                    del gradients[name]
            training.step(step, gradients)
        return training.now()

    found, expected = (by_all(lambda m, zeros=zeros: run(m, zeros)) for zeros in (False, True))

    assert wrong(found, unsound) == {}
    assert wrong(found, difference, expected) == {}


def test_a_frozen_parameter_stays_and_changes_no_bit_of_the_others():
    def case(method: str) -> Tensors:
        training = Training(method)
        training.run(0, 2)
        bias = training.parameters["bias"]
        bias.requires_grad_(False)
        before = bias.detach().clone()
        training.run(2, 5)
        if method in ON_GRADIENTS:
            assert torch.equal(bias, before), "it has moved"
        bias.requires_grad_(True)
        return training.run(5)

    found = by_all(case)
    others = [{m: {n: v for n, v in each.items() if n != "bias"} for m, each in rank.items()} for rank in found]

    assert wrong(found, unsound) == {}
    assert apart(found) == {}
    assert wrong(others, difference, good_day()) == {}


def test_a_frozen_parameter_is_left_alone_once_ranks_that_step_alone_have_met():
    """From the first step on, or later; whatever an outer step remembers."""

    def case(method: str) -> Tensors:
        training = Training(method)
        bias, table = training.parameters["bias"], training.parameters["table"]
        bias.requires_grad_(False)
        training.run(0, 4)
        assert torch.equal(bias, torch.ones_like(bias)), "it has moved though it was frozen from the start"
        table.requires_grad_(False)
        halfway = training.run(4, 10)["table"]
        training.run(10, 16)
        assert torch.equal(table, halfway), "it moves on"
        return {"bias": bias.detach(), "table": table.detach()}

    found = by_all(case)

    assert apart(found) == {}
    assert [m for m in ("local", "slowmo", "diloco") if difference(found[0][m], found[1][m])] == []


DTYPES = {
    "float16": (torch.float16,),
    "bfloat16": (torch.bfloat16,),
    "float64": (torch.float64,),
    "mixed": (torch.float32, torch.float16, torch.float64),
}


@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES)
def test_parameters_of_other_types_come_about_where_those_of_float32_do(dtypes):
    def case(method: str) -> Tensors:
        return Training(method, dtypes).run()

    def far(values: Tensors, expected: Tensors) -> str:
        """Random draws of NumPy are others than those of the engine, of three values in all for terngrad."""
        found, wanted = (
            torch.cat([each.double().reshape(-1) for each in some.values()]) for some in (values, expected)
        )
        error, way = (found - wanted).abs().mean(), (wanted - 1).abs().mean()
        return f"{error:g} off, of a way of {way:g}" if error > 3 / 4 * way else ""

    found = by_all(case)

    assert wrong(found, unsound) == {}
    assert apart(found) == {}
    assert wrong(found, far, good_day()) == {}


# --- states ------------------------------------------------------------------------------------


@functools.cache
def saved() -> list[dict[str, Any]]:
    """After BAD_STEP steps: (the state of the method, the parameters), and where training ends."""

    def case(method: str) -> Any:
        training = Training(method)
        training.run(0, BAD_STEP)
        state = training.optimizer.strategy_state_dict()
        values, states = training.now(), copy.deepcopy(training.optimizer.state_dict())
        training.optimizer.param_groups[0]["lr"] /= 8
        return state, values, training.run(BAD_STEP), states

    return by_all(case)


def test_a_saved_state_goes_on_bit_for_bit_with_the_learning_rates_that_come():
    def case(method: str) -> Tensors:
        state, values, _, states = saved()[rabit.rank()][method]
        training = Training(method)
        with torch.no_grad():
            for name, each in training.parameters.items():
                each.copy_(values[name])
        training.optimizer.load_strategy_state_dict(state)
        training.optimizer.load_state_dict(states)
        training.optimizer.param_groups[0]["lr"] /= 8
        return training.run(BAD_STEP)

    ends = [{method: each[2] for method, each in rank.items()} for rank in saved()]

    assert wrong(by_all(case), difference, ends) == {}


def test_a_state_of_other_methods_is_refused_with_the_reason_and_leaves_no_trace():
    """But of one that keeps the same under the same names."""

    def paths(state: dict[str, Any]) -> set[str]:
        return {*state["replicated"], *state["local"]}

    def case(method: str) -> Tensors:
        states = {other: each[0] for other, each in saved()[rabit.rank()].items()}
        training = Training(method)
        for other, state in states.items():
            if paths(state) != paths(states[method]):
                says = refusal(lambda state=state: training.optimizer.load_strategy_state_dict(state))
                assert "the saved state" in says, f"takes the state of {other}"
        return training.run()

    assert wrong(by_all(case), difference, good_day()) == {}


def test_what_is_no_state_of_a_method_is_refused_with_what_it_has():
    def on_rank(engine: Any) -> None:
        training = Training("powersgd")
        optimizer = training.optimizer
        for other, has in (
            ({}, "it has nothing"),
            (optimizer.state_dict(), "it has 'state', 'param_groups'"),
            (training.now(), "it has 'table', 'bias'"),
            (None, "it is a NoneType"),
            ([1], "it is a list"),
        ):
            says = refusal(lambda other=other: optimizer.load_strategy_state_dict(other))
            assert "no 'step', 'replicated', 'local'" in says
            assert has in says
            assert "Pass what strategy_state_dict gave" in says
        broken = {**optimizer.strategy_state_dict(), "local": None}
        assert "no 'local'" in refusal(lambda: optimizer.load_strategy_state_dict(broken))

    run_ranks(1, on_rank)


def test_a_state_of_another_model_is_refused_with_the_shapes_and_leaves_no_trace():
    """The first parameter is as it was saved, the second has another shape."""

    def case(method: str) -> Tensors:
        state = saved()[rabit.rank()][method][0]
        training = Training(method)
        own = training.optimizer.strategy_state_dict()
        for scope in ("replicated", "local"):
            for path, value in own[scope].items():
                if path.startswith("bias/") and isinstance(value, torch.Tensor) and value.dim():
                    other = {**state, scope: {**state[scope], path: torch.zeros(7)}}
                    says = refusal(lambda other=other: training.optimizer.load_strategy_state_dict(other))
                    assert f"the saved state '{path}' has shape (7,) and {tuple(value.shape)} is expected" in says
        return training.run()

    assert wrong(by_all(case), difference, good_day()) == {}


def test_a_state_of_more_ranks_is_refused_where_each_has_its_own():
    def case(method: str) -> None:
        state = {**saved()[rabit.rank()][method][0], "ranks": 3}
        training = Training(method)
        says = refusal(lambda: training.optimizer.load_strategy_state_dict(state))
        assert ("was saved by 3 ranks" in says) == bool(state["local"])

    by_all(case)


# --- texts -----------------------------------------------------------------------------------------


def test_arguments_of_a_text_that_cannot_be_are_refused():
    """By every method, for every argument, with the text, what is wrong in it, and what the argument takes."""
    model = torch.nn.Linear(2, 1)
    wrong_values = {bool: ("x", "", "2"), str: ("x",), int: ("x", "", "1.5", "-7"), float: ("x", "", "nan", "-7")}

    def says(text: str) -> str:
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        return refusal(lambda: rabit_torch.DistributedOptimizer(sgd, strategy=text))

    def on_rank(engine: Any) -> list[str]:
        accepted = []
        for name, method in METHODS.items():
            assert "'colour=1' is not an argument of" in says(f"{name}:colour=1")
            for key, each in inspect.signature(method.build).parameters.items():
                assert f"{key} is given twice" in says(f"{name}:{key}={each.default},{key}={each.default}")
                texts = [f"{name}:{key}={value}" for value in wrong_values[type(each.default)]]
                accepted += [text for text in texts if f"strategy '{text}': " not in says(text)]
        return accepted

    assert run_ranks(1, on_rank) == [[]]


def test_the_error_of_a_step_that_was_caught_is_not_raised_again_when_the_engine_closes():
    def on_rank(engine: Any) -> None:
        layer = torch.nn.Linear(4, 1)
        sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
        optimizer = rabit_torch.DistributedOptimizer(
            sgd, layer.named_parameters(), strategy="decentralized:peers=shift-one"
        )
        layer(torch.ones(2, 4)).sum().backward()
        with pytest.raises(rabit.InvalidArgument, match="pairs the ranks"):
            optimizer.step()

    run_ranks(3, on_rank)  # Three make no pairs. It closes the engines, and raises what that raises.
