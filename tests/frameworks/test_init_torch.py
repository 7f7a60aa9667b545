"""Programs that know nothing of rabit run on its backend: --init-torch, Lightning's strategy by name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(400)


def run(folder, program, *flags, words=("program.py",)):
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", "2", *flags, sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        check=False,
    )


PLAIN = """
import sys
import torch, torch.distributed as dist
total = torch.ones(1)
dist.all_reduce(total)
print("said", dist.get_backend(), total.item(), sys.argv[1:], __name__)
if sys.argv[1:] == ["fail"] and dist.get_rank() == 1:
    raise ValueError("bad data")
"""


def test_a_program_finds_its_group_made(tmp_path):
    done = run(tmp_path, PLAIN, "--init-torch", words=("-u", "program.py", "--lr", "1"))

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("said rabit 2.0 ['--lr', '1'] __main__") == 2


def test_a_module_as_well(tmp_path):
    done = run(tmp_path, PLAIN, "--init-torch", words=("-m", "program", "x"))

    assert done.stdout.count("said rabit 2.0 ['x'] __main__") == 2, done.stderr


def test_the_first_cause_is_the_users_line(tmp_path):
    done = run(tmp_path, PLAIN, "--init-torch", words=("program.py", "fail"))

    assert done.returncode == 1
    assert "rank 1 of 2 (host localhost) raised ValueError: bad data" in done.stderr
    assert "program.py:8, in <module>" in done.stderr


def test_only_a_python_program_can_begin_with_a_group(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", "1", "--init-torch", "./train.sh"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert "only a Python program can begin with a process group" in done.stderr


ACCELERATE = """
import torch, torch.distributed as dist
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(4, 1))
accelerator.backward(model(torch.ones(2, 4)).sum())
print("said", accelerator.num_processes, dist.get_backend())
"""


def test_accelerate_without_a_change(tmp_path):
    pytest.importorskip("accelerate")

    done = run(tmp_path, ACCELERATE, "--init-torch")

    assert done.stdout.count("said 2 rabit") == 2, done.stderr


FABRIC = """
import torch, torch.distributed as dist
import rabit_torch.lightning
from {package} import Fabric
fabric = Fabric(accelerator="cpu", devices=2, strategy="rabit")
fabric.launch()
model = fabric.setup(torch.nn.Linear(4, 1))
fabric.backward(model(torch.full((8, 4), fabric.global_rank + 1.0)).sum())
print("said", fabric.world_size, dist.get_backend(), model.weight.grad[0, 0].item())
"""


@pytest.mark.parametrize("package", ["lightning.fabric", "lightning_fabric"])
def test_fabric_knows_the_launcher_and_the_strategy_by_name(tmp_path, package):
    pytest.importorskip(package.partition(".")[0])

    done = run(tmp_path, FABRIC.format(package=package))

    assert done.stdout.count("said 2 rabit 12.0") == 2, done.stdout + done.stderr


TRAINER = """
import torch, torch.distributed as dist
import rabit_torch.lightning
import lightning.pytorch as pl

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 4)), batch_size=4)
trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="rabit", max_epochs=1, logger=False,
                     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), data)
print("said", trainer.world_size, dist.get_backend())
"""


def test_lightnings_trainer_knows_the_launcher_and_the_strategy_by_name(tmp_path):
    pytest.importorskip("lightning")

    done = run(tmp_path, TRAINER)

    assert done.stdout.count("said 2 rabit") == 2, done.stdout + done.stderr


HUGGING_FACE = """
import torch, torch.distributed as dist
from transformers import Trainer, TrainingArguments

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
    def forward(self, x, labels):
        output = self.linear(x).squeeze(-1)
        return {"loss": (output - labels).square().mean(), "logits": output}

data = [{"x": row, "labels": row.sum()} for row in torch.randn(32, 4)]
arguments = TrainingArguments(output_dir="out", use_cpu=True, per_device_train_batch_size=8, num_train_epochs=1,
                              report_to=[], save_strategy="no", disable_tqdm=True)
trainer = Trainer(model=Line(), args=arguments, train_dataset=data)
trainer.train()
print("said", arguments.world_size, dist.get_backend(), type(trainer.model_wrapped).__name__)
"""


def test_the_trainer_of_hugging_face_without_a_change(tmp_path):
    pytest.importorskip("transformers")

    done = run(tmp_path, HUGGING_FACE, "--init-torch")

    assert done.stdout.count("said 2 rabit DistributedDataParallel") == 2, done.stdout + done.stderr
