"""Checkpoints of ranks that have engines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.pages import run_program_of

import rabit
from rabit.checkpoint import Checkpoint
from rabit.checkpoint.folder import Folder
from rabit.testing import run_ranks

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "checkpoints.md"


def test_the_program_of_the_guide_goes_on_where_it_ended(tmp_path):
    run_program_of(GUIDE.read_text(), tmp_path)
    first = Folder(tmp_path / "checkpoints").committed()
    run_program_of(GUIDE.read_text(), tmp_path)

    assert first == [1, 2, 3]
    assert Folder(tmp_path / "checkpoints").committed() == [1, 2, 3]


def test_what_is_being_written_is_finished_when_the_engine_closes(tmp_path):
    def on_rank(engine):
        Checkpoint(tmp_path).save({"x": np.ones(100_000)}, step=1)  # and nothing else refers to it

    run_ranks(2, on_rank)

    assert Folder(tmp_path).committed() == [1]


def test_the_folder_may_come_from_the_settings(tmp_path):
    def on_rank(engine):
        checkpoint = Checkpoint()
        checkpoint.save({"x": np.arange(5)}, step=2)
        return checkpoint.restore().state["x"].tolist()

    assert run_ranks(2, on_rank, checkpoint=str(tmp_path)) == [[0, 1, 2, 3, 4]] * 2


def test_two_checkpoints_of_a_job_do_not_meet(tmp_path):
    def on_rank(engine):
        one, two = Checkpoint(tmp_path / "1"), Checkpoint(tmp_path / "2")
        for step in range(3):
            for each in (one, two) if engine.rank else (two, one):
                each.save({"step": step}, step=step)
        return [each.restore().state["step"] for each in (one, two)]

    assert run_ranks(2, on_rank) == [[2, 2]] * 2


def test_saves_run_beside_collectives(tmp_path):
    def on_rank(engine):
        with Checkpoint(tmp_path) as checkpoint:
            for step in range(20):
                x = rabit.allreduce(np.full(1000, float(step)), name="x", op=rabit.Sum)
                checkpoint.save({"x": x}, step=step)
        return checkpoint.restore().state["x"][0]

    assert run_ranks(3, on_rank) == [57.0] * 3


def test_a_file_stops_all_ranks_at_the_same_step(tmp_path):
    def on_rank(engine):
        for step in range(100):
            if step == 7 and engine.rank == 1:
                (tmp_path / "stop").touch()
            if rabit.should_stop():
                return step
        return None

    assert run_ranks(3, on_rank, stop_file=str(tmp_path / "stop")) == [7, 7, 7]


def test_a_rank_that_dies_ends_the_save_of_the_others(tmp_path):
    told = []

    def on_rank(engine):
        checkpoint = Checkpoint(tmp_path)
        if engine.rank == 1:
            raise ValueError("dies")
        checkpoint.save({"x": np.ones(3)}, step=1)
        try:
            checkpoint.wait()
        except rabit.RabitError as error:
            told.append(error)

    # Which of the two ends first is chance.
    with pytest.raises((ValueError, rabit.RabitError)):
        run_ranks(2, on_rank)
    assert len(told) == 1
    assert Folder(tmp_path).committed() == []
