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

from babytriton.passes.cpu.formulas import exponentials, logarithms, remainders, trigonometry

FORMULAS: dict[str, Callable[..., ir.Expr]] = {
    formula.__name__: formula
    for formula in (
        *(exponentials.exp, exponentials.exp2, exponentials.expm1, exponentials.sigmoid),
        exponentials.rsqrt,
        *(exponentials.tanh, exponentials.sinh, exponentials.cosh),
        *(exponentials.erf, exponentials.erfc, exponentials.normcdf),
        *(logarithms.log, logarithms.log1p, logarithms.log2, logarithms.log10, logarithms.pow),
        *(logarithms.asinh, logarithms.acosh, logarithms.atanh),
        *(trigonometry.sin, trigonometry.cos, trigonometry.tan, trigonometry.hypot),
        *(trigonometry.asin, trigonometry.acos, trigonometry.atan, trigonometry.atan2),
        remainders.fmod,
    )
}
"""By the name of TVM's intrinsic, or of the C library's function without its last letter; the C
library lacks normcdf, which CUDA has."""

SMALL: dict[str, tuple[Callable[..., ir.Expr], Callable[..., ir.Expr]]] = {
    "sin": (trigonometry.small_sin, trigonometry.is_beyond),
    "cos": (trigonometry.small_cos, trigonometry.is_beyond),
    "tan": (trigonometry.small_tan, trigonometry.is_beyond),
    "fmod": (remainders.small_fmod, remainders.is_beyond),
}
"""Those that are shorter of small arguments, and whether arguments are too large for them; with
fused multiply-adds alone."""
