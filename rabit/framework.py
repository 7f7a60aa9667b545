"""What a package for a framework builds on, beside the public names of `rabit`.

Stable for such packages; programs do not need it.
"""

from rabit.config.config import process_environment
from rabit.diagnostics.ending import tell_met, watch_ending
from rabit.engine.current import engine_for_work, follow_default_engine
from rabit.engine.handle import Finish, no_handle, output_array
from rabit.engine.process_set import check_process_set, group_on
from rabit.ops.adapter import Adapter
from rabit.ops.call import Builder, Form, Made, listed
from rabit.ops.draft import Awaited, Draft
from rabit.ops.operations import Operations
from rabit.ops.overlap_choice import offer_overlap
from rabit.printable import printable
from rabit.rendezvous.offers import offer_board
from rabit.strategies.registry import as_strategy
from rabit.training.integrity import FiniteGuard, ReplicaCheck, finite_mode, first_not_finite
from rabit.training.meeting import Meeting, Standing
from rabit.training.pipeline import Pipeline
from rabit.training.refusal import refuse_in_elastic_jobs, refuse_strategy_in_elastic_jobs
from rabit.training.state import Change, sequence_like
from rabit.training.strategy import Array, Exchange, Strategy, gives_steps, has_momentum
from rabit.training.tasks import Gate, Task, driver_of, finished
from rabit.training.wire import Operands

__all__ = [
    "Adapter",
    "Array",
    "Awaited",
    "Builder",
    "Change",
    "Draft",
    "Exchange",
    "Finish",
    "FiniteGuard",
    "Form",
    "Gate",
    "Made",
    "Meeting",
    "Operands",
    "Operations",
    "Pipeline",
    "ReplicaCheck",
    "Standing",
    "Strategy",
    "Task",
    "as_strategy",
    "check_process_set",
    "driver_of",
    "engine_for_work",
    "finished",
    "finite_mode",
    "first_not_finite",
    "follow_default_engine",
    "gives_steps",
    "group_on",
    "has_momentum",
    "listed",
    "no_handle",
    "offer_board",
    "offer_overlap",
    "output_array",
    "printable",
    "process_environment",
    "refuse_in_elastic_jobs",
    "refuse_strategy_in_elastic_jobs",
    "sequence_like",
    "tell_met",
    "watch_ending",
]
