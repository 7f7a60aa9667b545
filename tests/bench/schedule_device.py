"""The emulated device of tests/bench schedule: a clock that layers occupy."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rabit.tuning.step_time import Layer


class Device:
    """Runs layers one after the other, without a processor."""

    def __init__(self) -> None:
        self._free_at = time.perf_counter()

    def run(self, seconds: float) -> None:
        self._free_at = max(self._free_at, time.perf_counter()) + seconds
        self.wait()

    def continue_for(self, seconds: float) -> None:
        """As `run`, for work that was queued behind the work before it."""
        self._free_at += seconds
        self.wait()

    def wait(self) -> None:
        left = self._free_at - time.perf_counter()
        if left > 0:
            time.sleep(left)


class Silent:
    """No communication: what the device alone takes."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.device = Device()

    def submit(self, index: int) -> None:
        pass

    def after_backward(self) -> None:
        pass

    def before_layer(self, index: int) -> None:
        pass

    def drain(self) -> None:
        pass

    def steps(self, count: int) -> list[float]:
        """Runs steps; the moment when each began, and the moment after the last."""
        moments = []
        for _ in range(count):
            moments.append(time.perf_counter())
            for index, layer in enumerate(self.layers):
                self.before_layer(index)
                self.device.run(layer.forward)
            for index in reversed(range(len(self.layers))):
                self.device.continue_for(self.layers[index].backward)
                self.submit(index)
            self.after_backward()
        moments.append(time.perf_counter())
        return moments
