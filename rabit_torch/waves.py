"""Two ranks on one device in turns: one runs forward while the other runs backward."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rabit import InvalidArgument, allgather_object, barrier, default_engine
from rabit.training.wave_board import WaveBoard, make_board_file

__all__ = ["Waves"]


class Waves:
    """With `rabitrun --waves 2`, ranks 2k and 2k + 1 of a host share a device and its memory in turns.

    ::

        waves = rabit.Waves(model)
        for batch, labels in batches:
            with waves.cycle():
                loss(model(batch), labels).backward()
            optimizer.step()

    Beside each other, two ranks need twice the memory for activations; here a rank saves no more in its
    forward pass than the other has given back in its backward pass, and both save at most `room` times what
    one saves.  They are ranks like any others: what they compute is not changed in a bit, only when.
    In the first cycle one begins when the other runs backward, to learn what one needs.  Without RABIT_WAVES=2
    a cycle is what is in it, and no more.
    model: whose parameters and buffers count as no activations.
    room: at least 1; with more the two overlap for longer.
    To be made on all ranks alike; an even number of them on every host.  A layer that waits
    for other ranks in the forward pass, as SyncBatchNorm does, would wait until `timeout`.
    What is saved counts with all the memory that it keeps alive: clone a batch that is a view of a data set.
    Tensors that are saved must not be changed in place before the backward pass, as ever; it is refused.
    Source: Wang et al., "Wavelet: Efficient DNN Training with Tick-Tock Scheduling", 2021.
    """

    def __init__(
        self, model: torch.nn.Module, *, room: float = 1.15, timeout: float = 300.0
    ) -> None:
        """timeout: seconds for which a rank waits for memory at most."""
        engine = default_engine()
        if room < 1:
            raise InvalidArgument(f"Waves(room={room}): room is in multiples of one rank's activations; use 1 or more.")
        self._model = model
        self._counts: dict[int, int] = {}  # of saved tensors, by storage
        self.board: WaveBoard | None = None
        self.wave = engine.config.local_rank % engine.config.waves
        if engine.config.waves > 1:
            self._open(engine, room, timeout)

    def _open(self, engine: Any, room: float, timeout: float) -> None:
        config = engine.config
        if config.local_size % 2:
            raise InvalidArgument(
                f"Waves on rank {engine.rank}: its host has {config.local_size} ranks; two waves take an "
                "even number. Start as many ranks on every host, or leave Waves out."
            )
        path = make_board_file() if self.wave == 0 else ""
        name = engine.next_name("waves")
        place = (config.host_key, config.cross_rank, config.local_rank)
        try:
            said = dict(allgather_object((place, path), name=name))
            mine = said[place[0], place[1], place[2] - self.wave]
            self.board = WaveBoard(mine, self.wave, room=room, timeout=timeout)
            barrier(name=f"{name}.open")
        finally:  # Both have it open, or nobody will.
            if path:
                Path(path).unlink()

    @contextmanager
    def cycle(self) -> Iterator[None]:
        """A forward and a backward pass."""
        if self.board is None:
            yield
            return
        ours = {
            each.untyped_storage().data_ptr()
            for each in (*self._model.parameters(), *self._model.buffers())
        }
        board = self.board
        board.begin_forward()
        try:
            with torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: self._pack(board, tensor, ours),
                lambda saved: self._unpack(board, saved),
            ):
                yield
        finally:
            board.end()

    def _pack(self, board: WaveBoard, tensor: torch.Tensor, ours: set[int]) -> _Saved:
        storage = tensor.untyped_storage()
        where = storage.data_ptr()
        if where in ours or not storage.nbytes():
            return _Saved(tensor)
        if where not in self._counts:  # Or another tensor on this memory is saved.
            board.take(storage.nbytes())
        self._counts[where] = self._counts.get(where, 0) + 1
        saved = _Saved(tensor)
        weakref.finalize(saved, self._drop, board, where, storage.nbytes()).atexit = False
        return saved

    def _unpack(self, board: WaveBoard, saved: _Saved) -> torch.Tensor:
        board.begin_backward()
        return saved.tensor()

    def _drop(self, board: WaveBoard, where: int, count: int) -> None:
        self._counts[where] -= 1
        if not self._counts[where]:
            del self._counts[where]
            board.give_back(count)


class _Saved:
    """A tensor that the graph keeps, and the version that it was saved in."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.detach()  # Or it would keep the graph that keeps it.
        self._version = tensor._version

    def tensor(self) -> torch.Tensor:
        if self._tensor._version != self._version:
            raise InvalidArgument(
                f"a tensor of shape {tuple(self._tensor.shape)} that the backward pass needs was changed in "
                "place after it was saved. Change a copy of it."
            )
        return self._tensor
