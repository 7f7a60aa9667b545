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
from .clipped import Clipped
from .codecs import Codec, pack_bits, unpack_bits
from .deadline import Deadline
from .decentralized import Decentralized, LowPrecisionRing
from .demo import FrequencyMomentum
from .dgc import MomentumCorrection
from .ef21 import Differences
from .feedback import ErrorFeedback
from .gossip import Gossip, losing_links
from .hierarchical import Hierarchical
from .in_engine import InEngine
from .levels import Levels, Natural, float8, geometric, uniform
from .local_momentum import LocalMomentum
from .local_sgd import LocalSGD, OuterStep, TakeMean
from .minmax import MinMax8
from .mirror_descent import AnyBatchMirrorDescent
from .mirror_maps import Entropy, Euclidean, MirrorMap
from .onebit_adam import OneBitAdam
from .onebit_lamb import OneBitLamb
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
from .zero_one_adam import ZeroOneAdam

__all__ = [
    "Accordion",
    "AdaptiveSum",
    "AnyBatch",
    "AnyBatchMirrorDescent",
    "Array",
    "ArrayTrainer",
    "AsyncAverage",
    "ByChance",
    "Bypass",
    "Clipped",
    "Codec",
    "Deadline",
    "Decentralized",
    "Differences",
    "Entropy",
    "ErrorFeedback",
    "Euclidean",
    "Exchange",
    "FittedLevels",
    "FrequencyMomentum",
    "Gathered",
    "Gossip",
    "Hierarchical",
    "InEngine",
    "LargestEntries",
    "Levels",
    "LocalMomentum",
    "LocalSGD",
    "LowPrecisionRing",
    "Mean",
    "MinMax8",
    "MirrorMap",
    "MomentumCorrection",
    "Natural",
    "Nesterov",
    "OneBitAdam",
    "OneBitLamb",
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
    "ZeroOneAdam",
    "as_strategy",
    "available",
    "describe",
    "float8",
    "generator",
    "geometric",
    "leaf",
    "losing_links",
    "make",
    "pack_bits",
    "uniform",
    "unpack_bits",
]
