"""Where NCCL is: pip installs it beside the packages, where the loader does not look."""

from __future__ import annotations

import importlib.util

from rabit.config.config import Config

__all__ = ["library_path", "with_library"]

_FILE = "libnccl.so.2"


def with_library(config: Config) -> Config:
    """The same configuration, with the file of NCCL if it names that backend."""
    if not {"auto", "nccl"} & set(config.backend.split(",")):
        return config
    return config.replace(nccl_library=library_path(config.nccl_library))


def library_path(chosen: str = "") -> str:
    """The file that the native library is to load; "": what is loaded, or what the loader finds.

    chosen: the setting, which goes before everything else.
    """
    if chosen or _is_loaded():
        return chosen
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        return ""
    from pathlib import Path

    places = () if spec is None else spec.submodule_search_locations or ()
    found = (Path(place) / "lib" / _FILE for place in places)
    return next((str(each) for each in found if each.is_file()), "")


def _is_loaded() -> bool:
    """torch for CUDA has a copy of its own; a second one would take memory of every device."""
    from pathlib import Path

    try:
        return _FILE in Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return False
