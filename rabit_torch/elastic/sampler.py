"""ElasticSampler, for DataLoader."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import rabit.elastic

__all__ = ["ElasticSampler"]


class ElasticSampler(rabit.elastic.ElasticSampler, torch.utils.data.Sampler[int]):
    """rabit.elastic.ElasticSampler, as a sampler of torch.utils.data.DataLoader."""

    def __iter__(self) -> Iterator[int]:
        return super().__iter__()
