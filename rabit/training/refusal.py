"""refuse_in_elastic_jobs: what an elastic job cannot have, told when it is made."""

from __future__ import annotations

from collections.abc import Mapping

from rabit.engine.current import current_engine
from rabit.errors import InvalidArgument

__all__ = ["refuse_in_elastic_jobs"]


def refuse_in_elastic_jobs(what: str, asked: Mapping[str, bool], instead: str) -> None:
    """Raises InvalidArgument in an elastic job for what cannot go on when its ranks change.

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
