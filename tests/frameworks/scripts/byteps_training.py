"""A training script for BytePS, as its users write it; the test changes the import alone."""

import argparse

import byteps.torch as bps
import torch
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--fp16-pushpull", action="store_true")
parser.add_argument("--steps", type=int, default=8)
args = parser.parse_args()

bps.init()
torch.manual_seed(1 + bps.rank())
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * bps.size(), momentum=0.9)

bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)

compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
optimizer = bps.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=compression,
    backward_passes_per_step=1,
)

generator = torch.Generator().manual_seed(7)
inputs = torch.randn(64 * bps.size(), 16, generator=generator)
targets = inputs[:, :4].argmax(1)
mine = slice(bps.rank(), None, bps.size())


def metric_average(value, name):
    return bps.push_pull(torch.tensor(value), name=name, average=True).item()


first = None
for _ in range(args.steps):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs[mine]), targets[mine])
    loss.backward()
    optimizer.step()
    average = metric_average(loss.item(), "avg_loss")
    first = average if first is None else first

total = torch.ones(3)
bps.declare("total")
handle = bps.push_pull_async_inplace(total, average=False, name="total")
while not bps.poll(handle):
    pass
bps.synchronize(handle)
assert total.tolist() == [bps.size()] * 3
checksum = sum(p.sum().item() for p in model.parameters())
if bps.rank() == 0:
    print("loss fell", average < first, flush=True)
print("checksum", repr(checksum), flush=True)
bps.shutdown()
