"""Bugs of methods with state, and of the guards against wrong numbers."""

from __future__ import annotations

from faults.mutants.mutant import Mutant

TREES = "tests/unit/training/test_state.py"
INTEGRITY = "tests/unit/training/test_integrity.py"

MUTANTS = [
    Mutant(
        "a residual is not undone with its step",
        "rabit/training/state.py",
        "            slot.state = state\n        self.commit()",
        "            pass\n        self.commit()",
        (TREES,),
    ),
    Mutant(
        "residuals keep their scale when ranks are lost",
        "rabit/training/state.py",
        "return tree * (change.now / change.before)",
        "return tree",
        (TREES,),
    ),
    Mutant(
        "what was not sent before is forgotten",
        "rabit/training/strategy.py",
        "else whole - found.sent",
        "else x - found.sent",
        ("tests/conformance/test_strategies.py -k what_is_not_sent",),
    ),
    Mutant(
        "the last parameter of the replicas is not compared",
        "rabit/training/integrity.py",
        'root = np.frombuffer(hashlib.sha256(b"".join(digests))',
        'root = np.frombuffer(hashlib.sha256(b"".join(digests[:-1]))',
        (INTEGRITY,),
    ),
    Mutant(
        "a gradient that is not finite is known to its rank alone",
        "rabit/training/integrity.py",
        "vote = Vote(int(found is not None), self._name",
        "vote = Vote(0, self._name",
        (INTEGRITY,),
    ),
]
