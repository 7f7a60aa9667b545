"""Every gradient method on ranks that are processes."""

from __future__ import annotations

from support.processes import assert_all_ended_well, run_processes

EQUAL = """
import rabit
from support import strategy_suite as suite

rabit.init()
engine = rabit.default_engine()
wrong = {}
for name, (method, reference) in suite.EQUIVALENCES.items():
    found = suite.distance([method(engine)], [reference(engine)])
    if not found <= 1e-12:
        wrong[name] = found
print(wrong, len(suite.EQUIVALENCES) > 15)
rabit.shutdown()
"""

TOGETHER = """
import dataclasses
import rabit
from support import strategy_suite as suite

rabit.init()
engine = rabit.default_engine()
wrong = []
for name, make in suite.TOGETHER.items():
    run = suite.Run(make)
    plain = run(engine)
    if suite.spread(rabit.allgather_object(plain.values and dataclasses.replace(plain, states={}))):
        wrong.append(name)
    for disturbed in ({"reloads": 6}, {"reverses": True}):
        if suite.distance([dataclasses.replace(run, **disturbed)(engine)], [plain]):
            wrong.append((name, disturbed))
print(wrong, len(suite.TOGETHER) > 20)
rabit.shutdown()
"""


def test_methods_equal_what_they_must(tmp_path):
    ended = run_processes(2, EQUAL, tmp_path)

    assert_all_ended_well(ended)
    assert [each.output for each in ended] == ["{} True\n"] * 2


def test_ranks_stay_together_and_saved_states_go_on(tmp_path):
    ended = run_processes(3, TOGETHER, tmp_path, {"RABIT_DETERMINISTIC": "1"})

    assert_all_ended_well(ended)
    assert [each.output for each in ended] == ["[] True\n"] * 3
