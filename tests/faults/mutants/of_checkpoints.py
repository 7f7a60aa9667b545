"""Bugs of checkpoints: of the order of operations, and of what is compared."""

from __future__ import annotations

from faults.mutants.mutant import Mutant

COMMIT = "rabit/checkpoint/commit.py"
FOLDER = "rabit/checkpoint/folder.py"
CRASHES = "tests/faults/test_checkpoint_faults.py -k crash"
DAMAGE = "tests/faults/test_checkpoint_faults.py -k every_change"

MUTANTS = [
    Mutant(
        "files are not synced",
        COMMIT,
        "            self._files.sync(descriptor)\n        finally:",
        "        finally:",
        (CRASHES,),
    ),
    Mutant(
        "names are not synced",
        COMMIT,
        "        self._files.rename(partial, path)\n        self._files.sync_folder(path.parent)\n",
        "        self._files.rename(partial, path)\n",
        (CRASHES,),
    ),
    Mutant(
        "the manifest is written before the other ranks have their files",
        COMMIT,
        '        said = self._peers.gather(f"{name}.written", written)\n        self._fail_together(said, number)\n',
        '        said = self._peers.gather(f"{name}.written", written)\n',
        ("tests/faults/test_checkpoint_faults.py -k disk_that_fails",),
    ),
    Mutant(
        "a generation takes the number of one that was begun before",
        COMMIT,
        "number = max(self._folder.numbers(), default=0) + 1",
        "number = len(self._folder.numbers()) + 1",
        (CRASHES,),
    ),
    Mutant(
        "the oldest generations are kept",
        COMMIT,
        "self._folder.committed()[-self._keep :]",
        "self._folder.committed()[: self._keep]",
        ("tests/unit/checkpoint/test_checkpoint.py -k newest",),
    ),
    Mutant(
        "checksums of tensors are not compared",
        FOLDER,
        "if count != into.nbytes or sha256_of(into) != piece.sha256:",
        "if count != into.nbytes:",
        (DAMAGE,),
    ),
    Mutant(
        "checksums of headers are not compared",
        FOLDER,
        "if sha256_of(head) != shard.header_sha256:",
        "if not head.nbytes:",
        (DAMAGE,),
    ),
    Mutant(
        "the checksum of the manifest is not compared",
        "rabit/checkpoint/manifest.py",
        "if checksum != sha256_of(_text(document).encode()):",
        "if not checksum:",
        (DAMAGE,),
    ),
    Mutant(
        "of several generations only the newest is tried",
        "rabit/checkpoint/checkpoint.py",
        "return list(reversed(said[1]))",
        "return list(reversed(said[1]))[:1]",
        (DAMAGE,),
    ),
    Mutant(
        "each rank decides alone which generation is whole",
        "rabit/checkpoint/checkpoint.py",
        "bad = [(rank, text) for rank, (text, _, _) in enumerate(said) if text]",
        "bad = [(self._peers.rank, error)] if error else []",
        (DAMAGE, "tests/unit/checkpoint/test_checkpoint.py -k damaged"),
    ),
    Mutant(
        "the manifest of a generation that is removed goes last",
        FOLDER,
        "        if MANIFEST in names:\n            self.files.remove(path / MANIFEST)\n"
        "            self.files.sync_folder(path)\n        for name in names:\n            if name != MANIFEST:\n"
        "                self.files.remove(path / name)\n",
        "        for name in sorted(names, key=lambda each: each == MANIFEST):\n"
        "            self.files.remove(path / name)\n",
        (CRASHES,),
    ),
]
