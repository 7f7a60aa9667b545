"""Runs a program whose process group is there already: rabitrun --init-torch python train.py.

Libraries that choose a backend themselves, such as Accelerate, the Trainer of Hugging Face and Keras, keep a group that
exists, so their programs run on the backend rabit without a change.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

import rabit_torch.distributed  # noqa: F401  makes the backend known

__all__ = ["main"]


def main(words: Sequence[str]) -> None:
    """Runs `words`, a script or -m MODULE with its arguments, as the program of this process."""
    if not words or list(words) == ["-m"]:
        sys.exit("usage: python -m rabit_torch.init_first SCRIPT|-m MODULE [argument ...]")
    dist.init_process_group("rabit")
    try:
        if words[0] == "-m":
            sys.argv = list(words[1:])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            sys.path[0] = str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
    finally:
        # A program may have ended it, and an error must reach the others as it is.
        if sys.exc_info()[0] is None and dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
