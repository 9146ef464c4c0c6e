"""transformers' models with compiled functions in the place of their norms, MLPs and more.

``optimize`` puts them in, ``restore`` takes them out; ``register_kernels`` offers them to the
package ``kernels``.
"""

from babytriton.integrations.transformers.kernels import register_kernels
from babytriton.integrations.transformers.models import FAMILIES, optimize, restore
from babytriton.integrations.transformers.report import Entry, Report

__all__ = ["FAMILIES", "Entry", "Report", "optimize", "register_kernels", "restore"]
