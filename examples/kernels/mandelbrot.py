"""The Mandelbrot set: each pixel is a while loop of its own length.

The pixels are independent, so they run in parallel. Numbers that are no elements of a tensor are
Python's: floats of 64 bits, so the picture is the plain function's, pixel by pixel.
"""

import torch

import babytriton as bt


@bt.kernel
def mandelbrot(steps, limit):
    h, w = steps.shape
    for i, j in bt.grid(h, w):
        x0, y0 = -2.2 + 3.2 * j / w, -1.2 + 2.4 * i / h
        x = y = 0.0
        count = 0
        while count < limit and x * x + y * y <= 4.0:
            x, y = x * x - y * y + x0, 2.0 * x * y + y0
            count += 1
        steps[i, j] = count


def mandelbrot_in_torch(h: int, w: int, limit: int) -> torch.Tensor:
    i, j = torch.arange(h, dtype=torch.float64)[:, None], torch.arange(w, dtype=torch.float64)
    x0, y0 = (-2.2 + 3.2 * j / w).expand(h, w), (-1.2 + 2.4 * i / h).expand(h, w)
    x, y = torch.zeros(2, h, w, dtype=torch.float64)
    steps = torch.zeros(h, w, dtype=torch.int32)
    for _ in range(limit):
        inside = x * x + y * y <= 4.0
        steps += inside
        x, y = (
            torch.where(inside, x * x - y * y + x0, x),
            torch.where(inside, 2.0 * x * y + y0, y),
        )
    return steps


steps = torch.zeros(24, 64, dtype=torch.int32)
mandelbrot(steps, 50)
torch.testing.assert_close(steps, mandelbrot_in_torch(24, 64, 50))
for row in steps[::2]:
    print("".join(" .:-=+*#%@"[min(9, int(count) // 5)] for count in row))
