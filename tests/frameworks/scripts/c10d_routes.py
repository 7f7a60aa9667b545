"""Operations of torch.distributed take the routes that the job's rules say.  Run under torchrun.

Environment: RABIT_BACKEND=builtin,ps, RABIT_ROUTE="allreduce:>=4K:ps;broadcast:builtin/chain".
"""

import torch
import torch.distributed as dist

import rabit
import rabit_torch.distributed  # noqa: F401

torch.set_num_threads(1)
rabit.init()
dist.init_process_group("rabit")
rank, size = dist.get_rank(), dist.get_world_size()

for count in (16, 100_000):
    x = torch.full((count,), float(rank + 1))
    dist.all_reduce(x)
    assert (x == size * (size + 1) / 2).all()
x = torch.full((5000,), float(rank))
dist.broadcast(x, src=1)
assert (x == 1).all()
parts = [torch.empty(300) for _ in range(size)]
dist.all_gather(parts, torch.full((300,), float(rank)))
assert [each[0].item() for each in parts] == list(range(size))

rows = {
    (each["kind"], each["backend"], each["algorithm"], each["row"])
    for each in rabit.default_engine().statistics()["routes"]
}
assert ("broadcast", "builtin", "chain", "route_rule") in rows, rows
assert ("allreduce", "ps", "push_pull", "route_rule") in rows, rows
assert {row[1] for row in rows if row[0] == "allreduce"} == {"builtin", "ps"}, rows  # by size
assert {row[1] for row in rows if row[0] == "allgather"} == {"builtin"}, rows
print("done ", flush=True)
dist.destroy_process_group()
