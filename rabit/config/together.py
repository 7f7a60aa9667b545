"""What settings say together: one that means nothing without another is refused where a job starts.

Config itself takes each alone, since code may set them one after the other.
"""

from __future__ import annotations

from rabit.config.config import Config
from rabit.errors import InvalidArgument

__all__ = ["check_together"]


def check_together(config: Config, where: str) -> None:
    """Raises InvalidArgument for a setting that would have no effect without another one.

    where: on which ranks, for the message.
    """
    if config.ps_staleness >= 0 and not config.ps_async:
        raise InvalidArgument(
            f"ps_staleness is {config.ps_staleness} {where} (from: {config.origin('ps_staleness')}), and "
            f"ps_async is 0 (from: {config.origin('ps_async')}): the first bounds how far ranks are apart "
            "that update parameters on summation servers by themselves, and without the second every step "
            "waits for all ranks. Set RABIT_PS_ASYNC=1 (--ps-async) as well, or unset RABIT_PS_STALENESS "
            "(--ps-staleness)."
        )
