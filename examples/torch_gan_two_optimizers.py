"""Trains a small GAN with two distributed optimizers, which need no special care.

    rabitrun -np 2 python examples/torch_gan_two_optimizers.py

The generator learns to put points on a circle; every rank draws its own points.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn

import rabit_torch as rabit


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600, help="steps of both networks (600)")
    parser.add_argument(
        "--batch-size", type=int, default=128, help="points per step and rank (128)"
    )
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of Adam (0.001)")
    return parser.parse_args()


def perceptron(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, 64),
        nn.LeakyReLU(0.2),
        nn.Linear(64, 64),
        nn.LeakyReLU(0.2),
        nn.Linear(64, outputs),
    )


def circle(count: int) -> torch.Tensor:
    angles = torch.rand(count) * 2 * math.pi
    return torch.stack([angles.cos(), angles.sin()], dim=1) + 0.02 * torch.randn(count, 2)


def distributed(network: nn.Module, lr: float) -> torch.optim.Optimizer:
    rabit.broadcast_parameters(network.state_dict(), root_rank=0)
    adam = torch.optim.Adam(network.parameters(), lr=lr, betas=(0.5, 0.999))
    optimizer: torch.optim.Optimizer = rabit.DistributedOptimizer(
        adam, named_parameters=network.named_parameters()
    )
    return optimizer


def main() -> None:
    args = arguments()
    rabit.init()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    generator, critic = perceptron(8, 2), perceptron(2, 1)
    of_generator, of_critic = distributed(generator, args.lr), distributed(critic, args.lr)
    torch.manual_seed(100 + rabit.rank())
    loss = nn.functional.binary_cross_entropy_with_logits
    real, fake = torch.ones(args.batch_size, 1), torch.zeros(args.batch_size, 1)

    for step in range(1, args.steps + 1):
        made = generator(torch.randn(args.batch_size, 8))
        of_critic.zero_grad()
        critic_loss = loss(critic(circle(args.batch_size)), real) + loss(
            critic(made.detach()), fake
        )
        critic_loss.backward()
        of_critic.step()

        # The critic stands still in this pass, so that none of its gradients is computed or sent.
        for parameter in critic.parameters():
            parameter.requires_grad_(False)
        of_generator.zero_grad()
        loss(critic(made), real).backward()
        of_generator.step()
        for parameter in critic.parameters():
            parameter.requires_grad_(True)

        if step % max(1, args.steps // 4) == 0:
            with torch.no_grad():
                radius = generator(torch.randn(1000, 8)).norm(dim=1)
            mean = rabit.allreduce(radius.mean(), name="radius").item()
            if rabit.rank() == 0:
                print(f"step {step}: mean radius {mean:.3f} (1 is right)", flush=True)
    rabit.shutdown()


if __name__ == "__main__":
    main()
