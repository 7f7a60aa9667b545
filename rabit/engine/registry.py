"""Registry: the numbers by which requests name groups, codecs and backends."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rabit._native import check, ffi
from rabit.config.config import Config
from rabit.engine import mpi
from rabit.engine.engine_base import EngineBase
from rabit.engine.native_engine import NativeEngine
from rabit.errors import InvalidArgument

if TYPE_CHECKING:
    from rabit.compression import CompressionCodec

__all__ = ["Registry"]


class Registry(EngineBase):
    """The part of an Engine that knows groups, codecs and backends."""

    def __init__(self, config: Config, native: NativeEngine) -> None:
        super().__init__(config, native)
        self._codecs: dict[str, int] = {"": 0, "none": 0}
        self._backends: dict[str, int] = {}
        self._members: dict[int, tuple[int, ...]] = {0: tuple(range(native.size))}

    def add_group(
        self, ranks: Sequence[int], timeout: float | None = None, *, backend: str = ""
    ) -> int:
        """The number of the group of `ranks`.  Collective; blocks until every rank has called.

        backend: of its operations that name none; "": the default.
        """
        members = self._check_ranks(ranks)
        number = self.backend(backend) if backend else -1
        group = ffi.new("int32_t*")
        pointer = self._native.open_pointer()
        library = self._native.library
        limit = self._timeout_ms(timeout)
        check(library, library.rabit_add_group(pointer, members, len(members), limit, group))
        self._members[group[0]] = tuple(members)
        if number >= 0:
            self._native.group_backends[int(group[0])] = number
        return int(group[0])

    def remove_group(self, group: int, timeout: float | None = None) -> None:
        """Forgets a group.  Collective; blocks until every rank has called."""
        library, pointer = self._native.library, self._native.open_pointer()
        check(library, library.rabit_remove_group(pointer, group, self._timeout_ms(timeout)))
        self._members.pop(group, None)
        self._native.group_backends.pop(group, None)

    def members(self, group: int = 0) -> tuple[int, ...]:
        """The global ranks of a group, ascending."""
        found = self._members.get(group)
        if found is None:
            raise InvalidArgument(
                f"group {group} does not exist on rank {self.rank} (known: "
                f"{sorted(self._members)}). Add it with add_process_set on every rank."
            )
        return found

    def set_plan(self, table: str, group: int = 0, timeout: float | None = None) -> None:
        """Has the collectives of a group follow the trees of `table`, as `rabit_set_plan` describes it; "": none.

        Collective: every rank of the group calls it with the same text; blocks until all have. What is submitted
        afterwards follows the plan. Raises Mismatch if a rank has another text, and
        InvalidArgument if the text is not a plan.
        """
        library, pointer = self._native.library, self._native.open_pointer()
        limit = self._timeout_ms(timeout)
        check(library, library.rabit_set_plan(pointer, group, table.encode("utf-8"), limit))

    def flow_rates(
        self, flows: Sequence[tuple[int, int, int]], timeout: float | None = None
    ) -> list[tuple[float, float]]:
        """What links carry while transfers share them: of each flow, bytes per second and the bytes sent for it.

        flows: (round, sending rank, receiving rank), by ascending round; those of one round send at once. Collective:
        all ranks pass the same and get the same. It is an ordered call: a failure fails the engine.
        """
        given = ffi.new("int32_t[]", [number for flow in flows for number in flow])
        found = ffi.new("double[]", 2 * len(flows))
        library, pointer = self._native.library, self._native.open_pointer()
        limit = self._timeout_ms(timeout)
        check(library, library.rabit_measure_flows(pointer, given, len(flows), found, limit))
        numbers = ffi.unpack(found, 2 * len(flows))
        return list(zip(numbers[0::2], numbers[1::2], strict=True))

    def codec_id(self, compression: CompressionCodec) -> int:
        """The number of a codec on this engine; 0 for none."""
        found = self._codecs.get(getattr(compression, "spec", "?"))
        return self._add_codec(compression) if found is None else found

    def _add_codec(self, compression: CompressionCodec) -> int:
        from rabit.compression import CompressionCodec  # Whoever has one has loaded it.

        if not isinstance(compression, CompressionCodec):
            raise InvalidArgument(
                f"compression is {compression!r}: expected one of rabit.Compression, such as "
                "Compression.bf16 or Compression.levels(bits=4)."
            )
        slot = ffi.new("int32_t*")
        library, pointer = self._native.library, self._native.open_pointer()
        code = library.rabit_add_codec(pointer, compression.spec.encode("utf-8"), slot)
        check(library, code)
        found = self._codecs[compression.spec] = int(slot[0])
        return found

    def backend(self, name: str) -> int:
        """The number of a backend, for `Request.backend`."""
        if not isinstance(name, str):
            raise InvalidArgument(
                f"the backend is {name!r} of type {type(name).__name__}. Pass its name, such as 'builtin'."
            )
        found = self._backends.get(name)
        if found is None:
            if name == "mpi" and not mpi.is_wanted(self.config):
                raise InvalidArgument(
                    f"backend 'mpi' is not ready on rank {self.rank}: RABIT_BACKEND is "
                    f"{self.config.backend!r}. Set it to 'mpi', or to 'builtin,mpi' to keep "
                    "builtin as the default, before rabit.init()."
                )
            slot = ffi.new("int32_t*")
            library, pointer = self._native.library, self._native.open_pointer()
            check(library, library.rabit_find_backend(pointer, name.encode("utf-8"), slot))
            found = self._backends[name] = int(slot[0])
        return found

    def has_backend(self, name: str) -> bool:
        """True if requests may name this backend."""
        with contextlib.suppress(InvalidArgument):
            return self.backend(name) >= 0
        return False

    def _timeout_ms(self, timeout: float | None) -> int:
        return int((self.config.connect_timeout if timeout is None else timeout) * 1000)

    def _check_ranks(self, ranks: Sequence[int]) -> list[int]:
        members = sorted(int(rank) for rank in ranks)
        valid = all(0 <= rank < self.size for rank in members)
        if not members or len(set(members)) != len(members) or not valid:
            raise InvalidArgument(
                f"a process set of ranks {list(ranks)} cannot be made in a job of {self.size}: "
                f"ranks must differ and lie between 0 and {self.size - 1}. Correct the list."
            )
        return members
