"""What a package for a framework builds on, beside the public names of `rabit`.

Stable for such packages; programs do not need it.
"""

from rabit.engine.current import engine_for_work
from rabit.ops.overlap_choice import offer_overlap
from rabit.strategies.registry import as_strategy
from rabit.training.pipeline import Pipeline
from rabit.training.strategy import Array, Exchange, Strategy
from rabit.training.tasks import Gate, Task, driver_of, finished
from rabit.training.wire import Operands

__all__ = [
    "Array",
    "Exchange",
    "Gate",
    "Operands",
    "Pipeline",
    "Strategy",
    "Task",
    "as_strategy",
    "driver_of",
    "engine_for_work",
    "finished",
    "offer_overlap",
]
