"""EngineBase: where a rank stands, and its engine in native code."""

from __future__ import annotations

from rabit.config.config import Config
from rabit.engine.native_engine import NativeEngine

__all__ = ["EngineBase"]


class EngineBase:
    """What the parts of an Engine share."""

    def __init__(self, config: Config, native: NativeEngine) -> None:
        self.config = config
        self._native = native

    @property
    def native(self) -> NativeEngine:
        """The engine in native code, for runtimes that submit to it without Python."""
        return self._native

    @property
    def rank(self) -> int:
        return self._native.rank

    @property
    def size(self) -> int:
        return self._native.size

    @property
    def local_rank(self) -> int:
        return self.config.local_rank

    @property
    def local_size(self) -> int:
        return self.config.local_size

    @property
    def cross_rank(self) -> int:
        return self.config.cross_rank

    @property
    def cross_size(self) -> int:
        return self.config.cross_size

    @property
    def is_closed(self) -> bool:
        return self._native.is_closed

    def check_process(self) -> None:
        """Raises NotInitialized in a process that was forked from the one that made the engine."""
        self._native.live_pointer()
