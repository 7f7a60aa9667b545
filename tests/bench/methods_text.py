"""Loss of a transformer on letters against bytes on the wire."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import Option, case, on_ranks, words
from invented_text import LETTERS, Language
from methods_bytes import bytes_of_engine
from methods_rows import Rows

from rabit.strategies import make
from rabit.training.strategy import has_momentum

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.rows import ROWS, text_of

RANKS, BATCH, WINDOW, WIDTH, LAYERS, HEADS = 4, 4, 32, 192, 3, 4
LOOK_EVERY = 16  # steps: at the loss, while a method trains


@dataclass(frozen=True)
class Way:
    """How a method is trained, and what its paper claims.

    text: with {quarter} and {half} of the steps.
    of: the way that it is compared with.  bytes: at most this share of what that sends.  left: at most
    this share of what that has gained in loss is missing.  steps: of a training as short as this at least it is
    claimed: a method that begins with more bytes, or slowly, has not made up for it in fewer.
    """

    text: str
    lr: float
    of: str = "mean"
    bytes: float = 1.01
    left: float = 0.02
    steps: int = 0
    momentum: float | None = None  # of SGD; None: the optimizer is Adam


TOO_SHORT = "claimed from"  # so begins a verdict that is none
ADAM = 2e-3
SGD = 0.05

WAYS: dict[str, Way] = {
    "mean": Way("mean", ADAM),
    "mean, SGD": Way("mean", SGD, of="mean, SGD", momentum=0.9),
    "mean in bf16": Way("mean:codec=bf16", ADAM, bytes=0.51),
    # Fewer bits for each entry.
    "qsgd, 8 bits": Way("qsgd:bits=8", ADAM, bytes=0.27),
    "qsgd, 4 bits": Way("qsgd:bits=4", ADAM, bytes=0.15, left=0.05),
    "nuqsgd, 4 bits": Way("nuqsgd:bits=4", ADAM, bytes=0.15, left=0.05),
    "alq, 3 bits": Way("alq:bits=3,every=32", ADAM, bytes=0.12, left=0.1),
    "amq, 3 bits": Way("amq:bits=3,every=32", ADAM, bytes=0.12, left=0.1),
    "bytegrad": Way("bytegrad", ADAM, bytes=0.27),
    "fp8": Way("fp8", ADAM, bytes=0.27),
    "natural": Way("natural", ADAM, bytes=0.3, left=0.05),
    "terngrad": Way("terngrad", ADAM, bytes=0.15, left=0.1),
    "sign": Way("sign:block=512", ADAM / 2, bytes=0.06, left=0.1),
    "onebit": Way("onebit", ADAM / 2, bytes=0.06, left=0.1),
    # Few entries.
    "topk, 1 %": Way("topk:ratio=0.01", ADAM, bytes=0.06, left=0.1),
    "randomk, 10 %": Way("randomk:ratio=0.1", ADAM / 2, bytes=0.12, left=0.2, steps=128),
    "wangni, 5 %": Way("wangni:ratio=0.05", ADAM, bytes=0.25, left=0.2),
    "dgc, 1 %": Way("dgc:ratio=0.01,ramp=4", SGD, of="mean, SGD", bytes=0.12, left=0.1, steps=128, momentum=0.0),
    "ef21, 5 %": Way("ef21:ratio=0.05", ADAM, bytes=0.25, left=0.1),
    "ef21-sgdm, 5 %": Way("ef21-sgdm:ratio=0.05", 4 * SGD, of="mean, SGD", bytes=0.25, left=0.1, momentum=0.0),
    "rowsparse": Way("rowsparse", ADAM, bytes=1.02),
    # Low rank, and around others.
    "powersgd, rank 4": Way("powersgd:rank=4", ADAM, bytes=0.08, left=0.1),
    "powersgd, rank 1": Way("powersgd:rank=1", ADAM, bytes=0.04, left=0.2),
    "accordion, 4 or 1": Way("accordion:low=4,high=1,interval=16", ADAM, bytes=0.08, left=0.15),
    "hierarchical, 4 bits": Way("hierarchical:bits=4,island=2", ADAM, bytes=0.75, left=0.05),
    "adasum": Way("adasum", ADAM, bytes=1.05, left=0.05),
    # Rare exchanges.
    "local, 8": Way("local:every=8", ADAM, bytes=0.14, left=0.1),
    "post-local, 8": Way("local:every=8,start={quarter}", ADAM, bytes=0.4, left=0.1),
    "slowmo, 8": Way("slowmo:every=8,beta=0.5", ADAM, bytes=0.14, left=0.1),
    "diloco, 16": Way("diloco:every=16", ADAM, bytes=0.08, left=0.2),
    "streaming-diloco, 16": Way("streaming-diloco:every=16,delay=2,bits=4", ADAM, bytes=0.02, left=0.2),
    "sparseloco, 8": Way("sparseloco:every=8,ratio=0.05", ADAM, bytes=0.04, left=0.2),
    # Momentum that travels.
    "onebit-adam": Way("onebit-adam:warmup={quarter},block=512", ADAM, bytes=0.3, left=0.1, momentum=0),
    "onebit-lamb": Way("onebit-lamb:warmup={quarter},block=512", 10 * ADAM, bytes=0.3, left=0.15, momentum=0),
    "zero-one-adam": Way(
        "zero-one-adam:start={half},grow=16,every=4,block=512", ADAM, bytes=0.4, left=0.15, steps=128, momentum=0
    ),
    "qadam": Way("qadam:warmup={quarter}", ADAM, bytes=0.5, left=0.05, momentum=0),
    "demo": Way("demo:count=8,chunk=64", ADAM / 2, bytes=0.4, left=0.2, momentum=0),
    # Neighbours, and by the clock.
    "decentralized": Way("decentralized:peers=all", ADAM, bytes=1.01, left=0.05),
    "shift-one": Way("decentralized:peers=shift-one", ADAM, bytes=0.7, left=0.1),
    "gossip": Way("gossip", ADAM, bytes=1.4, left=0.05),
    "lowprecision": Way("lowprecision", ADAM, bytes=0.35, left=0.1),
    "async": Way("async", ADAM, bytes=1.01, left=0.1),
    "anybatch": Way("anybatch", ADAM, bytes=1.02),
    "dabmd, ring": Way("dabmd:graph=ring", 5 * SGD, of="mean, SGD", bytes=1.4, left=0.2, steps=128, momentum=0),
}
# A method that stands in no line here is trained as its row of the suites says, and claims nothing.
for _name in sorted(set(ROWS) - {way.text.partition(":")[0] for way in WAYS.values()}):
    _text = text_of(_name, ROWS[_name].learns[0])
    WAYS[_name] = Way(_text, ADAM, bytes=math.inf, left=math.inf, momentum=0 if has_momentum(make(_text)) else None)


def transformer(seed: int) -> Any:
    import torch
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention

    class Block(nn.Module):
        """Attention to what came before, and a layer in between."""

        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.ask, self.tell = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            asked = self.ask(self.before(x)).unflatten(-1, (3 * HEADS, WIDTH // HEADS))
            parts = asked.transpose(1, 2).chunk(3, dim=1)
            seen = scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.tell(seen.transpose(1, 2).flatten(2))
            return x + self.down(torch.relu(self.up(self.between(x))))

    class Guesser(nn.Module):
        """Scores of the next letter."""

        def __init__(self) -> None:
            super().__init__()
            self.letters = nn.Embedding(len(LETTERS), WIDTH)
            self.places = nn.Embedding(WINDOW, WIDTH)
            self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
            self.scores = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS)))

        def forward(self, letters: torch.Tensor) -> torch.Tensor:
            places = self.places.weight[: letters.shape[1]]
            return self.scores(self.blocks(0.3 * (self.letters(letters) + places)))

    torch.manual_seed(seed)
    return Guesser()


def rate(step: int, steps: int, highest: float) -> float:
    warmup = max(1, steps // 10)
    if step < warmup:
        return highest * (step + 1) / warmup
    return highest * max(0.05, 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))))


def windows(text: np.ndarray, count: int, seed: list[int]) -> Any:
    """Letters, and those that follow them."""
    import torch

    starts = np.random.default_rng(seed).integers(len(text) - WINDOW - 1, size=count)
    found = torch.from_numpy(text[starts[:, None] + np.arange(WINDOW + 1)])
    return found[:, :-1], found[:, 1:]


class Trial:
    """One method from the first parameters to the last."""

    def __init__(self, name: str, steps: int, seen: np.ndarray, unseen: np.ndarray, seed: int = 0) -> None:
        import torch

        import rabit_torch as rabit

        self._rabit, self._torch, self._steps, self._seen = rabit, torch, steps, seen
        self._way, self._seed = WAYS[name], seed
        self.text = self._way.text.format(quarter=steps // 4, half=steps // 2)
        self._model = transformer(seed)
        self._test = windows(unseen, 32, [9, rabit.rank()])
        parameters = self._model.parameters()
        lr, momentum = self._way.lr, self._way.momentum
        plain: Any = (
            torch.optim.Adam(parameters, lr=lr, fused=True)
            if momentum is None
            else torch.optim.SGD(parameters, lr=lr, momentum=momentum)
        )
        self._optimizer: Any = rabit.DistributedOptimizer(plain, self._model.named_parameters(), strategy=self.text)
        self._counts = hasattr(self._optimizer.strategy, "samples")
        self._sent = 0
        self.curve: list[tuple[int, float]] = []  # bytes that a rank has sent, loss
        self.looks: list[int] = []  # steps before each point of the curve
        self.sent: list[int] = []  # bytes of each step
        self.seconds: list[float] = []  # that it took

    def run(self) -> None:
        self._look()
        for step in range(self._steps):
            self.step(step)
            if (step + 1) % LOOK_EVERY == 0:
                self._look()
        before = bytes_of_engine(self._rabit)
        self.end()
        self._sent += bytes_of_engine(self._rabit) - before
        with self._torch.no_grad():
            for parameter in self._model.parameters():
                parameter.copy_(self._rabit.allreduce(parameter.detach(), name="end"))
        self.curve.pop()
        self.looks.pop()
        self._look()

    def step(self, step: int) -> None:
        """One step of training, measured."""
        before, begin = bytes_of_engine(self._rabit), time.perf_counter()
        self._step(step)
        self.seconds.append(time.perf_counter() - begin)
        self.sent.append(bytes_of_engine(self._rabit) - before)
        self._sent += self.sent[-1]

    def end(self) -> None:
        """Brings in what is under way, on all ranks."""
        self._optimizer.strategy_state_dict()

    def _step(self, step: int) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate(step, self._steps, self._way.lr)
        self._optimizer.zero_grad()
        given, wanted = windows(self._seen, BATCH, [3 + 100 * self._seed, step, self._rabit.rank()])
        loss = self._loss(given, wanted)
        if self._counts:  # Sums over samples: here those of letters.
            self._optimizer.strategy.samples = wanted.numel()
            loss = loss * wanted.numel()
        loss.backward()
        self._optimizer.step()

    def _loss(self, given: Any, wanted: Any) -> Any:
        scores = self._model(given).flatten(0, 1)
        return self._torch.nn.functional.cross_entropy(scores, wanted.flatten())

    def _look(self) -> None:
        with self._torch.no_grad():
            mine = self._loss(*self._test)
        mean = self._rabit.allreduce(self._torch.stack([mine, self._torch.tensor(float(self._sent))]), name="look")
        self.curve.append((int(mean[1]), float(mean[0])))
        self.looks.append(len(self.sent))


def mean_of_ranks(numbers: list[float]) -> list[float]:
    """Of each place; collective."""
    import torch

    import rabit_torch as rabit

    found: list[float] = rabit.allreduce(torch.tensor(numbers, dtype=torch.float64), name="numbers").tolist()
    return found


def verdict(rows: dict[str, dict[str, Any]], name: str) -> str:
    """What is claimed of a method, and whether it is so here; of a loss that is not finite nothing is said."""
    way, row, of = WAYS[name], rows[name], rows.get(WAYS[name].of)
    if of is None or name == way.of:
        return ""
    begin = of["curve"][0][1]
    if not all(math.isfinite(loss) for loss in (begin, of["loss"], row["loss"])):
        return f"no verdict: losses {row['loss']:g}, of '{way.of}' {begin:g} to {of['loss']:g}"
    if of["loss"] >= begin:
        return f"no verdict: '{way.of}' has gained nothing, {begin:g} to {of['loss']:g}"
    share = row["bytes"] / of["bytes"]
    left = (row["loss"] - of["loss"]) / (begin - of["loss"])
    misses = [
        words
        for words, is_missed in (
            (f"sends {share:.3f} of '{way.of}', not {way.bytes:g}", share > way.bytes),
            (f"misses {left:.1%} of its gain, not {way.left:.0%}", left > way.left),
        )
        if is_missed
    ]
    if misses and row["settings"]["steps"] < way.steps:
        return f"{TOO_SHORT} {way.steps} steps; in {row['settings']['steps']} it {' and '.join(misses)}"
    return "; ".join(misses) or "as claimed"


def methods_text_rank(options: Any) -> None:
    import torch

    import rabit_torch as rabit

    torch.set_num_threads(1)
    rabit.init()
    language = Language()
    seen, unseen = language.text(200_000, 1), language.text(20_000, 2)
    wanted = options.methods
    settings = {
        name: {**asdict(way), "steps": options.steps, "seeds": options.seeds}
        for name, way in WAYS.items()
        if not wanted or way.text.partition(":")[0] in wanted
    }
    rows = Rows(Path(options.save) if options.save and rabit.rank() == 0 else None)
    names = rabit.broadcast_object(rows.missing(settings), root_rank=0, name="methods")
    begin = time.monotonic()
    for done, name in enumerate(names, 1):
        busy = time.process_time()
        trials = [Trial(name, options.steps, seen, unseen, seed) for seed in range(options.seeds)]
        for trial in trials:
            trial.run()
        used = torch.tensor(time.process_time() - busy)
        used = rabit.allreduce(used, op=rabit.Sum, name="used")
        sent = mean_of_ranks(trials[0].sent)
        if rabit.rank() > 0:
            continue
        losses = [each.curve[-1][1] for each in trials]
        row = {"text": trials[0].text, "bytes": trials[0].curve[-1][0], "curve": trials[0].curve}
        row |= {"looks": trials[0].looks, "sent": sent}
        row |= {"loss": float(np.mean(losses)), "losses": losses, "processor_seconds": float(used)}
        rows.add(name, settings[name], row, entropy=language.entropy(), steps=options.steps)
        left = (time.monotonic() - begin) / done * (len(names) - done)
        print(f"[{done}/{len(names)}, {left:3.0f} s left] {line(name, rows.rows)}", flush=True)
    if rabit.rank() == 0:
        conclude(list(settings), rows.rows)
    rabit.shutdown()


def line(name: str, rows: dict[str, dict[str, Any]]) -> str:
    row = rows[name]
    return (
        f"{name:22} loss {row['loss']:.3f} ± {np.std(row['losses']):.3f}  {row['bytes'] / 1e6:8.2f} MB  "
        f"{row['processor_seconds']:5.1f} s of processors  {verdict(rows, name)}"
    )


def conclude(names: list[str], rows: dict[str, dict[str, Any]]) -> None:
    judged = {name: verdict(rows, name) for name in names}
    claims = {name: says for name, says in judged.items() if says and not says.startswith(TOO_SHORT)}
    short = [line(name, rows) for name, says in claims.items() if says != "as claimed"]
    used = sum(rows[name]["processor_seconds"] for name in names)
    print(f"{len(claims) - len(short)} of {len(claims)} as claimed, {used:.0f} s of processors")
    print("\n".join(f"  {each}" for each in short), flush=True)


@case(
    steps=128,
    seeds=1,
    methods=words("", "some of them"),
    save=Option("", help="a JSON file; what it has is not measured again"),
)
def methods_text(o: Any) -> None:
    """Loss of a transformer on letters against bytes on the wire, for every gradient method.

    4 ranks that are processes, DistributedOptimizer, a transformer of 1.3 million parameters in float32 that
    guesses the next letter of an invented text (invented_text.py), whose own entropy is the least loss there
    is.  Every method starts from the same parameters and sees the same windows of the text, others with another
    seed; losses are means over the seeds, a curve is that of the first.  Bytes are those
    that the engine counts as sent by a rank; the loss is that of the mean of the ranks' parameters, on text
    that was not trained on.  A line ends in what its paper claims, and whether this run bears it out.
    methods_text_links.py measures how long such steps take on slow links.
    """
    on_ranks(methods_text_rank, o, RANKS, flags=["--transport", "tcp", "--allreduce-algorithm", "ring"])
