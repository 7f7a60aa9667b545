"""Checks a wheel before it is given to others: tags, size, libraries, bill of materials; two ranks run from it.

    python tests/check_wheel.py [--root FOLDER] dist/mariza_rabit-*.whl

Needs cffi, NumPy and cyclonedx-python-lib[json-validation].  The wheel is unpacked, not installed.  One for another
kind of machine runs under QEMU, if --root is the root folder of such a machine (`make wheel` says how to make one).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

BYTES_MAX = 5 << 20
LIBRARIES = {"rabit/_native/librabit.so", "rabit/_native/rabit_calls.abi3.so"}
GLIBC_MAX = (2, 28)
TAG = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")
MACHINES = {"x86_64": 62, "aarch64": 183}  # in the headers of ELF
PACKAGES = ("rabit", "rabit_torch", "rabit_mxnet")
# A user namespace has a table of interpreters of its own (Linux 6.7): that of the system stays as it is.
UNDER_QEMU = """
set -e
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
cat "$1" > /proc/sys/fs/binfmt_misc/register
mount --rbind /dev "$2/dev"
mount --rbind /proc "$2/proc"
shift
exec chroot "$@"
"""
PROGRAM = """
import platform
import sys
import numpy as np
import rabit
from rabit import _native

rabit.init()
assert rabit.size() == 2 and rabit.allreduce(np.ones(1000), name="x", op=rabit.Sum).sum() == 2000
assert _native.library_path().startswith(sys.argv[1]), _native.library_path()
# Under QEMU the file is that of the host.
flags = open("/proc/cpuinfo").read().split() if platform.machine() == "x86_64" else []
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
    glibc = [(int(major), int(minor)) for major, minor, _ in TAG.findall(wheel.stem)]
    if not glibc or min(glibc) > GLIBC_MAX:
        found.append(f"{wheel.name} is not for a glibc of {GLIBC_MAX} or older")
    if "-py3-none-" not in wheel.name:
        found.append(f"{wheel.name} is not for every Python 3")
    if wheel.stat().st_size > BYTES_MAX:
        found.append(f"{wheel.name} has {wheel.stat().st_size} bytes, more than {BYTES_MAX}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        libraries = {each: archive.read(each) for each in names if each.endswith(".so")}
        bills = [
            archive.read(each)
            for each in names
            if re.search(r"\.dist-info/sboms/.*\.cdx\.json$", each)
        ]
    found += problems_of_bills(bills)
    found += [f"{each} is missing" for each in LIBRARIES - libraries.keys()]
    for name, content in libraries.items():
        found += [
            f"{name} {problem}" for problem in problems_of_library(content, machine_of(wheel))
        ]
    for package in PACKAGES:
        if f"{package}/py.typed" not in names:
            found.append(f"{package}/py.typed is missing")
    found += [f"{each} does not belong there" for each in names if each.startswith("tests/")]
    return found


def problems_of_bills(bills: list[bytes]) -> list[str]:
    """Of bills of materials: against CycloneDX's schema, and whether they name what is linked in."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    found = [] if bills else ["there is no bill of materials in .dist-info/sboms"]
    for bill in bills:
        document = json.loads(bill)
        validator = JsonStrictValidator(SchemaVersion.from_version(document["specVersion"]))
        wrong = validator.validate_str(bill.decode())
        found += [] if wrong is None else [f"its bill of materials is not of the schema: {wrong}"]
    if bills and b"linked statically" not in b"".join(bills):
        found.append("its bill of materials names nothing that is linked in")
    return found


def machine_of(wheel: Path) -> str:
    """x86_64 or aarch64, as its name says."""
    tags = TAG.findall(wheel.stem)
    return str(tags[0][2]) if tags else ""


def problems_of_library(content: bytes, machine: str) -> list[str]:
    found = []
    kind = int.from_bytes(content[18:20], "little")
    if kind != MACHINES.get(machine):
        found.append(f"is for machine {kind} of ELF, and the wheel's name says {machine}")
    versions = {tuple(map(int, each)) for each in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", content)}
    newest = max(versions, default=(0, 0))
    if not versions or newest > GLIBC_MAX:
        found.append(f"takes symbols of glibc up to {newest}, and up to {GLIBC_MAX} may be there")
    return found


def run(wheel: Path, root: Path | None) -> str:
    """Two ranks from the unpacked wheel; what they printed if they failed.

    root: where the machine is another one, its root folder.
    """
    with tempfile.TemporaryDirectory(dir=root and root / "tmp") as name:
        folder = Path(name).resolve()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "site")
        (folder / "program.py").write_text(PROGRAM)
        if root is None:
            before, python = [], sys.executable
        else:
            folder = Path("/") / folder.relative_to(root)
            before, python = under_qemu(root, machine_of(wheel)), "/usr/bin/python3"
        program, site = str(folder / "program.py"), str(folder / "site")
        done = subprocess.run(
            [*before, python, "-m", "rabit.launch", "-np", "2", python, program, site],
            cwd=name,
            env={**os.environ, "PYTHONPATH": site},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def under_qemu(root: Path, machine: str) -> list[str]:
    """What stands before a command to run it in a root folder of another kind of machine."""
    interpreter = f"/usr/lib/binfmt.d/qemu-{machine}.conf"  # of Debian's qemu-user-static
    return ["unshare", "-Urm", "sh", "-c", UNDER_QEMU, "sh", interpreter, str(root)]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, help="of another kind of machine, where its wheels run")
    parser.add_argument("wheels", type=Path, nargs="+")
    given = parser.parse_args(words)
    for wheel in given.wheels:
        root = given.root.resolve() if given.root and is_foreign(wheel) else None
        runs = root is not None or not is_foreign(wheel)
        found = problems_of(wheel)
        if not found and runs:
            found = [each for each in [run(wheel, root)] if each]
        for each in found:
            print(each, file=sys.stderr)
        if found:
            return 1
        ran = "two ranks run from it" if runs else f"not run on {platform.machine()}"
        ran += " under QEMU" if root else ""
        print(f"{wheel.name}: {wheel.stat().st_size / (1 << 20):.2f} MiB, {ran}")
    return 0


def is_foreign(wheel: Path) -> bool:
    return machine_of(wheel) != platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
