"""Gradient methods: how gradients or parameters of the ranks become one, and when.

    optimizer = rabit.DistributedOptimizer(optimizer, strategy=rabit.strategies.PowerSGD(rank=2))

An Exchange says how one array of every rank becomes one, a Strategy what travels when.  A method of
one's own is a class with one `async` function; see the guide "Write a method".
"""

# The names load at the first use of any of them: most jobs use no method.
import typing as _typing
from importlib import import_module as _import_module

if _typing.TYPE_CHECKING:
    from rabit.strategies.names import *  # noqa: F403
else:

    def __getattr__(name: str) -> _typing.Any:
        if name == "__all__" or not name.startswith("_"):
            names = _import_module("rabit.strategies.names")
            globals().update({public: getattr(names, public) for public in names.PUBLIC})
            globals()["__all__"] = list(names.PUBLIC)
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module 'rabit.strategies' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted(__getattr__("__all__"))
