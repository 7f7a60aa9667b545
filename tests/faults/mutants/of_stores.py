"""Bugs of the store, and of who decides what has failed."""

from __future__ import annotations

from faults.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "a value is set whatever its version is",
        "native/rendezvous/board.cc",
        "  if ((held == nullptr ? 0 : held->version) != version) {",
        "  if (held == nullptr && version != 0) {",
        ("native:Store", "native:Board"),
    ),
    Mutant(
        "wills are not kept",
        "native/rendezvous/store_server.cc",
        "  if (!will_key.empty()) (void)board_.CompareAndSet(will_key, 0, connection.will_value);\n",
        "",
        ("native:StartWatch",),
    ),
    Mutant(
        "a wait that began before a value was set is not ended by it",
        "native/rendezvous/store_server.cc",
        "  if (held != nullptr && held->version > request.version) {",
        "  if (held != nullptr && held->version > request.version + 1) {",
        ("native:Store",),
    ),
    Mutant(
        "the last word on who is lost counts, and not the first",
        "native/engine/failure_board.cc",
        "  if (!verdict_.ok()) return;\n  verdict_ = verdict;",
        "  verdict_ = verdict;",
        ("native:FailureBoard",),
    ),
    Mutant(
        "what a rank suspects is the verdict at once",
        "native/engine/failure_board.cc",
        "  while (VerdictOn(scope).ok() && settled_.WaitUntil(mutex_, deadline)) {\n  }\n",
        "",
        ("native:EngineFailure",),
    ),
    Mutant(
        "shapes of the ranks are not compared",
        "native/control/crosscheck.cc",
        "  return std::equal(a.shape.begin() + skipped, a.shape.end(), b.shape.begin() + skipped);",
        "  return skipped <= 1;",
        ("native:Coordinator",),
    ),
]
