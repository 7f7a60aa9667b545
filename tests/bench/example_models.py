"""What busy_cores.py trains: three models of its own, and those of the examples as these are started without flags."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["SUBJECTS", "Subject"]

sys.path.append(str(Path(__file__).parents[2] / "examples"))


@dataclass(frozen=True)
class Subject:
    """make: the model; rows: its input, of a generator; optimizer: of the parameters that are trained."""

    title: str
    make: Callable[[], Any]
    rows: Callable[[Any], Any]
    optimizer: Callable[[Iterable[Any]], Any]


def _own(title: str) -> Subject:
    import torch
    from torch_training import MODELS

    make, shape = MODELS[title]
    return Subject(title, make, lambda random: torch.randn(shape, generator=random), _sgd)


def _sgd(parameters: Iterable[Any]) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def _adam(parameters: Iterable[Any]) -> Any:
    import torch

    return torch.optim.AdamW(parameters, lr=1e-3)


def _digits() -> Subject:
    import torch
    from torch_digits import DigitNet

    return Subject(
        "torch_digits: 3 convolutions, batch 32",
        DigitNet,
        lambda random: torch.randn(32, 1, 8, 8, generator=random),
        _adam,
    )


def _resnet() -> Subject:
    import torch
    from torch_resnet import resnet

    return Subject(
        "torch_resnet: 20 layers, batch 50",
        lambda: resnet(3, 16),
        lambda random: torch.randn(50, 3, 32, 32, generator=random),
        _sgd,
    )


def _letters() -> Subject:
    import torch
    from torch_char_lm import ByteTransformer

    return Subject(
        "torch_char_lm: transformer, 16 x 64 bytes",
        lambda: ByteTransformer(96, 2, 64),
        lambda random: torch.randint(256, (16, 64), generator=random),
        _adam,
    )


def _finetune() -> Subject:
    from torch import nn
    from torch_finetune import WIDTH, Body, sequences

    def make() -> nn.Module:
        body = Body()
        body.embedding.requires_grad_(False)
        return nn.Sequential(body, nn.Linear(WIDTH, 2))

    return Subject(
        "torch_finetune: transformer, batch 32",
        make,
        lambda random: sequences(32, random)[0],
        _adam,
    )


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "mlp": lambda: _own("MLP 784-1024-1024-10, batch 64"),
    "deep": lambda: _own("deep MLP 41 x 128, batch 32"),
    "cnn": lambda: _own("CNN 6 conv + BN, batch 16"),
    "digits": _digits,
    "resnet": _resnet,
    "letters": _letters,
    "finetune": _finetune,
}
