"""Gradient methods: how gradients or parameters of the ranks become one, and when.

    optimizer = rabit.DistributedOptimizer(optimizer, strategy=rabit.strategies.PowerSGD(rank=2))

An Exchange says how one array of every rank becomes one, a Strategy what travels when.  A method of
one's own is a class with one `async` function; see the guide "Write a method".
"""

from rabit.training.array_trainer import ArrayTrainer
from rabit.training.noise import generator
from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot, Strategy, Wire

from .accordion import Accordion
from .adasum import AdaptiveSum
from .any_batch import AnyBatch
from .async_average import AsyncAverage
from .codecs import Codec, pack_bits, unpack_bits
from .decentralized import Decentralized, LowPrecisionRing
from .dgc import MomentumCorrection
from .ef21 import Differences
from .feedback import ErrorFeedback
from .in_engine import InEngine
from .levels import Levels, Natural, geometric, uniform
from .local_sgd import LocalSGD, OuterStep, TakeMean
from .minmax import MinMax8
from .onebit_adam import OneBitAdam
from .outer_steps import Nesterov, SlowMomentum
from .phases import Phases
from .powersgd import PowerSGD
from .programs import Gathered, TwoPhase
from .registry import as_strategy, available, describe, make
from .row_sparse import RowSparse
from .sign import Signs
from .synchronous import Bypass, Mean, Synchronous
from .topk import LargestEntries, RandomK

__all__ = [
    "Accordion",
    "AdaptiveSum",
    "AnyBatch",
    "Array",
    "ArrayTrainer",
    "AsyncAverage",
    "Bypass",
    "Codec",
    "Decentralized",
    "Differences",
    "ErrorFeedback",
    "Exchange",
    "Gathered",
    "InEngine",
    "LargestEntries",
    "Levels",
    "LocalSGD",
    "LowPrecisionRing",
    "Mean",
    "MinMax8",
    "MomentumCorrection",
    "Natural",
    "Nesterov",
    "OneBitAdam",
    "OuterStep",
    "Phases",
    "PowerSGD",
    "RandomK",
    "Ranks",
    "Reduced",
    "RowSparse",
    "Signs",
    "Slot",
    "SlowMomentum",
    "Strategy",
    "Synchronous",
    "TakeMean",
    "TwoPhase",
    "Wire",
    "as_strategy",
    "available",
    "describe",
    "generator",
    "geometric",
    "leaf",
    "make",
    "pack_bits",
    "uniform",
    "unpack_bits",
]
