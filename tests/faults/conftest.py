"""Jobs that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.job import Job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """job(ranks, script, **variables) starts a job that ends with the test at the latest."""
    started: list[Job] = []

    def start(ranks: int, script: str, **variables: str) -> Job:
        folder = tmp_path / f"job{len(started)}"
        folder.mkdir()
        started.append(Job(folder, ranks, script, **variables))
        return started[-1]

    yield start
    for each in started:
        each.close()
