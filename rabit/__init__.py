"""rabit: distributed data-parallel training.

    import numpy as np
    import rabit

    rabit.init()
    mean = rabit.allreduce(np.ones(4), name="x")

Framework packages such as rabit_torch build on the same functions.
"""

# Each name loads at its first use: see rabit.api.
import typing as _typing
from importlib import import_module as _import_module

from rabit.version import __version__ as __version__

if _typing.TYPE_CHECKING:
    from rabit.api import *  # noqa: F403
    from rabit.api import __all__ as __all__
else:

    def __getattr__(name: str) -> _typing.Any:
        if name == "__all__" or not name.startswith("_"):
            api = _import_module("rabit.api")
            if name == "__all__" or name in api.__all__:
                globals()[name] = getattr(api, name)
                return globals()[name]
        raise AttributeError(f"module 'rabit' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted(__getattr__("__all__"))
