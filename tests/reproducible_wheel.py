"""Builds sdist and wheel twice, in two folders, and compares them bit for bit.

    python tests/reproducible_wheel.py VENV [QUICK=1] [TARGET=aarch64]

VENV: the environment of `make wheel`.  The second build has another name of folder, umask, language and time zone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OTHERWISE = {"TZ": "Asia/Kolkata", "LC_ALL": "C", "PYTHONHASHSEED": "7"}


def copy_sources(folder: Path) -> None:
    """What git knows, and what is new and not ignored."""
    listed = subprocess.check_output(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, text=True
    )
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def build(
    folder: Path, venv: Path, flags: list[str], environ: Mapping[str, str], umask: int
) -> dict[str, Path]:
    """Name -> file of what `make wheel` leaves in dist/."""
    old = os.umask(umask)
    try:
        command = [
            os.environ.get("MAKE", "make"),
            "--no-print-directory",
            "wheel",
            f"WHEELVENV={venv}",
            *flags,
        ]
        subprocess.run(command, cwd=folder, env={**os.environ, **environ}, check=True)
    finally:
        os.umask(old)
    return {path.name: path for path in sorted((folder / "dist").iterdir())}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def differences(first: Path, second: Path) -> list[str]:
    """What differs between two wheels: names of members, or what else there is."""
    if not zipfile.is_zipfile(first):
        return ["its bytes"]
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as other:
        names = one.namelist(), other.namelist()
        if sorted(names[0]) != sorted(names[1]):
            return [f"the members {sorted(set(names[0]) ^ set(names[1]))}"]
        found = [name for name in names[0] if digest(one.read(name)) != digest(other.read(name))]
        if names[0] != names[1]:
            found.append("the order of the members")
        looks = dict(map(vars_of, one.infolist())), dict(map(vars_of, other.infolist()))
        found += [
            f"date or permissions of {name}: {look} and {looks[1][name]}"
            for name, look in looks[0].items()
            if look != looks[1][name]
        ]
    return found


def vars_of(info: zipfile.ZipInfo) -> tuple[str, tuple[object, ...]]:
    return info.filename, (info.date_time, oct(info.external_attr >> 16), info.compress_type)


def main(words: list[str]) -> int:
    if not words:
        print(__doc__, file=sys.stderr)
        return 2
    venv, flags = Path(words[0]).resolve(), words[1:]
    with (
        tempfile.TemporaryDirectory() as first,
        tempfile.TemporaryDirectory(prefix="another-folder-") as second,
    ):
        for folder in (first, second):  # Both before a build begins: somebody may edit meanwhile.
            copy_sources(Path(folder))
        one = build(Path(first), venv, flags, {}, 0o022)
        other = build(Path(second), venv, flags, OTHERWISE, 0o077)
        failed = one.keys() ^ other.keys()
        for name in failed:
            print(f"{name}: made by one of two builds")
        for name in sorted(one.keys() & other.keys()):
            own = digest(one[name].read_bytes())
            if own == digest(other[name].read_bytes()):
                print(f"{name}: equal, sha256 {own}")
            else:
                failed = {*failed, name}
                print(
                    f"{name}: differs in {', '.join(differences(one[name], other[name])) or 'its compression'}"
                )
        keep = ROOT / "dist"
        keep.mkdir(exist_ok=True)
        for name, path in one.items():
            shutil.copy(path, keep / name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
