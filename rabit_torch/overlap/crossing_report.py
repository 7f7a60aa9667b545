"""What crosses into the next forward pass and what cannot, told once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import rabit
from rabit_torch.parameter_state import ParameterState, Phase

__all__ = ["report_crossing"]

_NAMED_MAX = 5


def report_crossing(
    states: Iterable[ParameterState], prefix: str, engine: rabit.Engine, overlap: str
) -> None:
    """After the step that recorded uses: puts the bytes into statistics()["overlap"]["bytes"].

    Warns of parameters that have a gradient although nothing was seen to read them: they are updated
    inside step(), which waits for their gradients.
    """
    trained = [state for state in states if state.parameter.requires_grad]
    late = [
        state
        for state in trained
        if state.update is not None
        and not state.update.is_seen
        and state.update.phase is not Phase.WATCHED
    ]
    in_step = sum(state.bytes for state in late)
    whole = sum(state.bytes for state in trained)
    report = engine.reports.setdefault("overlap", {})
    report.setdefault("bytes", {})[prefix] = {"crossing": whole - in_step, "in_step": in_step}
    if not late:
        return
    names = ", ".join(repr(state.name[len(prefix) + 1 :]) for state in late[:_NAMED_MAX])
    more = f" and {len(late) - _NAMED_MAX} more" if len(late) > _NAMED_MAX else ""
    warnings.warn(
        f"overlap={overlap!r} on rank {engine.rank}: {len(late)} of {len(trained)} parameters "
        f"({in_step} of {whole} bytes) are updated inside step(), which waits for their gradients, "
        f"because no code in Python was seen to read them in the forward pass: {names}{more}. Compiled "
        "code and extensions read so; read the parameters in Python, or use overlap='backward'.",
        stacklevel=6,
    )
