"""Generalized advantage estimation: a loop backwards in time that is one kernel.

https://arxiv.org/abs/1506.02438, equation 16. Written in torch this is a dozen kernels a step. Each
environment needs nothing of the others, so that on a GPU a thread takes each of them through all
steps, with what one step leaves to the next in a register.
"""

import torch

import babytriton as bt


def advantages(rewards, values, dones, gamma: float, lam: float):
    """Advantages and returns of rewards and dones, (steps, n), and values, (steps + 1, n)."""
    found = torch.empty_like(rewards)
    last = torch.zeros_like(rewards[0])
    for t in reversed(range(rewards.shape[0])):
        alive = 1.0 - dones[t]
        delta = rewards[t] + gamma * values[t + 1] * alive - values[t]
        last = delta + gamma * lam * alive * last
        found[t] = last
    return found, found + values[:-1]


rewards, values = torch.randn(128, 1000), torch.randn(129, 1000)
dones = (torch.rand(128, 1000) < 0.02).float()
arguments = rewards, values, dones, 0.99, 0.95

torch.testing.assert_close(bt.jit("cpu")(advantages)(*arguments), advantages(*arguments))
print("128 steps of 1000 environments give what torch gives, and on a GPU they are:\n")

compiled = bt.jit("gpu")(advantages).lower(*arguments).compile()
print(compiled.source("cuda"))
for launch in compiled.launches:
    print(f"{launch.name}: grid {launch.grid}, block {launch.block}")
