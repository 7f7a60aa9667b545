"""What a package for a framework builds on, beside the public names of `rabit`.

Stable for such packages; programs do not need it.
"""

from rabit.training.pipeline import Pipeline
from rabit.training.tasks import Task

__all__ = ["Pipeline", "Task"]
