"""The program of the reference of rabit_mxnet runs as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api" / "rabit_mxnet.md"


def test_the_program_of_the_page_runs(tmp_path):
    program = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    (tmp_path / "page.py").write_text("\n".join(program))

    done = subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", "2", sys.executable, "page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stdout + done.stderr
