"""Checks a wheel before it is given to others: its tags, its size, and two ranks that run from it.

    python tests/check_wheel.py dist/mariza_rabit-*.whl

Needs cffi and NumPy; the wheel is unpacked, not installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

BYTES_MAX = 5 << 20
PACKAGES = ("rabit", "rabit_torch", "rabit_mxnet")
PROGRAM = """
import sys
import numpy as np
import rabit
from rabit import _native

rabit.init()
assert rabit.size() == 2 and rabit.allreduce(np.ones(1000), name="x", op=rabit.Sum).sum() == 2000
assert _native.library_path().startswith(sys.argv[1]), _native.library_path()
flags = open("/proc/cpuinfo").read().split()
wanted = {"portable"} | ({"avx2"} if {"avx2", "f16c", "fma"} <= set(flags) else set())
found = set(rabit.capabilities()["kernels"])
assert wanted <= found, f"the processor offers {wanted}, the library uses {found}"
try:
    rabit.allreduce(np.ones(1 + rabit.rank()), name="y")
except rabit.Mismatch:
    rabit.shutdown()
else:
    sys.exit("ranks with other shapes were not told")
"""


def problems_of(wheel: Path) -> list[str]:
    found = []
    if "-manylinux_2_28_" not in wheel.name.replace(".", "-"):
        found.append(f"{wheel.name} is not tagged manylinux_2_28")
    if "-py3-none-" not in wheel.name:
        found.append(f"{wheel.name} is not for every Python 3")
    if wheel.stat().st_size > BYTES_MAX:
        found.append(f"{wheel.name} has {wheel.stat().st_size} bytes, more than {BYTES_MAX}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for package in PACKAGES:
        if f"{package}/py.typed" not in names:
            found.append(f"{package}/py.typed is missing")
    found += [f"{each} does not belong there" for each in names if each.startswith("tests/")]
    return found


def run(wheel: Path) -> str:
    """Two ranks from the unpacked wheel; what they printed if they failed."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder).resolve() / "site"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "rabit.launch", "-np", "2"),
                *(sys.executable, str(program), str(site)),
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def main(paths: list[str]) -> int:
    if not paths:
        print(__doc__, file=sys.stderr)
        return 2
    for wheel in map(Path, paths):
        found = problems_of(wheel) or [each for each in [run(wheel)] if each]
        for each in found:
            print(each, file=sys.stderr)
        if found:
            return 1
        print(f"{wheel.name}: {wheel.stat().st_size / (1 << 20):.2f} MiB, two ranks run from it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
