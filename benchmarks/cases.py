"""What benchmarks/cpu.py measures: functions of torch, shapes of their arguments, and targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

EPS = 1e-6
HEADS = 4

F32, BF16 = torch.float32, torch.bfloat16


def add(a, b):
    return a + b


def chain(a, b, c):
    return F.gelu(a * b + c) * torch.sigmoid(a)


def swiglu(a, b):
    return F.silu(a) * b


def relu_sum(a, b):
    return torch.relu(a + b)


def leaky(x):
    return torch.where(x > 0, x, x * 0.1)


def exp(x):
    return torch.exp(x)


def log(x):
    return torch.log(x * x)


def tanh(x):
    return torch.tanh(x)


def erf(x):
    return torch.erf(x)


def sin(x):
    return torch.sin(x)


def power(x, y):
    return torch.pow(torch.abs(x), y)


def bias(x, b):
    return x + b


def add_transposed(a, b):
    return a + b.T


def transposed(x):
    return x.T.contiguous()


def softmax(x):
    return torch.softmax(x, -1)


def softmax_by_hand(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def log_softmax(x):
    return torch.log_softmax(x, -1)


def logsumexp(x):
    return torch.logsumexp(x, -1)


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_norm(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * w


def relu_of_norm(a, b):
    return torch.relu(F.layer_norm(a + b, (a.shape[-1],)))


def variance(x):
    return x.var(-1)


def argmax(x):
    return x.argmax(-1)


def cross_entropy(x, t):
    return F.cross_entropy(x, t)


def total(x):
    return x.sum()


def row_sums(x):
    return x.sum(-1)


def column_sums(x):
    return x.sum(0)


def cumsum(x):
    return x.cumsum(-1)


def mish(x):
    return x * torch.tanh(torch.log(1 + torch.exp(x)))


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def adamw(p, g, m, v):
    """The parameter after a step."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p * (1 - 1e-4) - 1e-2 * m / (torch.sqrt(v) + 1e-8)


def rotary(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat([-x[:, half:], x[:, :half]], -1)
    return x * cos + turned * sin


def normalized(x, mean, std):
    return ((x * 0.5 + 0.5) - mean) / std


def quantized(x, scale):
    """To int8 and back."""
    return torch.clamp(torch.round(x / scale), -128, 127) * scale


def huber(x, y):
    d = torch.abs(x - y)
    return torch.where(d < 1, 0.5 * d * d, d - 0.5).mean()


def logistic_loss(x, y):
    return (torch.relu(x) - x * y + torch.log1p(torch.exp(-torch.abs(x)))).mean()


def masked_scores(x, mask):
    return torch.softmax(torch.where(mask > -1, x * 0.125, -1e9), -1)


def softcapped_scores(x):
    return torch.softmax(30.0 * torch.tanh(x / 30.0), -1)


def add_rms_norm(x, y, w):
    z = x + y
    return z * torch.rsqrt((z * z).mean(-1, keepdim=True) + EPS) * w


def cosines(a, b):
    return (a * b).sum(-1) / torch.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def divergence(x, y):
    """Kullback and Leibler's, of each row."""
    p, q = torch.log_softmax(x, -1), torch.log_softmax(y, -1)
    return (torch.exp(p) * (p - q)).sum(-1)


def matmul(x, w):
    return x @ w


def dense(x, w, b):
    return F.gelu(x @ w + b)


def block(x, g1, b1, wqkv, wo, g2, b2, w1, w2):
    """A transformer's, with the norms first."""
    batch, tokens, width = x.shape
    y = F.layer_norm(x, (width,), g1, b1)
    q, k, v = (y @ wqkv).chunk(3, -1)
    heads = [t.reshape(batch, tokens, HEADS, width // HEADS).transpose(1, 2) for t in (q, k, v)]
    mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])
    x = x + mixed.transpose(1, 2).reshape(batch, tokens, width) @ wo
    y = F.layer_norm(x, (width,), g2, b2)
    return x + F.gelu(y @ w1) @ w2


@dataclass(frozen=True)
class Case:
    """A function and the shapes of its arguments.

    Attributes:
        fn: what is computed.
        shapes: of the arguments.
        size: names the case.
        dtype: of the arguments.
        targets: the ratio that is asked for, by peer.
    """

    fn: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    size: str
    dtype: torch.dtype = F32
    targets: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As the table shows it."""
        dtype = "" if self.dtype == torch.float32 else f" {self.dtype}".replace("torch.", "")
        return f"{self.fn.__name__} {self.size}{dtype}"

    def arguments(self) -> tuple[torch.Tensor, ...]:
        """Normal numbers; matrices are scaled by their height, and labels count."""
        generator = torch.Generator().manual_seed(0)
        drawn = [torch.randn(shape, generator=generator) for shape in self.shapes]
        if self.fn in (matmul, dense, block):
            drawn[1:] = [x / x.shape[0] ** 0.5 if x.ndim == 2 else x for x in drawn[1:]]
        if self.fn in (adamw, quantized, normalized):  # variances and scales
            drawn[-1] = drawn[-1].abs() + 0.1
        if self.fn is cross_entropy:
            rows, classes = self.shapes[0]
            drawn[1] = torch.arange(rows) * 7 % classes
        return tuple(x.to(self.dtype) if x.is_floating_point() else x for x in drawn)

    def magnitude(self) -> float:
        """What rounding errors of a sum are measured by; 0 for what is no sum."""
        if self.fn not in (total, row_sums, column_sums, cumsum):
            return 0.0
        (x,) = self.arguments()
        return self.fn(x.double().abs()).max().item()


def _elementwise() -> list[Case]:
    sizes = {"4K": (4096, 5, 6), "64K": (65536, 2, 2), "1M": (1 << 20, 1.9, 1.6)}
    sizes["16M"] = (1 << 24, 8, 3)
    cases = [Case(add, ((8, 8), (8, 8)), "8x8", targets={"eager": 1 / 1.6, "compile": 6})]
    cases += [
        Case(chain, ((n,),) * 3, name, targets={"eager": eager, "compile": compiled})
        for name, (n, eager, compiled) in sizes.items()
    ]
    million, odd = (1 << 20,), (1_000_003,)
    cases += [Case(chain, (odd,) * 3, "1000003"), Case(chain, (million,) * 3, "1M", BF16)]
    large = (4096, 1024)
    cases += [Case(swiglu, (large, large), "4096x1024", dtype) for dtype in (torch.float32, BF16)]
    cases += [Case(relu_sum, (million, million), "1M"), Case(leaky, (odd,), "1000003")]
    cases += [Case(fn, (million,), "1M") for fn in (exp, log, tanh, erf, sin)]
    cases += [Case(power, (million, million), "1M"), Case(tanh, (million,), "1M", BF16)]
    cases += [Case(bias, ((999, 1003), (1003,)), "999x1003")]
    cases += [Case(add_transposed, ((1000, 1003), (1003, 1000)), "1000x1003")]
    cases += [Case(transposed, ((2048, 2048),), "2048x2048")]
    return cases


def _rows() -> list[Case]:
    cases = []
    for rows, columns, at_least in ((4096, 1024, 1.15), (64, 32000, 1.2), (999, 1003, 1.0)):
        x, w, size = (rows, columns), (columns,), f"{rows}x{columns}"
        cases.append(Case(softmax, (x,), size, targets={"eager": at_least}))
        norm = {"eager": 1.5, "compile": 1.5}
        cases.append(Case(layer_norm, (x, w, w), size, targets=norm))
        cases.append(Case(rms_norm, (x, w), size, targets={**norm, "eager": 2.0}))
    x, size = (4096, 1024), "4096x1024"
    cases += [Case(fn, (x,), size) for fn in (softmax_by_hand, log_softmax, logsumexp)]
    cases += [Case(fn, (x,), size) for fn in (variance, argmax, cumsum)]
    cases += [Case(softmax, (x,), size, BF16), Case(rms_norm, (x, (1024,)), size, BF16)]
    cases += [Case(relu_of_norm, (x, x), size), Case(cross_entropy, (x, (4096,)), size)]
    return cases


def _custom() -> list[Case]:
    """What torch has no single function for."""
    million, x, odd = (1 << 20,), (4096, 1024), (999, 1003)
    cases = [Case(fn, (million,), "1M", dtype) for fn in (mish, gelu_tanh) for dtype in (F32, BF16)]
    cases += [Case(adamw, (million,) * 4, "1M"), Case(rotary, ((8192, 128),) * 3, "8192x128")]
    cases += [Case(normalized, ((32, 224, 224, 3), (3,), (3,)), "32x224x224x3")]
    cases += [Case(quantized, (odd, (999, 1)), "999x1003")]
    cases += [Case(fn, (odd, odd), "999x1003") for fn in (huber, logistic_loss)]
    cases += [Case(masked_scores, ((8, 512, 512), (512, 512)), "8x512x512")]
    cases += [Case(softcapped_scores, ((8, 512, 512),), "8x512x512")]
    cases += [Case(add_rms_norm, (x, x, (1024,)), "4096x1024", dtype) for dtype in (F32, BF16)]
    cases += [Case(fn, (x, x), "4096x1024") for fn in (cosines, divergence)]
    return cases


def _sums() -> list[Case]:
    cases = [
        Case(total, ((1 << 24,),), "16M", targets={"eager": 1.0}),
        Case(row_sums, ((4096, 4096),), "4096x4096", targets={"eager": 1.0}),
        Case(column_sums, ((4096, 4096),), "4096x4096"),
    ]
    return [*cases, Case(column_sums, ((999, 1003),), "999x1003")]


def _products() -> list[Case]:
    width, tokens = 256, (4, 128, 256)
    weights = ((width,), (width,), (width, 3 * width), (width, width))
    mlp = ((width,), (width,), (width, 4 * width), (4 * width, width))
    return [
        Case(dense, ((512, 512), (512, 512), (512,)), "512x512x512", targets={"eager": 1.5}),
        Case(dense, ((500, 300), (300, 701), (701,)), "500x300x701"),
        Case(matmul, ((1, 1024), (1024, 1024)), "1x1024x1024"),
        Case(block, (tokens, *weights, *mlp), "4x128x256", targets={"eager": 1.5, "compile": 1.1}),
    ]


CASES = (*_elementwise(), *_rows(), *_custom(), *_sums(), *_products())

PRODUCTS = tuple(
    Case(matmul, ((m, k), (k, n)), f"{m}x{k}x{n}", targets={"eager": 0.95})
    for m, k, n in (
        *((n, n, n) for n in (7, 16, 31, 32, 64, 96, 100, 127, 128, 200, 256, 333, 384, 512)),
        *((n, n, n) for n in (513, 640, 777, 1024)),
        *((1, 512, 512), (2, 512, 512), (8, 512, 512), (17, 300, 211), (64, 768, 768)),
        *((128, 768, 768), (128, 768, 3072), (128, 3072, 768), (256, 1024, 1024)),
        *((512, 512, 1), (512, 512, 8), (1000, 1000, 10), (1003, 97, 31), (2048, 64, 64)),
        *((64, 2048, 64), (64, 64, 2048), (33, 65, 129), (127, 255, 511), (500, 300, 200)),
        *((50, 60, 70), (20, 200, 30), (1000, 3, 1000)),
    )
)
"""Matrix products from small to large, odd sizes among them."""

_SMALL, _LARGE = (64, 512), (1024, 1024)

PAIRS = tuple(
    (Case(fn, shapes, size), Case(other, (shape,), size))
    for fn, shapes, other, shape, size in (
        (softmax, (_LARGE,), tanh, _LARGE, "1024x1024"),
        (softmax, (_SMALL,), tanh, _SMALL, "64x512"),
        (chain, ((65536,),) * 3, exp, (65536,), "64K"),
        (matmul, (_LARGE, _LARGE), softmax, _LARGE, "1024x1024"),
    )
)
"""Functions of ours, and of torch's that are called in turns with them."""
