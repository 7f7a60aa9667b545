"""MeetingPlace: at which of several stores the members of an epoch tell each other what they need.  Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MeetingPlace"]


@dataclass(frozen=True)
class MeetingPlace:
    """store: its place in the list of `stores`.  unreached: of each how many that want the next epoch miss it."""

    stores: int = 1
    store: int = 0
    unreached: Mapping[int, int] = field(default_factory=dict)

    def without(self, stores: Collection[int]) -> MeetingPlace:
        """One more does not reach these."""
        counts = dict(self.unreached)
        for store in stores:
            counts[store] = counts.get(store, 0) + 1
        return dataclasses.replace(self, unreached=counts)

    def next(self) -> MeetingPlace:
        """Of the next epoch: the store that most reach; where they have met before, if it is one of those."""
        chosen = min(
            range(self.stores), key=lambda e: (self.unreached.get(e, 0), e != self.store, e)
        )
        return MeetingPlace(self.stores, chosen)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> MeetingPlace:
        """Of what `dataclasses.asdict` gives, when it has been through JSON."""
        counts = {int(key): int(value) for key, value in document["unreached"].items()}
        return cls(int(document["stores"]), int(document["store"]), counts)
