"""The public names of rabit.strategies: those of the seam, and what the modules of families import `as` itself."""

from rabit.training.array_trainer import ArrayTrainer as ArrayTrainer
from rabit.training.noise import generator as generator
from rabit.training.state import leaf as leaf
from rabit.training.strategy import Array as Array
from rabit.training.strategy import Exchange as Exchange
from rabit.training.strategy import Ranks as Ranks
from rabit.training.strategy import Reduced as Reduced
from rabit.training.strategy import Slot as Slot
from rabit.training.strategy import Strategy as Strategy
from rabit.training.strategy import Wire as Wire

from .families.adaptive import *  # noqa: F403
from .families.asynchronous import *  # noqa: F403
from .families.decentralized import *  # noqa: F403
from .families.local import *  # noqa: F403
from .families.low_rank import *  # noqa: F403
from .families.momentum import *  # noqa: F403
from .families.quantisation import *  # noqa: F403
from .families.sparsification import *  # noqa: F403
from .registry import as_strategy as as_strategy
from .registry import available as available
from .registry import describe as describe
from .registry import make as make


def _is_public(name: str, value: object) -> bool:
    home = getattr(value, "__module__", "")
    is_of_rows = home in ("rabit.strategies.row", __name__)
    is_ours = home.startswith(("rabit.strategies.", "rabit.training.")) and not is_of_rows
    return not name.startswith("_") and (is_ours or name == "Array")


PUBLIC = sorted(name for name, value in globals().items() if _is_public(name, value))
