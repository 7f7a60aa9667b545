"""Engines that start ranks, and six things that happen to a job of each.

    python tests/faults/engine_matrix.py [--only TEXT] [--case TEXT] [--logs FOLDER]

Each cell is one job on this machine: it starts; its engine and its settings disagree about how many ranks there are;
rank 1 is killed; a host of two ranks is lost; it is asked to stop; it meets, ends and meets again.  A cell is good if
the engine ends with the status of the table, its log names the cause as rabit does, and no rank is left behind.
Needs root for namespaces and Slurm.  What is not installed is left out, and said.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.engines import clusters, functions, launchers
from faults.engines.process import CASES, Engine

NOT_RUN, BAD = "not run", "bad"

ENGINES: tuple[type[Engine], ...] = (
    launchers.Rabitrun,
    launchers.RabitrunBySsh,
    clusters.Srun,
    clusters.Sbatch,
    launchers.OpenMpi,
    launchers.Mpich,
    launchers.Torchrun,
    clusters.IndexedJob,
    clusters.MpiOperator,
    functions.Ray,
    functions.Dask,
    functions.Multiprocessing,
    functions.Submitit,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="engines whose names hold this text")
    parser.add_argument("--case", default="", help="cases whose names hold this text")
    parser.add_argument("--logs", type=Path, help="a folder for the log of each job")
    given = parser.parse_args()
    chosen = [kind() for kind in ENGINES if given.only in kind.name]
    cases = [case for case in CASES if given.case in case]
    rows = {engine.name: row(engine, cases, given.logs) for engine in chosen}
    cells = [cell for found in rows.values() for cell in found.values()]
    print("| engine | " + " | ".join(cases) + " |\n" + "|---" * (1 + len(cases)) + "|")
    for name, found in rows.items():
        print(f"| {name} | " + " | ".join(found[case] for case in cases) + " |")
    played, bad = [cell for cell in cells if cell != NOT_RUN], cells.count(BAD)
    print(
        f"{len(played) - bad} of {len(played)} cells are good, {len(cells) - len(played)} were not run"
    )
    return 1 if bad or not played else 0


def row(engine: Engine, cases: list[str], logs: Path | None) -> dict[str, str]:
    """The status of the engine and the seconds until its end, for each case."""
    if why := engine.missing():
        print(f"{engine.name}: {why}", flush=True)
        return dict.fromkeys(cases, NOT_RUN)
    with engine.ready():
        return {case: cell(engine, case, logs) for case in cases}


def cell(engine: Engine, case: str, logs: Path | None) -> str:
    with tempfile.TemporaryDirectory(prefix="engines-") as name:
        try:
            ended = engine.run(case, Path(name))
            engine.assert_good(case, ended)
            text, found = ended.log, f"{ended.status}, {ended.seconds:.1f} s"
        except (AssertionError, subprocess.SubprocessError) as error:
            text, found = str(error), BAD
            print(f"{engine.name}, {case}: {text}", flush=True)
    if logs is not None:
        logs.mkdir(exist_ok=True)
        (logs / f"{engine.name}-{case}.log".replace(" ", "_")).write_text(text)
    return found


if __name__ == "__main__":
    sys.exit(main())
