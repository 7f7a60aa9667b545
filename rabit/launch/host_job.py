"""HostJob: everything that one host has to know to start its ranks."""

from __future__ import annotations

import base64
import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from rabit.errors import InvalidArgument
from rabit.launch.program import Program

__all__ = ["HostJob", "RankJob"]


@dataclass(frozen=True)
class RankJob:
    """One process and the variables that are its alone.

    is_server: a summation server, whose number counts after the ranks.
    """

    rank: int
    environ: dict[str, str]
    is_server: bool = False


@dataclass(frozen=True, kw_only=True)
class HostJob(Program):
    """What a host starts.  Its text form holds the secret: it travels through pipes only.

    slots, first_slot: of the host, and the one of the first rank here, when processes of several jobs
    share its processors; 0: these ranks share them.  environ: variables of every rank; None in the text
    of a remote job: the far side's own, and those here on top.  stores: addresses of those that hold the
    membership together, when the ranks are to continue without the launcher.
    """

    job: str
    version: str
    host: str
    environ: dict[str, str]
    ranks: tuple[RankJob, ...]
    secret: bytes | None = dataclasses.field(default=None, repr=False)
    sets_threads: bool = True
    slots: int = 0
    first_slot: int = 0
    stores: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        document = dataclasses.asdict(self)
        document["secret"] = self.secret.hex() if self.secret is not None else None
        document["payload"] = (
            base64.b64encode(self.payload).decode() if self.payload is not None else None
        )
        return json.dumps(document).encode()

    @classmethod
    def from_json(cls, text: bytes) -> HostJob:
        try:
            document: dict[str, Any] = json.loads(text)
            document["command"] = tuple(document["command"])
            document["stores"] = tuple(document["stores"])
            document["ranks"] = tuple(RankJob(**each) for each in document["ranks"])
            if document["secret"] is not None:
                document["secret"] = bytes.fromhex(document["secret"])
            if document["payload"] is not None:
                document["payload"] = base64.b64decode(document["payload"], validate=True)
            return cls(**document)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgument(
                f"the description of the job is malformed: {type(error).__name__}. Install the "
                "same version of mariza-rabit on every host."
            ) from error
