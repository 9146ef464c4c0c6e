"""The selective scan of a state space model: a loop over a sequence that is one kernel.

https://arxiv.org/abs/2312.00752, algorithm 2 and equation 2, for one sequence. The state, of n
numbers for each channel, is in registers, and what becomes of it is added up there; nothing of
(steps, channels, n) is ever stored.
"""

import torch
import torch.nn.functional as F

import babytriton as bt


def selective_scan(x, dt, a, b, c, d):
    """(steps, channels) of x and dt alike, a of (channels, n), b and c of (steps, n), and d."""
    h = torch.zeros_like(a)
    ys = torch.empty_like(x)
    for t in range(x.shape[0]):
        step = F.softplus(dt[t])
        h = torch.exp(step[:, None] * a) * h + (step * x[t])[:, None] * b[t]
        ys[t] = (h * c[t]).sum(-1) + d * x[t]
    return ys


steps, channels, n = 256, 512, 16
x, dt = torch.randn(steps, channels), torch.randn(steps, channels)
a, d = -torch.rand(channels, n) - 0.5, torch.ones(channels)
b, c = torch.randn(steps, n), torch.randn(steps, n)

found = bt.jit("cpu")(selective_scan)(x, dt, a, b, c, d)
torch.testing.assert_close(found, selective_scan(x, dt, a, b, c, d), rtol=1e-4, atol=1e-4)
print(f"{steps} steps of {channels} channels give what torch gives, and on a GPU they are:\n")

compiled = bt.jit("gpu")(selective_scan).lower(x, dt, a, b, c, d).compile()
print(compiled.source("cuda"))
for launch in compiled.launches:
    print(f"{launch.name}: grid {launch.grid}, block {launch.block}")
