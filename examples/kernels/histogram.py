"""A histogram: which element is written depends on the data.

Two iterations may add to the same bin, so the loop stays in order, in one thread. With
``bounds_check=True`` a value outside of the bins is an IndexError that shows the line.
"""

import torch

import babytriton as bt


@bt.kernel(bounds_check=True)
def histogram(values, counts):
    for i in range(len(values)):
        counts[values[i]] += 1


values = torch.randint(0, 10, (10_000,))
counts = torch.zeros(10, dtype=torch.int64)
histogram(values, counts)
torch.testing.assert_close(counts, torch.bincount(values, minlength=10))
print("counts:", counts.tolist())

values[123] = 10
try:
    histogram(values, counts)
except IndexError as error:
    print(error)
