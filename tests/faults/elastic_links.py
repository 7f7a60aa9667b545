"""Elastic jobs over links that break: three hosts, each a network namespace, and one fault of their links.

    python tests/faults/elastic_links.py [--runs 24] [--seed 0] [--kind reset]

A seed decides the kind of fault, whom it hits and for how long: a host's link is down for up to 2 s, for 10 s or for
ever; its connections are reset; its link flaps; two hosts do not hear each other, or only one does not hear the
other, for up to 2 s; or two never hear each other again. What heals in time must be noticed by nobody: no exception,
no step with fewer ranks. What does not must cost one rank, by its name, and the others continue; a rank that was cut
off and comes back must learn that it was given up. In all cases the processes that end well must have one history, and
the sum that its steps make, to the bit.
Needs root, ip and ss.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.links import Lab, build, why_not
from support import seeds
from support.lab_jobs import call, start

RANKS = 3
KINDS = ("down", "down long", "down for ever", "reset", "flap", "pair", "one way", "pair for ever")
LIMIT_S = 120.0
# What a host that nobody has answers to.
NOBODY = "02:00:00:00:00:99"
SCRIPT = """
import json, os, pathlib, sys, time
import numpy as np
import rabit, rabit.elastic

folder = pathlib.Path(sys.argv[1])
me = int(os.environ["RABIT_RANK"])
rabit.init()
state = rabit.elastic.ObjectState(step=0, weights=np.zeros(20_000), sizes=[])
exceptions = []

def tell(what, document):
    (folder / f"new.{me}").write_text(json.dumps(document))
    (folder / f"new.{me}").rename(folder / f"{what}.{me}")

def goes_on():
    try:
        gradient = np.full(20_000, (rabit.rank() + 1) * (state.step + 1), np.float64)
        state.weights += rabit.allreduce(gradient, op=rabit.Sum, name="gradient")
        return not rabit.any_rank((folder / "enough").exists())
    except rabit.RabitError as error:
        exceptions.append(str(error))
        raise

@rabit.elastic.run
def train(state):
    is_on = True
    while is_on:
        is_on = goes_on()
        state.step += 1
        state.sizes.append(rabit.size())
        state.commit()
        if state.step == 20 or state.sizes[-1] != state.sizes[-2:][0]:
            tell("ready" if rabit.size() == 3 else "smaller", rabit.size())
        time.sleep(0.005)

try:
    train(state)
except rabit.RabitError as error:
    tell("told", str(error))
    raise
tell("result", [state.sizes, float(state.weights[0]), bool((state.weights == state.weights[0]).all()), exceptions])
"""


@dataclass(frozen=True)
class Fault:
    """What happens to the link of `host`, or between it and `other`; times_s: down, up, down and so on."""

    kind: str
    host: int
    other: int
    times_s: tuple[float, ...]

    @property
    def heals(self) -> bool:
        return self.kind in ("down", "reset", "flap", "pair", "one way")


def fault_of(seed: int, kind: str = "") -> Fault:
    dice = random.Random(seed)
    kind = kind or dice.choice(KINDS)
    host, other = dice.sample(range(RANKS), 2)
    times: tuple[float, ...] = ()
    if kind in ("down", "pair", "one way"):
        times = (dice.uniform(0.1, 2.0),)
    elif kind == "down long":
        times = (10.0,)
    elif kind == "flap":
        times = tuple(dice.uniform(0.05, 0.6) for _ in range(2 * dice.randint(2, 6) - 1))
    return Fault(kind, host, other, times)


def hardware_address(device: str, *inside: str) -> str:
    return str(json.loads(call(*inside, "ip", "-j", "link", "show", "dev", device))[0]["address"])


class Links:
    """The links of a lab, for faults.

    Every host knows the others' hardware addresses for good.  A host whose link goes down forgets them otherwise, and
    its kernel asks for them once a second: it would be silent for as long as its questions fall into gaps of a link
    that flaps, whatever the ranks do.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._addresses = [hardware_address("eth0", *lab.command(host)) for host in range(RANKS)]
        bridge = hardware_address(lab.bridge)
        for host in range(RANKS):
            call("ip", "neigh", *self._known(lab.address(host), self._addresses[host]), "dev", lab.bridge)
            call(*lab.command(host), "ip", "neigh", *self._known(lab.gateway, bridge), "dev", "eth0")
            for other in set(range(RANKS)) - {host}:
                self.set_hears(other, host, True)

    @staticmethod
    def _known(address: str, hardware: str) -> list[str]:
        return ["replace", address, "lladdr", hardware, "nud", "permanent"]

    def set_up(self, host: int, is_up: bool) -> None:
        call("ip", "link", "set", self._lab.port(host), "up" if is_up else "down")

    def reset(self, host: int) -> None:
        call(*self._lab.command(host), "ss", "-K", "state", "established")

    def set_hears(self, host: int, other: int, hears: bool) -> None:
        """Whether what `other` sends to `host` gets there."""
        words = self._known(self._lab.address(host), self._addresses[host] if hears else NOBODY)
        call(*self._lab.command(other), "ip", "neigh", *words, "dev", "eth0")

    def begin(self, fault: Fault) -> None:
        if fault.kind == "reset":
            self.reset(fault.host)
        elif fault.kind in ("pair", "one way", "pair for ever"):
            self.set_hears(fault.host, fault.other, False)
            if fault.kind != "one way":
                self.set_hears(fault.other, fault.host, False)
        else:
            self.set_up(fault.host, False)

    def end(self, fault: Fault) -> None:
        if fault.kind in ("pair", "one way"):
            self.set_hears(fault.host, fault.other, True)
            if fault.kind == "pair":
                self.set_hears(fault.other, fault.host, True)
        elif fault.kind != "reset":
            self.set_up(fault.host, True)


def wait_for(folder: Path, names: str, count: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + LIMIT_S
    while len(list(folder.glob(names))) < count:
        assert process.poll() is None, f"the job has ended before {count} {names}: {process.communicate()}"
        assert time.monotonic() < until, f"there are no {count} {names} after {LIMIT_S:g} s"
        time.sleep(0.01)


def play(links: Links, fault: Fault, folder: Path, process: subprocess.Popen[str]) -> None:
    """Lets the fault happen to a job that runs, until the job can end."""
    wait_for(folder, "ready.*", RANKS, process)
    links.begin(fault)
    for number, seconds in enumerate(fault.times_s):
        time.sleep(seconds)
        links.end(fault) if number % 2 == 0 else links.begin(fault)
    if fault.heals:
        time.sleep(5.0)  # What was noticed would be told by then.
    else:
        wait_for(folder, "smaller.*", RANKS - 1, process)
    if fault.kind in ("down long", "pair for ever"):
        wait_for(folder, "told.*", 1, process)
    (folder / "enough").touch()


def weight_of(sizes: list[int]) -> float:
    """What the weights come to when each step has so many ranks: exact in float64."""
    steps = enumerate(sizes, 1)
    return float(sum(step * size * (size + 1) // 2 for step, size in steps))


def check(fault: Fault, folder: Path, said: str) -> None:
    found = {int(each.suffix[1:]): json.loads(each.read_text()) for each in folder.glob("result.*")}
    histories = {json.dumps(each[:3]) for each in found.values()}
    assert len(histories) == 1, f"{histories}: {said}"
    sizes, weight, is_even, _ = next(iter(found.values()))
    assert is_even and weight == weight_of(sizes), said
    exceptions = {rank: each[3] for rank, each in found.items()}
    if fault.heals:
        assert set(sizes) == {RANKS} and not any(exceptions.values()), f"{exceptions}: {said}"
        return
    assert len(found) == RANKS - 1 and set(sizes) == {RANKS, RANKS - 1}, f"{sorted(found)}: {said}"
    lost = next(rank for rank in range(RANKS) if rank not in found)
    if fault.kind == "pair for ever":
        assert lost == max(fault.host, fault.other), said
        assert "do not reach each other" in json.loads((folder / f"told.{lost}").read_text()), said
        return
    assert lost == fault.host, said
    assert any(f"rank {lost}" in each[0] for each in exceptions.values() if each), f"{exceptions}: {said}"
    if fault.kind == "down long":
        assert "was given up by the others" in json.loads((folder / f"told.{lost}").read_text()), said


def run(fault: Fault) -> None:
    """Raises AssertionError."""
    with build(RANKS, 1e9) as lab, tempfile.TemporaryDirectory() as name:
        folder, links = Path(name), Links(lab)
        # So long those that cannot come together try.
        environ = {"RABIT_CONNECT_TIMEOUT": "10"}
        process = start(lab, folder, ["--min-np", "1"], SCRIPT, [name], environ)
        try:
            play(links, fault, folder, process)
            out, err = process.communicate(timeout=LIMIT_S)
            said = f"{fault}: status {process.returncode}\n{out}{err}"
            assert process.returncode == 0, said
            check(fault, folder, said)
        except AssertionError as error:
            process.terminate()
            raise AssertionError(f"{error}\n{''.join(process.communicate())}") from error
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()


def main() -> int:
    parser = seeds.options(__doc__, runs=24)
    parser.add_argument("--kind", default="", choices=("", *KINDS), help="one kind of fault only")
    given = parser.parse_args()
    if missing := why_not():
        print(f"faults of links cannot be made here: {missing}")
        return 1
    done = Counter[str]()

    def one(seed: int) -> None:
        fault = fault_of(seed, given.kind)
        run(fault)
        done[fault.kind] += 1

    status = seeds.play(given, one, about=lambda seed: fault_of(seed, given.kind))
    print(dict(sorted(done.items())))
    return status


if __name__ == "__main__":
    sys.exit(main())
