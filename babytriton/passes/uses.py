"""What a function of a program does with its variables."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tvm import relax

from babytriton.passes.bindings import read_by


@dataclass
class Uses:
    """What a function does with its variables.

    Attributes:
        values: what each is bound to.
        reads: how many bindings read it, besides those that take a part of it.
        parts: which parts of it are taken.
    """

    values: dict[relax.Var, relax.Expr] = field(default_factory=dict)
    reads: Counter[relax.Var] = field(default_factory=Counter)
    parts: dict[relax.Var, set[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, func: relax.Function) -> Uses:
        found = cls()
        found._body(func.body)
        return found

    def _body(self, body: relax.Expr) -> None:
        for block in body.blocks if isinstance(body, relax.SeqExpr) else ():
            for binding in block.bindings:
                value = getattr(binding, "value", None)
                self.values[binding.var] = value
                if isinstance(value, relax.TupleGetItem):
                    self.parts.setdefault(value.tuple_value, set()).add(int(value.index))
                elif isinstance(value, relax.If):
                    self.reads.update(relax.analysis.free_vars(value.cond))
                    self._body(value.true_branch)
                    self._body(value.false_branch)
                else:
                    self.reads.update(read_by(binding))
        last = body.body if isinstance(body, relax.SeqExpr) else body
        self.reads.update(relax.analysis.free_vars(last))
