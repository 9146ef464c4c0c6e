"""Samples of ops/activations.py."""

import torch
import torch.nn.functional as F

from tests.conformance.sample import FLOATS, NUMBERS, Sample, t

X = t(5, 1003, low=-9, high=9, special=True)

SAMPLES = (
    Sample("relu", lambda x: torch.relu(x), (X,), NUMBERS),
    Sample("relu", lambda x: F.relu(x + 1) * 2, (t(1003),), NUMBERS),
    # At the kinks.
    Sample("relu", lambda x: F.relu(x.round() + (x - x.detach())), (X,)),
    Sample("relu6", lambda x: F.relu6(x.round() + (x - x.detach())), (X,)),
    Sample("leaky_relu", lambda x: F.leaky_relu(x.round() + (x - x.detach())), (X,)),
    Sample("elu", lambda x: F.elu(x.round() + (x - x.detach())), (X,)),
    Sample("hardtanh", lambda x: F.hardtanh(x.round() + (x - x.detach())), (X,)),
    Sample("hardswish", lambda x: F.hardswish(x.round() + (x - x.detach())), (X,)),
    Sample("softplus", lambda x: F.softplus(x.round() + (x - x.detach()), 1, 2), (X,)),
    Sample("hardshrink", lambda x: F.hardshrink(x.round() + (x - x.detach()), 1), (X,)),
    Sample("softshrink", lambda x: F.softshrink(x.round() + (x - x.detach()), 1), (X,)),
    Sample("threshold", lambda x: F.threshold(x.round() + (x - x.detach()), 1, 20), (X,)),
    Sample("elu", lambda x: F.elu(x), (t(7, low=-1e3, high=1e3),)),
    Sample("relu6", lambda x: F.relu6(x), (X,), NUMBERS),
    Sample("leaky_relu", lambda x: F.leaky_relu(x), (X,)),
    Sample("leaky_relu", lambda x: F.leaky_relu(x, negative_slope=0.3), (t(7),)),
    Sample("elu", lambda x: F.elu(x), (X,)),
    Sample("elu", lambda x: F.elu(x, 0.7), (t(7),)),
    Sample("selu", lambda x: torch.selu(x), (X,)),
    Sample("celu", lambda x: F.celu(x, alpha=1.5), (X,)),
    Sample("gelu", lambda x: F.gelu(x), (X,)),
    Sample("gelu", lambda x: F.gelu(x, approximate="tanh"), (X,)),
    Sample("silu", lambda x: F.silu(x), (X,)),
    Sample("mish", lambda x: F.mish(x), (X,)),
    Sample("softplus", lambda x: F.softplus(x), (X,)),
    Sample("softplus", lambda x: F.softplus(x, beta=2, threshold=3), (t(1003),)),
    Sample("logsigmoid", lambda x: F.logsigmoid(x), (X,)),
    Sample("hardtanh", lambda x: F.hardtanh(x), (X,)),
    Sample("hardtanh", lambda x: F.hardtanh(x, -0.5, max_val=2.0), (t(7),)),
    Sample("hardsigmoid", lambda x: F.hardsigmoid(x), (X,)),
    Sample("hardswish", lambda x: F.hardswish(x), (X,)),
    Sample("softsign", lambda x: F.softsign(x), (X,)),
    Sample("tanhshrink", lambda x: F.tanhshrink(x), (X,)),
    Sample("hardshrink", lambda x: F.hardshrink(x, 1.5), (X,)),
    Sample("softshrink", lambda x: F.softshrink(x), (X,)),
    Sample("softshrink", lambda x: F.softshrink(x, 1.5), (t(7),)),
    Sample("threshold", lambda x: F.threshold(x, 1, 20), (X,), NUMBERS),
    Sample("rrelu", lambda x: F.rrelu(x), (X,)),
    Sample("rrelu", lambda x: F.rrelu(x, 0.3, 0.3, training=True), (t(7),), FLOATS[:2]),
    Sample("prelu", lambda x, w: F.prelu(x, w), (t(3, 5, 7, special=True), t(5))),
    Sample("prelu", lambda x, w: torch.prelu(x, w), (t(33, special=True), t(1))),
    Sample("prelu", lambda x, w: F.prelu(x, w), (t(3, 5, 7), t(1))),
    Sample("prelu", lambda x, w: F.prelu(x, w), (t(), t(1))),
    Sample("prelu", lambda x, w: F.prelu(x, w), (t(3, 5), t(5))),
    Sample("glu", lambda x: F.glu(x), (t(5, 1000, special=True),)),
    Sample("glu", lambda x: F.glu(x, dim=1), (t(3, 6, 7),)),
    Sample("dropout", lambda x: F.dropout(x, training=False) * 2, (t(7),), FLOATS),
    # Random, but not whether all or nothing is dropped.
    Sample("dropout", lambda x: F.dropout(x, p=1.0), (t(7),)),
    Sample("native_dropout", lambda x: torch.native_dropout(x, 0.0, True)[0] * 2, (t(7),)),
    Sample("alpha_dropout", lambda x: F.alpha_dropout(x, p=0.0, training=True), (t(7),)),
    Sample("feature_dropout", lambda x: torch.feature_dropout(x, 1.0, True), (t(3, 2, 7),)),
    Sample("feature_alpha_dropout", lambda x: F.feature_alpha_dropout(x, 0.0, True), (t(3, 2),)),
    Sample("dropout1d", lambda x: F.dropout1d(x, p=1.0), (t(2, 3, 7),)),
    Sample("dropout2d", lambda x: F.dropout2d(x, p=1.0), (t(2, 3, 7, 1),)),
    Sample("dropout3d", lambda x: F.dropout3d(x, p=1.0), (t(2, 3, 7, 1, 1),)),
)
