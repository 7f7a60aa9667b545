"""What a package for a framework builds on, beside the public names of `rabit`.

Stable for such packages; programs do not need it.
"""

from rabit.engine.current import engine_for_work
from rabit.training.pipeline import Pipeline
from rabit.training.tasks import Gate, Task, driver_of, finished
from rabit.training.wire import Operands

__all__ = [
    "Gate",
    "Operands",
    "Pipeline",
    "Task",
    "driver_of",
    "engine_for_work",
    "finished",
]
