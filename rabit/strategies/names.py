"""The public names of rabit.strategies."""

from rabit.training.array_trainer import ArrayTrainer
from rabit.training.noise import generator
from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot, Strategy, Wire

from .accordion import Accordion
from .adasum import AdaptiveSum
from .any_batch import AnyBatch
from .async_average import AsyncAverage
from .by_chance import ByChance
from .codecs import Codec, pack_bits, unpack_bits
from .decentralized import Decentralized, LowPrecisionRing
from .demo import FrequencyMomentum
from .dgc import MomentumCorrection
from .ef21 import Differences
from .feedback import ErrorFeedback
from .gossip import Gossip
from .in_engine import InEngine
from .levels import Levels, Natural, float8, geometric, uniform
from .local_momentum import LocalMomentum
from .local_sgd import LocalSGD, OuterStep, TakeMean
from .minmax import MinMax8
from .onebit_adam import OneBitAdam
from .outer_steps import Nesterov, SlowMomentum
from .phases import Phases
from .powersgd import PowerSGD
from .programs import Gathered, TwoPhase
from .refit import FittedLevels
from .registry import as_strategy, available, describe, make
from .row_sparse import RowSparse
from .sign import Signs
from .synchronous import Bypass, Mean, Synchronous
from .topk import LargestEntries, RandomK
from .two_means import TwoMeans

__all__ = [
    "Accordion",
    "AdaptiveSum",
    "AnyBatch",
    "Array",
    "ArrayTrainer",
    "AsyncAverage",
    "ByChance",
    "Bypass",
    "Codec",
    "Decentralized",
    "Differences",
    "ErrorFeedback",
    "Exchange",
    "FittedLevels",
    "FrequencyMomentum",
    "Gathered",
    "Gossip",
    "InEngine",
    "LargestEntries",
    "Levels",
    "LocalMomentum",
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
    "TwoMeans",
    "TwoPhase",
    "Wire",
    "as_strategy",
    "available",
    "describe",
    "float8",
    "generator",
    "geometric",
    "leaf",
    "make",
    "pack_bits",
    "uniform",
    "unpack_bits",
]
