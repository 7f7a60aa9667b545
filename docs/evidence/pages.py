"""Makes the pages and plots of evidence again from what is stored: python docs/evidence/pages.py (make evidence).

A row is rows/NAME.toml: the claim, its setting, the verdict, and what is measured.  results/NAME.json holds, for each
measurement of the row, its command, commit, date, machine and table.  `run.py` measures and stores.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plots

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
CELLS_MAX = 60
VERDICTS = ("reproduced", "in part", "not reproduced", "not measured yet", "not built yet")
ORDER = (
    *("ddp", "horovod", "ring_tree", "bytescheduler", "byteps", "bagua", "mcr_dl"),
    *("blink", "cloud_collectives", "gspmd", "zero", "zero_offload", "zero_infinity", "wavelet"),
    *("powersgd", "alq_amq", "nuqsgd", "sparsification", "accordion"),
    *("local_sgd", "slowmo", "dabmd", "svm", "revelio"),
)


@dataclass(frozen=True)
class Row:
    """system, source: the paper.  claim, setting, checked: what it says, where, how we know.  found: ours, in short."""

    name: str
    system: str
    source: str
    claim: str
    setting: str
    checked: str
    found: str
    verdict: str
    why: str
    more: str
    measures: list[dict[str, Any]]
    results: dict[str, dict[str, Any]]

    @property
    def is_ours(self) -> bool:
        """Whether it is a claim of rabit itself, not of a paper."""
        return not self.source


def rows() -> list[Row]:
    """The systems in their order, then rabit's own claims by name."""
    found = {path.stem: load(path) for path in sorted((HERE / "rows").glob("*.toml"))}
    systems = [found.pop(name) for name in ORDER]
    return [*systems, *found.values()]


def load(path: Path) -> Row:
    text = tomllib.loads(path.read_text())
    measures = text.pop("measure", [])
    stored = HERE / "results" / f"{path.stem}.json"
    results = json.loads(stored.read_text()) if stored.exists() else {}
    text = {"source": "", "setting": "", "checked": "", "more": "", **text}
    return Row(name=path.stem, measures=measures, results=results, **text)


def plot(row: Row, measure: dict[str, Any]) -> str:
    """The plot of a measurement: `label` names its column of labels, `bars` those of values."""
    result = row.results[measure["id"]]
    chosen, columns = measure["plot"], result["columns"]
    for name in [*chosen["label"], *chosen["bars"]]:
        if name not in columns:
            raise ValueError(f"{row.name}, {measure['id']}: no column {name!r} among {columns}")
    cells = [row for row in result["rows"] if any(plots.number(row[columns.index(name)]) for name in chosen["bars"])]
    labels = [", ".join(plain(cell[columns.index(name)]) for name in chosen["label"]) for cell in cells]
    series = {plain(name): [plain(cell[columns.index(name)]) for cell in cells] for name in chosen["bars"]}
    return plots.bars(
        measure["title"], labels, series, log=chosen.get("log", False), mark=chosen.get("mark")
    )


def plain(cell: object) -> str:
    """Without the marks of Markdown."""
    return re.sub(r"[`*]", "", f"{cell:.3g}" if isinstance(cell, float) else str(cell))


def page(row: Row) -> str:
    parts = [f"# {row.system}", row.why if row.is_ours else f"**{row.verdict.capitalize()}.** {row.why}"]
    facts = [("Paper", row.source), ("Claim", row.claim if row.source else ""), ("Its setting", row.setting)]
    facts += [("Read in", row.checked), ("Measured here", row.found), ("More", row.more)]
    parts.append(table(["", ""], [[f"**{name}**", text] for name, text in facts if text]))
    for measure in row.measures:
        parts += section(row, measure)
    return "\n\n".join(parts) + "\n"


def section(row: Row, measure: dict[str, Any]) -> list[str]:
    result = row.results[measure["id"]]
    command = result["command"]
    where = f"Commit {result['commit']}, {result['date']}; {result['machine']}."
    return [
        f"## {measure['title']}",
        *([measure["says"]] if measure.get("says") else []),
        *([f"![{measure['title']}]({plot_name(row, measure)})"] if "plot" in measure else []),
        *([table(result["columns"], result["rows"])] if is_small(result) or "plot" not in measure else []),
        f"`{command}`",
        f"{where} [All numbers](results/{row.name}.json)",
    ]


def is_small(result: dict[str, Any]) -> bool:
    """Whether the table reads well below its plot; longer ones are in the file of results alone."""
    return len(result["columns"]) * len(result["rows"]) <= CELLS_MAX


def plot_name(row: Row, measure: dict[str, Any]) -> str:
    return f"plots/{row.name}_{measure['id']}.svg"


def table(heads: list[str], cells: list[list[Any]]) -> str:
    shown = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in cells]
    lines = [heads, ["---"] * len(heads), *shown]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def index(found: list[Row]) -> str:
    systems = [row for row in found if not row.is_ours]
    counts = ", ".join(f"{sum(row.verdict == each for row in systems)} {each}" for each in VERDICTS)
    lines = [[f"[{row.system}]({row.name}.md)", row.claim, row.found, row.verdict] for row in systems]
    own = [[f"[{row.system}]({row.name}.md)", row.found] for row in found if row.is_ours]
    names = "\n".join(row.name for row in found)
    return "\n\n".join(
        [
            "# Evidence",
            "rabit holds, in one library, what these systems claim. Each row has the claim of the paper and its "
            "setting, what was measured here, and the verdict. Most papers measured tens to hundreds of GPUs; here two "
            "cores stand for them, with network namespaces where a slow link is needed. So a verdict is about the "
            "effect, not about the paper's figure.",
            f"Of {len(systems)} systems: {counts}.",
            table(["system", "claim of the paper", "measured here", "verdict"], lines),
            "## Claims of rabit itself",
            table(["", "measured"], own),
            "## Measure again",
            "`make evidence` makes these pages and plots again from the stored results (`docs/evidence/results`). "
            "`make evidence-run ROW=blink` measures a row on your machine, stores the result, and does the same. "
            "How figures are made: [performance](../performance.md).",
            f"```{{toctree}}\n:hidden:\n{names}\n```",
        ]
    ) + "\n"


def made() -> dict[str, str]:
    """The text of every generated file, by its path in this folder."""
    found = rows()
    files = {"index.md": index(found)} | {f"{row.name}.md": page(row) for row in found}
    for row in found:
        for measure in row.measures:
            if "plot" in measure:
                files[plot_name(row, measure)] = plot(row, measure)
    return files


def write() -> None:
    files = made()
    for path in (*HERE.glob("*.md"), *HERE.glob("plots/*.svg")):
        if path.relative_to(HERE).as_posix() not in files:
            path.unlink()
    for name, text in files.items():
        (HERE / name).write_text(text)


if __name__ == "__main__":
    write()
