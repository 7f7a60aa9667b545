"""What an elastic job cannot have, refused when the job is made."""

from __future__ import annotations

from collections.abc import Mapping

from rabit.engine.current import current_engine
from rabit.errors import InvalidArgument

from .strategy import Strategy, parts_of

__all__ = ["refuse_in_elastic_jobs", "refuse_strategy_in_elastic_jobs"]


def refuse_in_elastic_jobs(what: str, asked: Mapping[str, bool], instead: str) -> None:
    """Raises InvalidArgument in an elastic job for what cannot continue when its ranks change.

    what: is made.  asked: what the caller wants or the configuration says, by name; True: it is asked
    for.  instead: what to do.
    """
    found = [name for name, is_asked in asked.items() if is_asked]
    config = current_engine().config
    if not found or config.min_np == 0:
        return
    raise InvalidArgument(
        f"{what} with {', '.join(found)} in an elastic job (--min-np {config.min_np}): it holds what a lost "
        f"rank leaves in pieces (residuals, updates that wait, groups of ranks), and has no way back to a "
        f"commit yet. {instead}, or start the job without --min-np and with --max-restarts and checkpoints."
    )


def refuse_strategy_in_elastic_jobs(strategy: Strategy | None) -> None:
    """Raises InvalidArgument in an elastic job for a method that other numbers of ranks may break."""
    config = current_engine().config
    if strategy is None or config.min_np == 0:
        return
    needy = next((part for part in parts_of(strategy) if part.needs_of_ranks), None)
    if needy is None:
        return
    raise InvalidArgument(
        f"strategy {type(needy).__name__} in an elastic job (--min-np {config.min_np}): "
        f"{needy.needs_of_ranks}, and there may be others after a loss. Use another strategy, or start the "
        "job without --min-np and with --max-restarts and checkpoints."
    )
