"""Linear layers in tiles: rows of a weight that are gathered one tile after the other, so that it is never whole.

Source: Rajbhandari et al., ZeRO-Infinity (2021), memory-centric tiling.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from rabit import InvalidArgument
from rabit_torch.sharding.guarded import DividedParameter

__all__ = ["TiledLinear", "tiled"]


class TiledLinear(torch.nn.Module):
    """What `tiled` puts in place of a Linear: `tiles`, each of which gives some of the outputs."""

    def __init__(self, linear: torch.nn.Linear, count: int) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        rows = torch.arange(self.out_features).tensor_split(count)
        self.tiles = torch.nn.ModuleList(_rows_of(linear, int(own[0]), len(own)) for own in rows)
        self.register_load_state_dict_pre_hook(_cut_whole)  # type: ignore[no-untyped-call]
        self.train(linear.training)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.cat([tile(hidden) for tile in self.tiles], dim=-1)

    @property
    def weight(self) -> torch.Tensor:
        """The whole weight, for what reads it without a call, as TransformerEncoderLayer does in evaluation."""
        return torch.cat([tile.weight for tile in self._linears()])

    @property
    def bias(self) -> torch.Tensor | None:
        """The whole bias."""
        parts = [tile.bias for tile in self._linears()]
        return None if parts[0] is None else torch.cat(parts)

    def _linears(self) -> list[Any]:
        return list(self.tiles)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def _cut_whole(module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Cuts the weight and the bias of a Linear in a state_dict that is loaded."""
    tiles: Any = module.tiles
    for name in ("weight", "bias"):
        if isinstance(state.get(f"{prefix}{name}"), torch.Tensor):
            parts = state.pop(f"{prefix}{name}").split([tile.out_features for tile in tiles])
            state.update({f"{prefix}tiles.{number}.{name}": part for number, part in enumerate(parts)})


def tiled(model: torch.nn.Module, tile_bytes: int) -> torch.nn.Module:
    """Replaces each Linear of `model` whose weight has more than `tile_bytes`, by one in tiles of about as many.

    Returns the model; for a model that is such a Linear itself, the TiledLinear. Call it before the optimizer is made,
    as its parameters are others. `shard` gathers each tile by itself, in forward and backward pass, also where it
    gathers the rest of the module around it at once.

    An output has the sum that it has in the Linear, and the gradient of the input adds up those of the tiles: values
    equal those of the Linear up to rounding. The bits with and without `shard` are the same. Names of parameters get
    "tiles.0" in between; `load_state_dict` also takes whole weights. A layer or a parameter that two modules share
    stays as it is, and so does one with hooks, as of spectral_norm.
    Raises InvalidArgument for a model that is divided already.
    """
    if tile_bytes < 1:
        raise InvalidArgument(f"tiled: tile_bytes is {tile_bytes}; expected the bytes of a tile, at least 1")
    modules = list(model.modules())
    uses = Counter(part for module in modules for part in (*module._modules.values(), *module._parameters.values()))
    for name, module in list(model.named_modules()):
        count = _count_of(module, tile_bytes)
        if count < 2 or any(uses[part] > 1 for part in (module, *module.parameters())):
            continue
        if isinstance(module.weight, DividedParameter):
            raise InvalidArgument(f"tiled: {name!r} is divided already. Call tiled(model) before the optimizer is made")
        linear: Any = module
        tiles = TiledLinear(linear, count)
        if module is model:
            return tiles
        model.set_submodule(name, tiles)
    return model


def _count_of(module: torch.nn.Module, tile_bytes: int) -> int:
    """Tiles of a module. Subclasses of Linear are read by others, as in MultiheadAttention."""
    if type(module) is not torch.nn.Linear or set(module._parameters) != {"weight", "bias"}:
        return 0
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return 0
    size = module.weight.numel() * module.weight.element_size()
    return min(-(-size // tile_bytes), module.out_features)


def _rows_of(linear: torch.nn.Linear, first: int, count: int) -> torch.nn.Linear:
    """The outputs from `first` on, with values of their own."""
    tile = torch.nn.Linear(linear.in_features, count, linear.bias is not None, device="meta")
    for name, parameter in linear.named_parameters():
        values = parameter.detach()[first : first + count].clone()
        setattr(tile, name, torch.nn.Parameter(values, requires_grad=parameter.requires_grad))
    return tile
