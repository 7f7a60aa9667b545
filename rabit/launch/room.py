"""Room: where an elastic job has processes, and where the next one is to start.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rabit.launch.hosts import Host

__all__ = ["Cooldown", "Grows", "Room"]

# So many processes that end badly on one host, each less than so long after its start or after the
# one before, are the host's or the program's fault rather than chance.
_FAILURES_MAX = 3
_FAILURE_WINDOW_S = 60.0


@dataclass(frozen=True)
class Cooldown:
    """For how long a host is set aside, in seconds: the first time, doubled each time, at most."""

    first_s: float = 10.0
    most_s: float = 300.0


@dataclass(frozen=True)
class Grows:
    """How a job starts processes while it runs.

    hosts: all that there are at the start, also those without a rank.  most: ranks that the job may
    have.  spares: processes that wait beyond them.  look: gives the hosts again, every `interval_s`;
    None: they stay.
    """

    hosts: Sequence[Host]
    most: int
    spares: int = 0
    look: Callable[[], Sequence[Host]] | None = None
    interval_s: float = 1.0
    cooldown: Cooldown = field(default_factory=Cooldown)


@dataclass
class _Place:
    """What happens on one host.  processes: their slots, by number."""

    host: Host
    slots: int
    processes: dict[int, int] = field(default_factory=dict)
    failures: list[float] = field(default_factory=list)
    times_aside: int = 0
    aside_until: float | None = None

    @property
    def free(self) -> int:
        return self.slots - len(self.processes)

    def free_slot(self) -> int:
        taken = set(self.processes.values())
        return next(index for index in range(len(taken) + 1) if index not in taken)


class Room:
    """The hosts, their slots and who is there.  One thread only.  Times are of one clock, in seconds.

    most: ranks that the job has at most.  spares: processes beyond those ranks that wait.
    """

    def __init__(self, hosts: Sequence[Host], most: int, spares: int, cooldown: Cooldown) -> None:
        self._most = most
        self._spares = spares
        self._cooldown = cooldown
        self._places: dict[str, _Place] = {}
        self.set_hosts(hosts)

    def set_hosts(self, hosts: Sequence[Host]) -> None:
        """These are the hosts from now on; one that is not among them has no slots any more."""
        for place in self._places.values():
            place.slots = 0
        for host in hosts:
            place = self._places.setdefault(str(host), _Place(host, 0))
            place.host, place.slots = host, host.slots

    def add(self, number: int, host: str) -> int:
        """A process runs on `host`, one of the hosts: returns its slot there."""
        place = self._places[host]
        place.processes[number] = slot = place.free_slot()
        return slot

    def remove(self, number: int) -> str:
        """The process has ended; returns its host."""
        for name, place in self._places.items():
            if place.processes.pop(number, None) is not None:
                return name
        return ""

    def failed(self, host: str, now: float) -> float:
        """A process has ended badly on `host`: for how long the host is set aside therefore, or 0."""
        place = self._places[host]
        place.failures = [failure for failure in place.failures if now - failure < _FAILURE_WINDOW_S] + [now]
        if len(place.failures) < _FAILURES_MAX:
            return 0.0
        place.failures.clear()
        time_s = min(self._cooldown.most_s, self._cooldown.first_s * float(1 << place.times_aside))
        place.times_aside += 1
        place.aside_until = now + time_s
        return time_s

    @property
    def size(self) -> int:
        """How many ranks there are slots for, at most those that the job may have."""
        return min(self._most, sum(place.slots for place in self._places.values()))

    def leaving(self, members: Iterable[int]) -> list[int]:
        """The members whose slot no longer exists: the youngest of each host."""
        inside = set(members)
        found: list[int] = []
        for place in self._places.values():
            there = sorted(process for process in place.processes if process in inside)
            found += there[place.slots :]
        return found

    def next_host(self, members: Iterable[int], now: float) -> Host | None:
        """Where a process is to start, if one is wanted and a host can have it; else None.

        A spare may share its host's slots with others: it does nothing until it is needed.
        """
        going = set(self.leaving(members))
        usable = [place for place in self._places.values() if place.slots and not self._is_aside(place, now)]
        running = sum(len(place.processes) for place in self._places.values()) - len(going)
        if not usable or running >= self.size + self._spares:
            return None
        place = max(usable, key=lambda each: each.free)
        if place.free <= -self._spares:  # Without spares nobody waits where there is no slot.
            return None
        return place.host

    def due(self) -> float | None:
        """When the first host that is set aside comes back."""
        return min((e.aside_until for e in self._places.values() if e.aside_until is not None), default=None)

    def _is_aside(self, place: _Place, now: float) -> bool:
        if place.aside_until is not None and now >= place.aside_until:
            place.aside_until = None
        return place.aside_until is not None
