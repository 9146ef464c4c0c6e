"""A 5-point stencil: one step of the heat equation on the inside of a plate.

No iteration writes what another one reads, so the two loops become the threads of a GPU, or a
parallel and vectorized loop on the CPU. The edge is not written, and keeps what it holds.
"""

import torch
import torch.nn.functional as F

import babytriton as bt


@bt.kernel
def heat(old, new, rate):
    n, m = old.shape
    for i in range(1, n - 1):
        for j in range(1, m - 1):
            around = old[i - 1, j] + old[i + 1, j] + old[i, j - 1] + old[i, j + 1]
            new[i, j] = old[i, j] + rate * (around - 4 * old[i, j])


def heat_in_torch(old: torch.Tensor, rate: float) -> torch.Tensor:
    weights = torch.tensor([[0, 1, 0], [1, -4, 1], [0, 1, 0]], dtype=old.dtype, device=old.device)
    new = old.clone()
    new[1:-1, 1:-1] += rate * F.conv2d(old[None, None], weights[None, None])[0, 0]
    return new


device = "cuda" if torch.cuda.is_available() else "cpu"
plate = torch.zeros(200, 300, device=device)
plate[0] = 100.0
expected = plate
other = plate.clone()
for _ in range(20):
    heat(plate, other, 0.2)
    plate, other = other, plate
    expected = heat_in_torch(expected, 0.2)
torch.testing.assert_close(plate, expected, rtol=1e-4, atol=1e-4)
print(f"20 steps on the {device}: row 5 is at {plate[5].mean():.3f} degrees, as torch says")

specs = bt.Tensor(shape=(200, 300)), bt.Tensor(shape=(200, 300)), 0.2
source = bt.kernel("gpu")(heat).lower(*specs).compile().source()
print(source[source.rindex('extern "C"') :].strip())
