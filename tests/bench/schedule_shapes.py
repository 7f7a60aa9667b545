"""Where four models wait: floating-point operations and parameters of every weighted layer.

A layer is one wait point of the forward: convolution with its normalization, matrix product, or
embedding.  Its tensors travel together.
"""

from __future__ import annotations

from dataclasses import dataclass

from rabit.tuning.step_time import Layer


@dataclass(frozen=True)
class Weighted:
    parameters: int
    flops: int


def convolution(inputs: int, outputs: int, kernel: int, side: int, extra: int) -> Weighted:
    weights = inputs * outputs * kernel * kernel
    return Weighted(weights + extra * outputs, weights * side * side)


def dense(inputs: int, outputs: int, rows: int = 1) -> Weighted:
    return Weighted(inputs * outputs + outputs, inputs * outputs * rows)


def vgg16() -> list[Weighted]:
    plan = [(64, 2, 224), (128, 2, 112), (256, 3, 56), (512, 3, 28), (512, 3, 14)]
    layers, inputs = [], 3
    for width, count, side in plan:
        for _ in range(count):
            layers.append(convolution(inputs, width, 3, side, extra=1))
            inputs = width
    return [*layers, dense(512 * 49, 4096), dense(4096, 4096), dense(4096, 1000)]


def resnet50() -> list[Weighted]:
    layers = [convolution(3, 64, 7, 112, extra=2)]
    inputs = 64
    for width, count, side in [(64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)]:
        for index in range(count):
            layers.append(convolution(inputs, width, 1, side, extra=2))
            layers.append(convolution(width, width, 3, side, extra=2))
            layers.append(convolution(width, 4 * width, 1, side, extra=2))
            if index == 0:
                layers.append(convolution(inputs, 4 * width, 1, side, extra=2))
            inputs = 4 * width
    return [*layers, dense(2048, 1000)]


def gpt2_small(vocabulary: int, is_tied: bool) -> list[Weighted]:
    """Sequences of 1024.  A tied head has its parameters in the embedding, which is first."""
    width, length = 768, 1024
    layers = [Weighted((vocabulary + length) * width, length * width)]
    for _ in range(12):
        attention = 2 * length * length * width
        qkv = dense(width, 3 * width, length)
        layers.append(Weighted(qkv.parameters + 2 * width, qkv.flops + attention))
        layers.append(dense(width, width, length))
        layers.append(dense(width, 4 * width, length))
        layers.append(dense(4 * width, width, length))
    head = width * vocabulary
    layers.append(Weighted(2 * width if is_tied else head, head * length))
    return layers


SHAPES = {
    "vgg": vgg16,
    "resnet": resnet50,
    "lm": lambda: gpt2_small(256, is_tied=False),
    "tied": lambda: gpt2_small(50257, is_tied=True),
    # Its output does not use the table, as with a sampled softmax that counts in the head's place.
    "lookup": lambda: gpt2_small(50257, is_tied=True),
}


def scaled(shape: str, compute: float, gradient_bytes: int, ranks: int) -> list[Layer]:
    """The layers of `shape` with `compute` seconds and `gradient_bytes` in all, the shares kept.

    A backward takes twice its forward, but for the first layer, which has no input to derive for.
    Gradients are float32 that divide evenly among `ranks`.
    """
    weighted = SHAPES[shape]()
    unit = 4 * ranks
    parameters = sum(each.parameters for each in weighted)
    flops = 3 * sum(each.flops for each in weighted) - weighted[0].flops
    layers = []
    for index, each in enumerate(weighted):
        forward = compute * each.flops / flops
        size = max(unit, round(gradient_bytes * each.parameters / parameters / unit) * unit)
        layers.append(Layer(forward, forward * (1 if index == 0 else 2), size))
    return layers
