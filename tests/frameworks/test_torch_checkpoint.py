"""rabit_torch.Checkpoint: a job that is resumed has the bits of one that was not."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

TRAIN = """
import hashlib, random
import numpy as np

def train(folder, steps, *, strategy=None, overlap=None, momentum=0.9):
    for each in (torch.manual_seed, np.random.seed, random.seed):
        each(rabit.rank())
    model = torch.nn.Sequential(
        torch.nn.Linear(9, 40), torch.nn.BatchNorm1d(40), torch.nn.Dropout(0.2),
        torch.nn.Linear(40, 3))
    rabit.broadcast_parameters(dict(model.named_parameters()), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    optimizer = rabit.DistributedOptimizer(
        optimizer, model.named_parameters(), strategy=strategy, overlap=overlap)
    checkpoint = rabit.Checkpoint(
        folder, model=model, optimizer=optimizer, scheduler=scheduler, every=2)
    found = checkpoint.restore()
    first = 0 if found is None else found.step
    for step in range(first + 1, steps + 1):
        x = torch.randn(16, 9) + random.random() + np.random.random()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        scheduler.step()
        if checkpoint.is_due(step):
            checkpoint.save({"note": [step, (1, 2)]}, step=step, local={"rank": rabit.rank()})
    checkpoint.close()
    optimizer.flush()
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    told = [None, None] if found is None else [repr(found.state), repr(found.local)]
    return [first, digest.hexdigest(), scheduler.get_last_lr(), *told]

folder = os.environ["TEST_FOLDER"]
"""
OPTIONS = {
    "plain": {},
    "next-forward": {"overlap": "next-forward"},
    "powersgd": {"strategy": "powersgd:rank=1", "momentum": 0.0},
    "diloco": {"strategy": "diloco:every=3"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_resumed_job_has_the_bits_of_one_that_was_not(on_ranks, tmp_path, name):
    """Parameters, buffers of each rank, momentum, schedule, dropout and three kinds of random numbers."""
    found = on_ranks(
        2,
        TRAIN
        + f"options = {OPTIONS[name]!r}\n"
        + "whole = train(folder + '/whole', 7, **options)\n"
        + "train(folder + '/cut', 5, **options)\n"
        + "report([whole, train(folder + '/cut', 7, **options)])",
        TEST_FOLDER=str(tmp_path),
    )

    digests = set()
    for rank, (whole, resumed) in enumerate(found):
        assert resumed == [4, whole[1], whole[2], "{'note': [4, (1, 2)]}", f"{{'rank': {rank}}}"]
        digests.add(whole[1])
    assert len(digests) == 2, "running means differ between ranks, or the test sees less"


def test_more_ranks_go_on(on_ranks, tmp_path):
    save = "report(train(folder, {steps}, strategy='powersgd:rank=1', momentum=0.0))"
    on_ranks(2, TRAIN + save.format(steps=4), TEST_FOLDER=str(tmp_path))

    resumed = on_ranks(3, TRAIN + save.format(steps=6), TEST_FOLDER=str(tmp_path))

    assert [each[0] for each in resumed] == [4] * 3
    assert [each[4] for each in resumed] == ["{'rank': 0}", "{'rank': 1}", "None"]


def test_tensors_of_every_type_come_back(on_ranks, tmp_path):
    script = """
    types = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16,
             torch.float64, torch.complex64, torch.float8_e4m3fn]
    chance = torch.Generator().manual_seed(1)
    state = {str(each): torch.randint(0, 2, (3, 4), generator=chance).to(each) for each in types}
    state |= {"cut": torch.arange(12.0).reshape(3, 4).T[1:], "scalar": torch.tensor(2.5),
              "empty": torch.empty(0, 3, dtype=torch.bfloat16)}
    with rabit.Checkpoint(os.environ["TEST_FOLDER"]) as checkpoint:
        checkpoint.save(state, step=1)
        found = checkpoint.restore().state
    assert list(found) == list(state)
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        same = found[name].contiguous().view(-1).view(torch.uint8)
        assert same.tolist() == tensor.contiguous().view(-1).view(torch.uint8).tolist(), name
    try:
        checkpoint.save({"a": [torch.eye(3).to_sparse()]}, step=2)
    except rabit.Unsupported as error:
        report(str(error))
    """

    for text in on_ranks(2, script, TEST_FOLDER=str(tmp_path)):
        assert "layout torch.sparse_coo at 'state/a/0'" in text


def test_a_tensor_without_memory_is_refused_by_name():
    import torch

    import rabit
    from rabit_torch.checkpoint import TorchAdapter

    with pytest.raises(rabit.Unsupported, match="device meta at 'a/b'"):
        TorchAdapter().leaf(torch.empty(2, device="meta"), "a/b")


def test_conjugate_and_negated_views_are_saved_as_what_they_are():
    import torch

    from rabit_torch.checkpoint import TorchAdapter

    for tensor in (torch.tensor([1 + 2j]).conj(), torch._neg_view(torch.ones(2))):
        found = TorchAdapter().leaf(tensor, "v").read(0, tensor.numel())

        assert found.tobytes() == tensor.resolve_conj().resolve_neg().numpy().tobytes()
