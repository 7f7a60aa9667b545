"""ReplicatedStore: keys that several stores hold together, so that fewer than half of them may be lost.

Each store holds an acceptor of Paxos for each key, and whoever changes a key proposes (Rystsov, "CASPaxos:
Replicated State Machines without logs", 2018).  There is no primary, so no one has to be fenced.  A store's
own compare-and-set makes each step of its acceptor one, so the stores are those that one alone is.
"""

from __future__ import annotations

import functools
import queue
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from rabit.errors import Aborted, InvalidArgument, PeerLost, RabitError, TimedOut
from rabit.rendezvous.acceptor import HISTORY, VALUE_MAX, Acceptance, Ballot
from rabit.rendezvous.replica import MARK, Answer, Client, Replica, read
from rabit.rendezvous.store_client import StoreClient, Versioned
from rabit.threads import start_thread

__all__ = ["ReplicatedStore", "several_stores"]

# A store that does not take a connection in this time is done without.
_CONNECT_S = 1.0

# A majority that does not answer in this time is not there.
_ANSWER_S = 10.0
# Who asks again is not in the way of the one that is just writing.
_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.1
# So long a wait at one store lasts, after which the others are asked as well.
_SLICE_S = 5.0
_PROBE_S = 1.0
# Proposals that are under way are mostly through after this many looks.
_LOOKS = 4


class ReplicatedStore:
    """Linearizable: set, compare_and_set and watch take effect at one moment between call and return.

    Thread-safe.  connects: of each store its address and how to connect; the same on every process, in
    this order.  Every call raises PeerLost if no majority of the stores answers, and then no one knows
    whether a change happens later.
    """

    def __init__(self, connects: Sequence[tuple[str, Callable[[], Client]]]) -> None:
        self._replicas = [Replica(i, address, made) for i, (address, made) in enumerate(connects)]
        self._majority = len(self._replicas) // 2 + 1
        self._proposer = secrets.randbits(64)
        self._random = random.Random(self._proposer)
        self._lock = threading.Lock()
        self._counter = 0

    def set(self, key: str, value: bytes) -> None:
        """Gives `key` this value."""
        self._change(key, None, value)

    def compare_and_set(self, key: str, version: int, value: bytes) -> tuple[bool, Versioned]:
        """Gives `key` this value if it has `version` still; 0: if it has never been set.

        Returns whether it did so, and what the key holds then.
        """
        return self._change(key, version, value)

    def watch(self, key: str, seen: int, timeout: float) -> Versioned:
        """What `key` holds as soon as its version is later than `seen`.

        Waits at most `timeout` seconds, then raises TimedOut.
        """
        deadline = time.monotonic() + timeout
        while True:
            held, versions = self._look(key)
            if held.version > seen:
                return held
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimedOut(
                    f"store key {key!r} has version {held.version} still: no one has set it again before the "
                    "deadline; wait longer, or see whether the process that sets it still runs"
                )
            self._wait(key, seen, versions, min(left, _SLICE_S))

    def tell(self, key: str, value: bytes) -> None:
        """Gives `key` this value at each of the stores by itself, unless it has one there.  Returns at once."""
        for replica in self._replicas:
            replica.ask(lambda client: client.compare_and_set(key, 0, value), lambda _: None)

    def told(self, key: str) -> bytes | None:
        """What a process has reported to any one of the stores; None: nothing there.  Not what `set` sets."""
        deadline = time.monotonic() + _PROBE_S
        for answer in self._ask(lambda client: read(client, key), deadline):
            if isinstance(answer.value, Versioned) and answer.value.version:
                return answer.value.value
        return None

    def spread(self, key: str, value: bytes) -> int:
        """Sets `key` at each of the stores by itself; returns how many have taken it within a second."""
        deadline = time.monotonic() + _PROBE_S
        answers = self._ask(lambda client: client.set(key, value), deadline)
        return sum(1 for answer in answers if answer.error is None)

    def unreached(self) -> list[int]:
        """The stores that do not answer this process, by their places in the list.  A second at most."""
        deadline = time.monotonic() + _PROBE_S
        answers = self._ask(lambda client: read(client, MARK), deadline)
        reached = {answer.index for answer in answers if answer.error is None}
        return [replica.index for replica in self._replicas if replica.index not in reached]

    @property
    def majority(self) -> int:
        """So many of the stores have to answer."""
        return self._majority

    def close(self) -> None:
        """Disconnects.  Idempotent."""
        for replica in self._replicas:
            replica.close()

    # Proposing.
    def _change(self, key: str, expected: int | None, value: bytes) -> tuple[bool, Versioned]:
        if len(value) > VALUE_MAX:
            raise InvalidArgument(
                f"the value of store key {key!r} has {len(value)} bytes; stores with replicas take at most "
                f"{VALUE_MAX}"
            )
        writer = secrets.randbits(64)
        floor: int | None = None  # the version before the first attempt that may have happened
        deadline = time.monotonic() + _ANSWER_S
        for ballot in self._ballots(deadline):
            held = self._promised(key, ballot, deadline)
            if held is None:
                continue
            is_mine = writer in held.writers
            if is_mine:
                made = held.version - held.writers[::-1].index(writer)
            elif floor is not None and held.version > floor + HISTORY:
                raise Aborted(
                    f"the change of store key {key!r} from version {floor} may have happened or not: it has "
                    f"version {held.version} now, and the stores remember {HISTORY} changes. Read it again."
                )
            elif expected is None or expected == held.version:
                made, is_mine = held.version + 1, True
                floor = held.version if floor is None else floor
                held = held.with_change(writer, value)
            if not self._accepted(key, ballot, held, deadline):
                continue
            return is_mine, Versioned(made, value) if is_mine else Versioned(held.version, held.value)
        raise self._too_few(key)

    def _ballots(self, deadline: float) -> Iterator[Ballot]:
        """Numbers of attempts, with growing pauses between them."""
        pause_s = _PAUSE_S
        while time.monotonic() < deadline:
            with self._lock:
                self._counter += 1
                ballot = Ballot(self._counter, self._proposer)
            yield ballot
            # By chance: two that propose at the same time would refuse each other forever.
            time.sleep(self._random.uniform(0, pause_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _promised(self, key: str, ballot: Ballot, deadline: float) -> Acceptance | None:
        """The newest proposal that may have been chosen, once a majority accepts none below `ballot`."""
        found = self._step(key, ballot, lambda state: state.promise(ballot), deadline)
        return max(found, key=lambda state: state.accepted) if found else None

    def _accepted(self, key: str, ballot: Ballot, proposed: Acceptance, deadline: float) -> bool:
        """True once a majority has accepted."""
        return bool(self._step(key, ballot, lambda state: state.accept(ballot, proposed), deadline))

    def _step(
        self,
        key: str,
        ballot: Ballot,
        step: Callable[[Acceptance], Acceptance | None],
        deadline: float,
    ) -> list[Acceptance]:
        """The states of a majority after this step; empty: not enough of them have done it."""

        def take(client: Client) -> tuple[bool, Acceptance]:
            held = read(client, key)
            while True:
                state = Acceptance.from_bytes(held.value)
                stepped = step(state)
                if stepped is None:
                    return False, state
                is_done, held = client.compare_and_set(key, held.version, stepped.to_bytes())
                if is_done:
                    return True, stepped

        done: list[Acceptance] = []
        for answer in self._ask(take, deadline):
            if answer.error is not None:
                continue
            assert isinstance(answer.value, tuple)
            is_done, state = answer.value
            if is_done:
                done.append(state)
            self._has_seen(state.promised)
            if len(done) == self._majority:
                return done
        return []

    def _has_seen(self, ballot: Ballot) -> None:
        with self._lock:
            self._counter = max(self._counter, ballot.counter)

    # Reading.
    def _look(self, key: str) -> tuple[Versioned, dict[int, int]]:
        """What `key` holds, and the version of what each store that has answered has of it.

        Where a majority holds the proposal of one ballot, that one is chosen, and at the moment of the
        first of their answers no later one was: a majority of that would have one of them in it.
        """
        deadline = time.monotonic() + _ANSWER_S
        pause_s = _PAUSE_S
        for _ in range(_LOOKS):
            versions: dict[int, int] = {}
            holders: dict[Ballot, int] = {}
            for answer in self._ask(lambda client: read(client, key), deadline):
                if answer.error is not None:
                    continue
                assert isinstance(answer.value, Versioned)
                state = Acceptance.from_bytes(answer.value.value)
                self._has_seen(state.promised)
                versions[answer.index] = answer.value.version
                holders[state.accepted] = holders.get(state.accepted, 0) + 1
                if holders[state.accepted] == self._majority:
                    return Versioned(state.version, state.value), versions
            time.sleep(self._random.uniform(0, pause_s))
            pause_s *= 2
        # A proposer that began a change may not have ended it: another proposal completes or reverts it.
        for ballot in self._ballots(deadline):
            held = self._promised(key, ballot, deadline)
            if held is not None and self._accepted(key, ballot, held, deadline):
                return Versioned(held.version, held.value), {}
        raise self._too_few(key)

    def _wait(self, key: str, seen: int, versions: dict[int, int], limit_s: float) -> None:
        """Returns when one of the stores has heard of a later version than `seen`, or after this time."""
        is_later = threading.Event()
        if not versions:
            time.sleep(min(_PAUSE_S, limit_s))
            return

        def wait_at(client: Client, version: int) -> None:
            end = time.monotonic() + limit_s
            try:
                while not is_later.is_set():
                    left = max(0.0, end - time.monotonic())
                    version, value = client.watch(key, version, left)
                    if Acceptance.from_bytes(value).version > seen:
                        is_later.set()
            except RabitError:
                return  # The time is over, or the store is gone: the others tell of a change.

        for replica in self._replicas:
            client = replica.client()
            if client is not None and replica.index in versions:
                # A daemon, which outlives the wait by one change at most.
                start_thread(functools.partial(wait_at, client, versions[replica.index]), "store-wait")
        is_later.wait(limit_s)

    def _ask(self, task: Callable[[Client], object], deadline: float) -> Iterator[Answer]:
        """The answers of all stores, as they come."""
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        for replica in self._replicas:
            replica.ask(task, answers.put)
        for _ in self._replicas:
            try:
                found = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            if found.error is not None and not isinstance(found.error, RabitError):
                raise found.error
            yield found

    def _too_few(self, key: str) -> PeerLost:
        away = [self._replicas[index].address for index in self.unreached()]
        shown = ", ".join(away) or "none at the moment"
        return PeerLost(
            f"no {self._majority} of the {len(self._replicas)} stores of the job have answered for key {key!r} "
            f"in {_ANSWER_S:g} s: not reached are {shown}. The job cannot change its members without them; "
            "start it again."
        )


def several_stores(
    addresses: Sequence[str], secret: bytes, rank: int = -1, library_path: str = ""
) -> ReplicatedStore:
    """A client of the stores at these addresses; none of them is asked yet."""

    def connects(address: str) -> Callable[[], Client]:
        return lambda: StoreClient(
            address, secret, rank=rank, timeout=_CONNECT_S, library_path=library_path
        )

    return ReplicatedStore([(replica_address, connects(replica_address)) for replica_address in addresses])
