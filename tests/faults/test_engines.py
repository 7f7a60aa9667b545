"""Jobs of other engines: some cells of the table that engine_matrix.py makes."""

from __future__ import annotations

import pytest
from faults.engines import clusters, functions, launchers

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        (launchers.Rabitrun, "host dies"),
        (launchers.RabitrunBySsh, "host dies"),
        (launchers.OpenMpi, "rank dies"),
        (clusters.IndexedJob, "stop signal"),
        (clusters.MpiOperator, "wrong count"),
        (functions.Multiprocessing, "second init"),
    ],
)
def test_a_job_of_an_engine_ends_as_it_must(kind, case, tmp_path):
    engine = kind()
    if why := engine.missing():
        pytest.skip(why)
    with engine.ready():
        engine.assert_good(case, engine.run(case, tmp_path))
