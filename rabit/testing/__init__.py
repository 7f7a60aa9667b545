"""Helpers for tests of programs that use rabit."""

from rabit.testing._run_ranks import run_ranks

__all__ = ["run_ranks"]
