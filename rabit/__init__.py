"""rabit: distributed data-parallel training.

    import numpy as np
    import rabit

    rabit.init()
    mean = rabit.allreduce(np.ones(4), name="x")

Framework packages such as rabit_torch build on the same functions.
"""

# The names load at the first use of any of them: the launcher and other programs that only look
# at the package start without NumPy and the native library.
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
            globals().update({each: vars(api)[each] for each in api.__all__ if each in vars(api)})
            globals()["__all__"] = list(api.__all__)
            if name in globals():
                return globals()[name]
            if name in api.__all__:
                globals()[name] = getattr(api, name)
                return globals()[name]
        raise AttributeError(f"module 'rabit' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted(__getattr__("__all__"))
