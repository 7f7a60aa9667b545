"""Training whose state is divided among the ranks: layouts, formulas, and ShardedState for NumPy.

Framework-neutral. Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models (2020).
"""

from rabit.sharding.layout import Entry, Flat, FlatLayout, Interval, Move
from rabit.sharding.memory import RankBytes, rank_bytes, wire_bytes
from rabit.sharding.norm import SquareSum
from rabit.sharding.state import ShardedState
from rabit.sharding.updates import adamw, momentum, sgd

__all__ = [
    "Entry",
    "Flat",
    "FlatLayout",
    "Interval",
    "Move",
    "RankBytes",
    "ShardedState",
    "SquareSum",
    "adamw",
    "momentum",
    "rank_bytes",
    "sgd",
    "wire_bytes",
]
