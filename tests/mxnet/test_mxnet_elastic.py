"""Elastic training with MXNet: equal, bit for bit, to a job that had these ranks from the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

TRAIN = """
import json, os, pathlib, pickle, signal, sys
import numpy as np
import rabit_mxnet as rabit
import mxnet as mx
from rabit_mxnet import elastic

folder, begin, steps = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
victims = [tuple(each) for each in json.loads(sys.argv[4])]
optimizer, settings = json.loads(sys.argv[5])
me = int(os.environ["RABIT_RANK"])
rabit.init()
mx.random.seed(3)
np.random.seed(3)
net = mx.gluon.nn.HybridSequential(prefix="net_")
with net.name_scope():
    net.add(mx.gluon.nn.Dense(32, activation="tanh"), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Dense(1))
net.initialize(mx.init.Xavier())
schedule = mx.lr_scheduler.FactorScheduler(step=3, factor=0.9, base_lr=0.05)
inputs = np.random.default_rng(5).normal(size=(101, 20)).astype("float32")
targets = inputs.sum(1, keepdims=True)
net(mx.nd.array(inputs[:2]))
trainer = rabit.DistributedTrainer(
    net.collect_params(), optimizer, {"lr_scheduler": schedule, **settings}
)
sampler = elastic.ElasticSampler(range(len(inputs)), seed=3)
state = elastic.MXNetState(net, trainer, step=0, sampler=sampler, sizes=[])
loss_of = mx.gluon.loss.L2Loss()
if begin:
    kept = pickle.loads((folder / begin).read_bytes())
    for name, each in net.collect_params().items():
        each.set_data(mx.nd.array(kept["net"][name]))
    (folder / f"trainer.{me}").write_bytes(kept["trainer"])
    trainer.load_states(str(folder / f"trainer.{me}"))
    sampler.load_state_dict(kept["sampler"])
    state.step = kept["step"]
    state.save()

@elastic.run
def train(state):
    while state.step < steps:
        sampler.reset()
        if len(sampler) < 4:
            sampler.set_epoch(sampler.epoch + 1)
        rows = sampler.indices[:4]
        with mx.autograd.record():
            loss = loss_of(net(mx.nd.array(inputs[rows])), mx.nd.array(targets[rows]))
        if (state.step, me) in victims:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        trainer.step(len(rows))
        sampler.record_batch(0, len(rows))
        state.step += 1
        state.sizes.append(rabit.size())
        state.commit()

train(state)
arrays = {name: each.data().asnumpy() for name, each in net.collect_params().items()}
trained = {name: each.tobytes().hex() for name, each in arrays.items() if "running" not in name}
assert all(each == trained for each in rabit.allgather_object(trained)), "ranks differ"
if rabit.rank() == 0:
    trainer.save_states(str(folder / "trainer"))
    (folder / f"at.{steps}").write_bytes(pickle.dumps({
        "net": arrays, "trainer": (folder / "trainer").read_bytes(),
        "sampler": sampler.state_dict(), "step": state.step,
    }))
    (folder / "result.json").write_text(json.dumps([trained, state.sizes, trainer.learning_rate]))
"""


@pytest.fixture
def train(tmp_path, rank_server):
    """train(ranks, steps): what rank 0 has come to; begin: the file to continue from."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)

    def run(ranks, steps, *, least=0, begin="", victims=(), spares=0, optimizer="sgd", **settings):
        bounds = ["--min-np", str(least), "--spares", str(spares)] if least else []
        command = [
            *(sys.executable, "-m", "rabit.launch", "-np", str(ranks), *bounds),
            *(*rank_server.command, str(script), str(tmp_path), begin, str(steps)),
            *(json.dumps(victims), json.dumps([optimizer, settings])),
        ]
        environ = {
            **os.environ, "OMP_NUM_THREADS": "1", "RABIT_DETERMINISTIC": "1", "HOME": str(tmp_path)
        }  # fmt: skip
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((tmp_path / "result.json").read_text())

    return run


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_two_losses_leave_the_bits_of_jobs_that_had_these_ranks(train, optimizer):
    settings = {"momentum": 0.9} if optimizer == "sgd" else {}
    elastic = train(4, 12, least=2, victims=[(4, 0), (8, 2)], optimizer=optimizer, **settings)

    train(4, 4, optimizer=optimizer, **settings)
    train(3, 8, begin="at.4", optimizer=optimizer, **settings)
    reference = train(2, 12, begin="at.8", optimizer=optimizer, **settings)
    assert elastic[1] == [4] * 4 + [3] * 4 + [2] * 4
    assert elastic[2] == reference[2]
    assert elastic[0] == reference[0]


def test_a_spare_takes_over(train):
    elastic = train(3, 10, least=3, spares=1, victims=[(5, 0)])

    train(3, 5)
    reference = train(3, 10, begin="at.5")
    assert elastic[0] == reference[0]
    assert elastic[1] == [3] * 10


REFUSED = """
import sys
import rabit_mxnet as rabit
import mxnet as mx
rabit.init()
net = mx.gluon.nn.Dense(2, in_units=2)
net.initialize()
try:
    rabit.DistributedTrainer(net.collect_params(), "sgd", strategy="powersgd:rank=2")
except rabit.InvalidArgument as error:
    print(error)
try:
    rabit.elastic.MXNetState(net, mx.optimizer.SGD())
except rabit.InvalidArgument as error:
    print(error)
"""


def test_what_has_no_way_back_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", "1", "--min-np", "1", sys.executable, "-c", REFUSED],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip

    assert "DistributedTrainer with strategy in an elastic job (--min-np 1)" in done.stdout, done.stderr
    assert "MXNetState: trainer is a SGD, and a DistributedTrainer is expected" in done.stdout


INTERRUPTED = """
import rabit_mxnet as rabit
import mxnet as mx
from rabit.elastic.state import ObjectState

rabit.init()
net = mx.gluon.nn.Dense(1, in_units=1)
net.initialize(mx.init.Constant(1.0))
state = rabit.elastic.MXNetState(net, step=1)
state.save()
save = ObjectState.save

def interrupted(self, is_kept):
    if is_kept:
        save(self)
    raise KeyboardInterrupt

for is_kept, expected in ((False, 1), (True, 2)):
    net.weight.set_data(mx.nd.array([[2.0]]))
    state.step = 2
    ObjectState.save = lambda self: interrupted(self, is_kept)
    try:
        state.save()
    except KeyboardInterrupt:
        pass
    net.weight.set_data(mx.nd.array([[3.0]]))
    state.step = 3
    state.restore()
    found = state.step, float(net.weight.data().asscalar())
    assert found == (expected, float(expected)), (is_kept, found)
"""


def test_an_interrupted_commit_is_whole_or_none(tmp_path):
    """The exception of a signal's handler comes before the values are kept, or right after."""
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)

    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stderr
