"""All mutants, those without a build first."""

from __future__ import annotations

from faults.mutants import (
    of_agreements,
    of_checkpoints,
    of_links,
    of_members,
    of_methods,
    of_stores,
)
from faults.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = [
    *of_checkpoints.MUTANTS,
    *of_methods.MUTANTS,
    *of_members.MUTANTS,
    *of_stores.MUTANTS,
    *of_links.MUTANTS,
    *of_agreements.MUTANTS,
]
