"""ClippingMixin: clipping of gradients that may still be on their way."""

from __future__ import annotations

import functools

import torch

import rabit
from rabit import InvalidArgument
from rabit_torch.optimizer.wrapped import WrappedMixin
from rabit_torch.overlap.clip import GradientClip, late_norm
from rabit_torch.untraced import untraced

__all__ = ["ClippingMixin"]


class ClippingMixin(WrappedMixin):
    """The methods of a wrapped optimizer that clip, between backward() and step()."""

    @untraced
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Makes the next `step()` clip the norm of its gradients, all together; returns their norm.

        The same as torch.nn.utils.clip_grad_norm_ between backward() and step(), in every mode; with
        overlap="next-forward" step() still returns at once, the first read of a parameter waits
        for all gradients, and so does a read of the norm.
        """
        crossing = self._rabit_reducer.crossing
        if crossing is not None and not crossing.is_recording:
            crossing.next_clip = GradientClip(max_norm, norm_type)
            return late_norm(functools.partial(self._rabit_norm, crossing.next_clip))
        self._rabit_reducer.synchronize()
        found: torch.Tensor = torch.nn.utils.clip_grad_norm_(
            self._rabit_parameters(), max_norm, norm_type
        )
        return found

    def _rabit_norm(self, clip: GradientClip) -> torch.Tensor:
        """The norm that `clip` finds, before its step or after it.  Blocks."""
        crossing = self._rabit_reducer.crossing
        is_to_come = crossing is not None and crossing.next_clip is clip
        if is_to_come:
            self._rabit_reducer.synchronize()
            return clip.norm_of([p.grad for p in self._rabit_parameters() if p.grad is not None])
        self.flush()
        if clip.total_norm is None:
            raise InvalidArgument(
                f"the norm of clip_grad_norm_ on rank {rabit.rank()} is read after its gradients are gone: no step() "
                "has used them. Read it before zero_grad() or the next clip_grad_norm_"
            )
        return clip.total_norm

    @untraced
    def clip_grad_value_(self, clip_value: float) -> None:
        """Makes the next `step()` limit the magnitude of every element of its gradients.

        The same as torch.nn.utils.clip_grad_value_, and costs no overlap.  With clip_grad_norm_ in
        the same step, the norm comes first.
        """
        crossing = self._rabit_reducer.crossing
        if crossing is not None and not crossing.is_recording:
            crossing.next_max_value = clip_value
            return
        self._rabit_reducer.synchronize()
        torch.nn.utils.clip_grad_value_(self._rabit_parameters(), clip_value)

    def _rabit_parameters(self) -> list[torch.Tensor]:
        return [p for group in self._rabit_inner.param_groups for p in group["params"]]
