"""The autotuner on an engine: what it needs of the configuration, and what it sees of the job."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from rabit.config.config import Config, process_environment
from rabit.config.sources import DEFAULT
from rabit.errors import InvalidArgument
from rabit.printable import printable
from rabit.tuning.knobs import KNOBS, Values, parse_knobs

if TYPE_CHECKING:
    from rabit.tuning.tuner import Tuner, Work

__all__ = ["Choice", "TunedEngine", "extra_options", "make_tuner"]

_NATIVE_KNOBS = tuple(name for name in KNOBS if name != "overlap")
# Lanes that are started where no number is given; and where their number is tuned.
_STARTED_LANES = 2
_LANES = 4


class Choice(Protocol):
    """The overlap of an optimizer, where the tuner may choose it."""

    names: tuple[str, ...]
    current: str
    is_open: bool
    is_closed: bool

    def propose(self, name: str) -> None: ...

    def end(self) -> None: ...


class TunedEngine(Protocol):
    """What the autotuner needs of an engine."""

    config: Config
    overlap_choice: Choice | None

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def local_size(self) -> int: ...

    def statistics(self) -> dict[str, Any]: ...

    def propose_tunables(
        self,
        *,
        partition_bytes: int | None = None,
        fusion_bytes: int | None = None,
        credit_bytes: int | None = None,
        lanes: int | None = None,
    ) -> None: ...

    def reset_tunables(self) -> None: ...


def extra_options(config: Config) -> dict[str, object]:
    """Native options, except that only rank 0 has the rules of the route table.

    What is wrong with the table goes there as well, where all ranks will hear of it.
    """
    options: dict[str, object] = {"lanes_max": _lanes_max(config)} if _is_wanted(config) else {}
    if config.route_table:
        options["route_table"] = "?"
        if config.rank == 0:
            try:
                options["route_table"] = "=" + _read_table(config)[0]
            except InvalidArgument as error:
                options["route_table"] = "!" + " ".join(str(error).split())
    return options


def apply_table(engine: TunedEngine) -> None:
    """Puts the sizes of the route table in force, but for those that the user has set."""
    config = engine.config
    if not config.route_table or engine.rank != 0 or engine.size == 1 or _is_wanted(config):
        return
    _, tunables = _read_table(config)
    free = {
        name: value
        for name, value in tunables.items()
        if config.origin(name) == DEFAULT and (name != "lanes" or value <= _STARTED_LANES)
    }
    if free:
        engine.propose_tunables(**free)


def _read_table(config: Config) -> tuple[str, dict[str, int]]:
    # Few jobs have one.
    from pathlib import Path

    from rabit.tuning.route_table import read_table

    return read_table(Path(config.route_table), config)


def make_tuner(engine: TunedEngine) -> Tuner | None:
    """The autotuner of this job; None if none is wanted, or on another rank than 0.

    Raises InvalidArgument for a log file that cannot be used.
    """
    config = engine.config
    if engine.rank != 0 or engine.size == 1:
        return None
    if not _is_wanted(config):
        if config.autotune:
            _say("autotune is off: RABIT_DETERMINISTIC=1 freezes what it would change")
        return None
    from pathlib import Path

    from rabit.tuning.records import Cache, Log, cache_folder
    from rabit.tuning.tuner import Plan, Tuner

    hosts = -(-engine.size // max(engine.local_size, 1))
    topology = (
        f"{engine.size} ranks, {hosts} hosts, transport {config.transport}, "
        f"scheduler {config.scheduler}, "
        f"algorithm {config.allreduce_algorithm or 'by cost'}"
    )
    plan = Plan(
        start={
            "partition_bytes": config.partition_bytes,
            "fusion_bytes": config.fusion_bytes,
            "credit_bytes": config.credit_bytes,
            "lanes": int(engine.statistics()["tunables"]["lanes"]),
            "overlap": "",
        },
        knobs=parse_knobs(config.autotune_knobs),
        lanes_max=_lanes_max(config),
        topology=topology,
        backend=config.backend,
        warmup=config.autotune_warmup_samples,
        samples=config.autotune_samples,
        steps=config.autotune_steps_per_sample,
    )
    cache = Cache(
        cache_folder(config.autotune_cache, process_environment()),
        lambda text: _say(f"warning: autotune on rank 0: {text}"),
    )
    log = Log(Path(config.autotune_log)) if config.autotune_log else None
    return Tuner(_EngineSubject(engine), plan, cache, log, _say)


class _EngineSubject:
    def __init__(self, engine: TunedEngine) -> None:
        self._engine = engine
        self._values: Values = {name: getattr(engine.config, name) for name in _NATIVE_KNOBS}

    def now(self) -> float:
        return time.monotonic()

    def is_ready(self) -> bool:
        choice = self._engine.overlap_choice
        return choice is None or choice.is_open or choice.is_closed

    def overlaps(self) -> tuple[str, ...]:
        choice = self._engine.overlap_choice
        return choice.names if choice is not None and choice.is_open else ()

    def propose(self, values: Values) -> None:
        self._engine.propose_tunables(**{name: values[name] for name in _NATIVE_KNOBS})
        self._propose_overlap(values["overlap"])

    def reset(self) -> None:
        self._engine.reset_tunables()
        self._propose_overlap("")

    def end(self) -> None:
        if self._engine.overlap_choice is not None:
            self._engine.overlap_choice.end()

    def _propose_overlap(self, name: str) -> None:
        if self._engine.overlap_choice is not None:
            self._engine.overlap_choice.propose(name)

    def work(self) -> Work:
        from rabit.tuning.tuner import Work

        document = self._engine.statistics()
        # An engine thread that is busy leaves its part out.
        found = document.get("tunables", self._values)
        self._values = {name: int(found[name]) for name in _NATIVE_KNOBS}
        choice = self._engine.overlap_choice
        overlap = choice.current if choice is not None and choice.is_open else ""
        values = {**self._values, "overlap": overlap}
        return Work(int(document["totals"]["bytes"]), int(document["work_hash"]), values)


def _is_wanted(config: Config) -> bool:
    return config.autotune and config.size > 1 and not config.deterministic


def _lanes_max(config: Config) -> int:
    is_tuned = "lanes" in parse_knobs(config.autotune_knobs)
    return max(config.lanes, _LANES) if is_tuned else config.lanes


def _say(text: str) -> None:
    print(f"rabit: {printable(text)}", file=sys.stderr)
