"""MethodState: what a strategy and its slots keep, as one dictionary of values by path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rabit.errors import InvalidArgument

from .state import Change, Leaf, leaves, resized, restored
from .strategy import Slot, Strategy

__all__ = ["MethodState"]


class MethodState:
    """Reads and writes it as a whole.  Between steps."""

    def __init__(self, strategy: Strategy, slots: Sequence[Slot]) -> None:
        """slots: the list may grow."""
        self._strategy = strategy
        self._slots = slots

    def by_scope(self) -> dict[str, dict[str, Any]]:
        """The values by path, those that are equal on all ranks under "replicated", others under "local"."""
        found: dict[str, dict[str, Any]] = {"replicated": {}, "local": {}}
        for path, leave in self._leaves().items():
            found[leave.scope][path] = leave.value
        return found

    def put(self, values: Mapping[str, Any]) -> None:
        """Takes these values, of all paths."""
        self._take(values, None)

    def load(self, saved: Mapping[str, Any], size: int, change: Change | None) -> None:
        """Takes what `Pipeline.state_dict` gave, on `size` ranks; see Pipeline.load_state_dict."""
        kind = type(self._strategy).__name__
        is_mapping = isinstance(saved, Mapping)
        missing = [key for key in ("step", "replicated", "local") if not is_mapping or key not in saved]
        missing += [key for key in ("replicated", "local") if not missing and not isinstance(saved[key], Mapping)]
        if missing:
            keys = ", ".join(map(repr, list(saved)[:5])) if is_mapping else ""
            what = f"has {keys or 'nothing'}" if is_mapping else f"is a {type(saved).__name__}"
            raise InvalidArgument(
                f"the saved state has no {', '.join(map(repr, missing))}, so it is not the state of a "
                f"{kind}: it {what}. Pass what strategy_state_dict "
                "gave, not the state of a model or an optimizer."
            )
        before = int(saved.get("ranks", size))
        if change is None and before != size and saved["local"]:
            raise InvalidArgument(
                f"the state of this {kind} was saved by {before} ranks, each of which has "
                f"its own part, and {size} load it. Start {before} ranks, save and restore by "
                "rabit_torch.checkpoint.Checkpoint, which divides the parts again, or begin without this state."
            )
        values = {**saved["replicated"], **saved["local"]}
        unknown = sorted(set(values) - set(self._leaves()))
        if unknown:
            raise InvalidArgument(
                f"the saved state has {', '.join(map(repr, unknown[:5]))}, which this "
                f"{kind} does not keep. Make the strategy with the arguments "
                "it was saved with."
            )
        self._take(values, change)

    def _take(self, values: Mapping[str, Any], change: Change | None) -> None:
        states = [restored(slot.state, slot.name, values) for slot in self._slots]
        own = restored(self._strategy.state(), "", values)
        if change is not None and not change.is_none:
            states = [
                resized(state, slot.name, change)
                for state, slot in zip(states, self._slots, strict=True)
            ]
            own = resized(own, "", change)
        # What is refused has changed nothing up to here: training can begin without it.
        for slot, state in zip(self._slots, states, strict=True):
            slot.state = state
        self._strategy.load(own)

    def _leaves(self) -> dict[str, Leaf]:
        found = leaves(self._strategy.state(), "")
        for slot in self._slots:
            found.update(leaves(slot.state, slot.name))
        return found
