"""What sets numbers to 0 at random. torch draws them; where gradients are asked for, no more."""

from __future__ import annotations

import torch

from babytriton.ops.gradients import random
from babytriton.ops.pointwise import spelled
from babytriton.ops.refusals import RANDOM
from babytriton.ops.table import Op, stops

# Outside training torch hands the input back, and no row is asked.
ROWS: tuple[Op, ...] = (
    Op("dropout", spelled("dropout"), why=RANDOM, derive=random.dropout),
    Op("native_dropout", (torch.native_dropout,), why=RANDOM, derive=random.native_dropout),
    Op("alpha_dropout", spelled("alpha_dropout"), why=RANDOM, derive=random.alpha_dropout),
    Op("feature_dropout", spelled("feature_dropout"), why=RANDOM, derive=random.feature_dropout),
    Op(
        "feature_alpha_dropout",
        spelled("feature_alpha_dropout"),
        why=RANDOM,
        derive=random.feature_alpha_dropout,
    ),
    *(
        Op(name, spelled(name), why=RANDOM, derive=random.dropout_of_channels(batched))
        for name, batched in (("dropout1d", 3), ("dropout2d", 0), ("dropout3d", 5))
    ),
)

PARTS: tuple[Op, ...] = (Op("rrelu_slopes", (random.rrelu_slopes,), why=RANDOM, gradient=stops),)
