"""float32 functions as arithmetic: loops over them vectorize, where a call of libm would not.

Each is a formula for one number without branches, calls or tables; LLVM's loop vectorizer makes
vector code of it for whatever instructions the processor has. Nothing here counts on fused
multiply-adds, but for what is for small arguments. Coefficients marked Cephes are those of
S. Moshier's Cephes Math Library 2.2, single precision. tests/unit/test_vector_math.py says how
exact each must be, and sweeps it.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir

from babytriton.passes.cpu.formulas import exponentials, logarithms, trigonometry
from babytriton.passes.cpu.formulas.trigonometry import GREATEST_SMALL

FORMULAS: dict[str, Callable[..., ir.Expr]] = {
    formula.__name__: formula
    for formula in (
        *(exponentials.exp, exponentials.exp2, exponentials.sigmoid, exponentials.rsqrt),
        *(exponentials.tanh, exponentials.sinh, exponentials.cosh, exponentials.erf),
        *(logarithms.log, logarithms.log1p, logarithms.log2, logarithms.log10, logarithms.pow),
        *(logarithms.asinh, logarithms.acosh, logarithms.atanh),
        *(trigonometry.sin, trigonometry.cos, trigonometry.tan, trigonometry.hypot),
        *(trigonometry.asin, trigonometry.acos, trigonometry.atan, trigonometry.atan2),
    )
}
"""By the name of TVM's intrinsic."""

SMALL: dict[str, tuple[Callable[..., ir.Expr], float]] = {
    "sin": (trigonometry.small_sin, GREATEST_SMALL),
    "cos": (trigonometry.small_cos, GREATEST_SMALL),
    "tan": (trigonometry.small_tan, GREATEST_SMALL),
}
"""Those that are shorter of small arguments, and up to which; with fused multiply-adds alone."""
