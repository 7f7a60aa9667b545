"""Rules of the native code that a compiler does not check."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def product_sources() -> list[Path]:
    skipped = {"testing", "bench"}
    return [
        path
        for path in sorted((ROOT / "native").rglob("*"))
        if path.suffix in {".h", ".cc"}
        and path.relative_to(ROOT / "native").parts[0] not in skipped
        and not path.name.endswith("_test.cc")
    ]


def matching(pattern: str) -> list[str]:
    found = []
    for path in product_sources():
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if re.search(pattern, re.sub(r"//.*", "", line)):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    return found


def test_native_code_reads_no_environment_variable():
    assert not matching(r"\bgetenv\b|\benviron\b")


# Where no event exists: another process that does not listen yet or has no room, a kernel buffer that drains, and a
# device, whose driver waits without a deadline or not at all.
MAY_SLEEP = {
    "native/backend/nccl/nccl_communicator.cc",
    "native/base/device/ask_until.h",
    "native/rendezvous/dial.cc",
    "native/rendezvous/tcp_store.cc",
    "native/transport/parts/part_reader.cc",
    "native/transport/tcp/tcp_channel.cc",
}


def test_nothing_sleeps_to_wait_for_another_thread():
    found = matching(r"\b(sleep_for|sleep_until|usleep|nanosleep)\s*\(")

    assert [line for line in found if line.split(":")[0] not in MAY_SLEEP] == []


# What a simulation runs in its own time.
WITHOUT_CLOCK = re.compile(
    r"native/(control|schedule)/|native/engine/(engine_core|core_agreement|stall_monitor|stuck_watch)\."
)


def test_state_machines_are_told_the_time():
    found = matching(r"\bsteady_clock\b|\bclock::now\b|\bkSteadyClock\b|\bNowNs\(|\bAfter\(")

    assert [line for line in found if WITHOUT_CLOCK.match(line)] == []


def test_native_code_has_no_mutable_globals():
    found = matching(
        r"^(static|inline|thread_local)\s+(?!constexpr|const\b|inline\s+const|_Noreturn)[\w:<>,\s*]+\s+g_\w+"
    )

    assert not found, "\n".join(found)


def test_headers_start_with_what_they_are_for():
    missing = []
    for path in product_sources():
        if path.suffix != ".h":
            continue
        text = path.read_text()
        if not text.startswith(("//", "/*")):
            missing.append(str(path.relative_to(ROOT)))
        if path.name != "rabit_abi.h" and "#pragma once" not in text:
            missing.append(f"{path.relative_to(ROOT)} (no #pragma once)")

    assert not missing, "\n".join(missing)
