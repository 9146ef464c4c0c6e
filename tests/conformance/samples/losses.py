"""Samples of ops/losses.py."""

import torch.nn.functional as F

from tests.conformance.sample import Sample, t

X, Y, W = t(7, 33), t(7, 33), t(7, 33, low=0.5, high=2.0)
PROBABILITY = t(7, 33, low=0.0, high=1.0)
SIGN = t(7, low=1.0, high=1.0)

SAMPLES = (
    Sample("mse_loss", lambda x, y: F.mse_loss(x, y), (X, Y)),
    Sample(
        "mse_loss", lambda x, y: F.mse_loss(x, y, reduction="none"), (X, t(7, 33, special=True))
    ),
    Sample("mse_loss", lambda x, y, w: F.mse_loss(x, y, weight=w), (X, Y, W)),
    Sample("mse_loss", lambda x, y: F.mse_loss(x, y, size_average=False), (X, Y)),
    Sample("l1_loss", lambda x, y: F.l1_loss(x, y), (X, Y)),
    Sample("l1_loss", lambda x, y, w: F.l1_loss(x, y, reduction="sum", weight=w), (X, Y, W)),
    Sample("smooth_l1_loss", lambda x, y: F.smooth_l1_loss(x, y), (X, Y)),
    Sample(
        "smooth_l1_loss", lambda x, y: F.smooth_l1_loss(x, y, beta=0.5, reduction="none"), (X, Y)
    ),
    Sample("smooth_l1_loss", lambda x, y: F.smooth_l1_loss(x, y, beta=0.0), (X, Y)),
    Sample("huber_loss", lambda x, y: F.huber_loss(x, y, delta=0.7), (X, Y)),
    Sample("huber_loss", lambda x, y, w: F.huber_loss(x, y, "sum", 2.0, w), (X, Y, W)),
    Sample(
        "binary_cross_entropy",
        lambda x, y: F.binary_cross_entropy(x, y),
        (PROBABILITY, PROBABILITY),
    ),
    Sample(
        "binary_cross_entropy",
        lambda x, y, w: F.binary_cross_entropy(x.round(), y.round(), w, reduction="none"),
        (PROBABILITY, PROBABILITY, t(33)),
    ),
    Sample(
        "binary_cross_entropy_with_logits",
        lambda x, y: F.binary_cross_entropy_with_logits(x, y),
        (t(7, 33, low=-99.0, high=99.0), PROBABILITY),
    ),
    Sample(
        "binary_cross_entropy_with_logits",
        lambda x, y, w, p: F.binary_cross_entropy_with_logits(
            x, y, w, reduction="none", pos_weight=p
        ),
        (X, PROBABILITY, W, t(33, low=0.5)),
    ),
    # torch has no gradients of these weights.
    Sample(
        "binary_cross_entropy",
        lambda x, y, w: F.binary_cross_entropy(x, y, w.detach()),
        (PROBABILITY, PROBABILITY, W),
    ),
    Sample(
        "binary_cross_entropy",
        lambda x, y: F.binary_cross_entropy(x, y, reduction="sum"),
        (PROBABILITY, PROBABILITY),
    ),
    Sample(
        "binary_cross_entropy_with_logits",
        lambda x, y, w, p: F.binary_cross_entropy_with_logits(
            x, y, w.detach(), pos_weight=p.detach()
        ),
        (X, PROBABILITY, W, t(33, low=0.5)),
    ),
    Sample(
        "binary_cross_entropy_with_logits",
        lambda x, y, p: F.binary_cross_entropy_with_logits(
            x, y, reduction="none", pos_weight=p.detach()
        ),
        (X, PROBABILITY, t(33, low=0.5)),
    ),
    # Here the two are equal.
    Sample("smooth_l1_loss", lambda x: F.smooth_l1_loss(x, x.detach().clone()), (X,)),
    Sample("huber_loss", lambda x: F.huber_loss(x, x.detach().clone(), delta=0.5), (X,)),
    Sample(
        "gaussian_nll_loss",
        lambda x, y, v: F.gaussian_nll_loss(x, y, v, eps=1.0, reduction="sum"),
        (X, Y, W),
    ),
    Sample("soft_margin_loss", lambda x, y: F.soft_margin_loss(x, y.detach().sign()), (X, Y)),
    Sample("kl_div", lambda x, y: F.kl_div(x, y, reduction="batchmean"), (X, PROBABILITY)),
    Sample("kl_div", lambda x, y: F.kl_div(x, y.round(), reduction="none"), (X, PROBABILITY)),
    Sample("kl_div", lambda x, y: F.kl_div(x, y, reduction="sum", log_target=True), (X, Y)),
    Sample("poisson_nll_loss", lambda x, y: F.poisson_nll_loss(x, y), (X, PROBABILITY)),
    Sample(
        "poisson_nll_loss",
        lambda x, y: F.poisson_nll_loss(x, y, log_input=False, full=True, reduction="none"),
        (PROBABILITY, t(7, 33, low=0.0, high=9.0)),
    ),
    Sample("gaussian_nll_loss", lambda x, y: F.gaussian_nll_loss(x, y, 0.5), (X, Y)),
    Sample(
        "gaussian_nll_loss",
        lambda x, y: F.gaussian_nll_loss(x, y, 1e-9, full=True, reduction="none"),
        (X, Y),
    ),
    Sample("gaussian_nll_loss", lambda x, y, v: F.gaussian_nll_loss(x, y, v), (X, Y, W)),
    Sample("gaussian_nll_loss", lambda x, y, v: F.gaussian_nll_loss(x, y, v[:, 0]), (X, Y, W)),
    Sample("hinge_embedding_loss", lambda x, y: F.hinge_embedding_loss(x, y.sign()), (X, Y)),
    Sample(
        "hinge_embedding_loss",
        lambda x, y: F.hinge_embedding_loss(x, y.sign(), margin=2.0, reduction="none"),
        (X, Y),
    ),
    Sample(
        "margin_ranking_loss",
        lambda x, y, z: F.margin_ranking_loss(x, y, z.sign(), margin=0.5),
        (X, Y, t(7, 1)),
    ),
    Sample("soft_margin_loss", lambda x, y: F.soft_margin_loss(x, y.sign()), (X, Y)),
    Sample("soft_margin_loss", lambda x, y: F.soft_margin_loss(x, y, reduction="none"), (X, Y)),
    Sample("cosine_embedding_loss", lambda x, y, z: F.cosine_embedding_loss(x, y, z), (X, Y, SIGN)),
    Sample(
        "cosine_embedding_loss",
        lambda x, y, z: F.cosine_embedding_loss(x, y, -z, margin=0.1, reduction="none"),
        (X, Y, SIGN),
    ),
    Sample("triplet_margin_loss", lambda x, y, z: F.triplet_margin_loss(x, y, z), (X, Y, W)),
    Sample(
        "triplet_margin_loss",
        lambda x, y, z: F.triplet_margin_loss(x, y, z, p=1, swap=True, reduction="none"),
        (X, Y, W),
    ),
)
