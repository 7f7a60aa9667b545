"""Training whose state is divided among the ranks: layouts, formulas, ShardedState for NumPy, and annotations.

Framework-neutral. Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models (2020).
"""

from rabit.sharding.annotated.completion import Plan, complete
from rabit.sharding.annotated.mesh import Mesh, Spec
from rabit.sharding.annotated.program import Annotation, Program
from rabit.sharding.annotated.runner import Runner
from rabit.sharding.annotated.trace import annotate, trace
from rabit.sharding.host_memory import HostMemory
from rabit.sharding.layout import Entry, Flat, FlatLayout, Interval, Move
from rabit.sharding.levels import Levels, levels_of
from rabit.sharding.memory import RankBytes, rank_bytes, unit_bytes, wire_bytes
from rabit.sharding.norm import SquareSum
from rabit.sharding.parts import assembled, joined
from rabit.sharding.pulls import Pull, ServedParts
from rabit.sharding.room import check_room
from rabit.sharding.state import ShardedState
from rabit.sharding.tiers import DiskTier
from rabit.sharding.updates import adamw, momentum, sgd

__all__ = [
    "Annotation",
    "DiskTier",
    "Entry",
    "Flat",
    "FlatLayout",
    "HostMemory",
    "Interval",
    "Levels",
    "Mesh",
    "Move",
    "Plan",
    "Program",
    "Pull",
    "RankBytes",
    "Runner",
    "ServedParts",
    "ShardedState",
    "Spec",
    "SquareSum",
    "adamw",
    "annotate",
    "assembled",
    "check_room",
    "complete",
    "joined",
    "levels_of",
    "momentum",
    "rank_bytes",
    "sgd",
    "trace",
    "unit_bytes",
    "wire_bytes",
]
