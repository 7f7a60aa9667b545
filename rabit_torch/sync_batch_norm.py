"""SyncBatchNorm: batch statistics over the joint batch of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

import rabit
from rabit import ProcessSet, Sum, Unsupported, global_process_set
from rabit.framework import check_process_set
from rabit_torch.ops.collectives import allgather_async, allreduce_async_


def _channels_last(values: torch.Tensor) -> torch.Tensor:
    """(n, c, …) as (rows, c)."""
    return values.transpose(0, 1).reshape(values.shape[1], -1).t()


def _per_channel(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return vector.to(like.dtype).reshape(1, -1, *[1] * (like.dim() - 2))


def _centred(values: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """`values` minus the mean of their channel, as if the mean had not been rounded to their type.

    A mean that is large compared with the deviations loses in rounding what matters of it.
    """
    rounded = mean.to(values.dtype)
    rest = mean - rounded.to(mean.dtype)
    return values.sub(_per_channel(rounded, values)).sub_(_per_channel(rest, values))


def _joint_statistics(
    values: torch.Tensor, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean and biased variance of every channel over all ranks (float64), and the number of rows.

    Ranks send count, mean and sum of squared deviations, which are combined without cancellation.
    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances", 1979.
    """
    rows = _channels_last(values.detach()).double()
    channels, count = rows.shape[1], rows.shape[0]
    mean = rows.mean(dim=0) if count else rows.new_zeros(channels)
    deviation = ((rows - mean) ** 2).sum(dim=0)
    mine = torch.cat([rows.new_full((1,), float(count)), mean, deviation])
    every = allgather_async(mine.reshape(1, -1), None, process_set).wait()
    counts = every[:, :1]
    total = float(counts.sum())
    means, deviations = every[:, 1 : 1 + channels], every[:, 1 + channels :]
    joint_mean = (counts * means).sum(dim=0) / max(total, 1.0)
    squares = deviations.sum(dim=0) + (counts * (means - joint_mean) ** 2).sum(dim=0)
    return joint_mean, squares / max(total, 1.0), total


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        values: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        variance: torch.Tensor,
        total: float,
        eps: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        inverse = torch.rsqrt(variance + eps)
        normal = _centred(values, mean) * _per_channel(inverse, values)
        context.save_for_backward(normal, inverse, weight)
        context.total, context.process_set = total, process_set
        result = normal if weight is None else normal * _per_channel(weight, values)
        return result if bias is None else result + _per_channel(bias, values)

    @staticmethod
    @once_differentiable  # What was saved is not in the graph: a second derivative would lack it.
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        normal, inverse, weight = context.saved_tensors
        by_weight = _channels_last(gradient * normal).double().sum(dim=0)
        by_bias = _channels_last(gradient).double().sum(dim=0)
        sums = torch.cat([by_weight, by_bias])
        allreduce_async_(sums, op=Sum, process_set=context.process_set).wait()
        channels = by_bias.numel()
        scale = inverse if weight is None else inverse * weight.double()
        mean_of = sums / max(context.total, 1.0)
        through = (
            gradient
            - _per_channel(mean_of[channels:], gradient)
            - normal * _per_channel(mean_of[:channels], gradient)
        ) * _per_channel(scale, gradient)
        own = None if weight is None else by_weight.to(weight.dtype)
        shift = None if weight is None else by_bias.to(weight.dtype)
        return through, own, shift, None, None, None, None, None


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation whose statistics cover the batches of all ranks; any number of dimensions.

    Takes the arguments of torch.nn.BatchNorm; input (n, c, …), where n may differ between ranks.
    Every rank must run the layer equally often.  In evaluation it communicates nothing: without
    running statistics it normalises by the batch of its rank.
    Source: Ioffe and Szegedy, "Batch Normalization", 2015, with the joint batch.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        check_process_set(process_set)
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions (n, c, …), got {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.__dict__["_rabit_is_joint"] = True  # read by _CallsJoint
        self._check_input_dim(input)
        if not self.training or self.process_set.size() == 1:
            return self._local(input)
        mean, variance, total = _joint_statistics(input, self.process_set)
        if self.track_running_stats:
            self._update_running_statistics(mean, variance, total)
        apply: Any = _Normalise.apply
        result: torch.Tensor = apply(
            input, self.weight, self.bias, mean, variance, total, self.eps, self.process_set
        )
        return result

    def _local(self, input: torch.Tensor) -> torch.Tensor:
        momentum = self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        tracked = not self.training or self.track_running_stats
        return nn.functional.batch_norm(
            input,
            self.running_mean if tracked else None,
            self.running_var if tracked else None,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            momentum or 0.0,
            self.eps,
        )

    def _update_running_statistics(
        self, mean: torch.Tensor, variance: torch.Tensor, total: float
    ) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None and self.running_var is not None
        self.num_batches_tracked.add_(1)
        share = (
            self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        )
        unbiased = variance * (total / max(total - 1.0, 1.0))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)

    @classmethod
    def convert(cls, module: nn.Module, process_set: ProcessSet = global_process_set) -> nn.Module:
        """Makes every BatchNorm of `module` a SyncBatchNorm, in place; returns `module`.

        The layers stay the same objects, so that their parameters, buffers, hooks and attributes stay, and
        an optimizer that was made before continues training them. A subclass keeps what it adds; its forward()
        must call super().forward(), which is joint then, and raises Unsupported if it does not.
        Raises Unsupported for a lazy layer that has seen no batch yet.
        """
        check_process_set(process_set)
        found: dict[str, Any] = {
            name: layer
            for name, layer in module.named_modules()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not isinstance(layer, cls)
        }
        for name, layer in found.items():
            if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
                raise Unsupported(
                    f"SyncBatchNorm.convert: layer '{name}' is a {type(layer).__name__}, which has no parameters "
                    "until it has seen a batch. Run a batch through the model first, then convert it."
                )
        kinds: dict[type, type] = {}  # layers of one class are of one class afterwards, too
        for layer in found.values():
            kind = type(layer)
            layer.__class__ = kinds.setdefault(kind, _joint(kind, cls))
            layer.process_set = process_set
        return module


def _joint(kind: type, joint: type[SyncBatchNorm]) -> type:
    """The class that layers of class `kind` get."""
    if kind in _PLAIN or issubclass(joint, kind):
        return joint
    return type(f"Sync{kind.__name__}", (_CallsJoint, kind, joint), {})


class _CallsJoint(nn.Module):
    """In front of a subclass: its forward() may have its own arithmetic, with the statistics of one rank."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self.__dict__["_rabit_is_joint"] = False
        result = super().forward(*inputs, **named)
        if not self.__dict__["_rabit_is_joint"]:
            raise Unsupported(
                f"SyncBatchNorm.convert: forward() of {type(self).__name__.removeprefix('Sync')} does not call "
                f"super().forward(), so that its statistics are those of rank {rabit.rank()} alone. Call it there, "
                "or replace these layers by rabit_torch.SyncBatchNorm and what the class adds."
            )
        return result


# What their classes add checks the number of dimensions, or is the communication of torch.distributed.
_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
