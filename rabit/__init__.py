"""rabit: distributed data-parallel training."""

from rabit._version import __version__

__all__ = ["__version__"]
