"""Gradients of rows: plain torch functions, a module a family of the operator table.

``rule(grad, result, *args)`` gives the gradients of a call's leading arguments; what it need not
care for stands at :class:`babytriton.ops.table.Op`. Formulas are those of torch's own
``derivatives.yaml`` unless a rule says otherwise.
"""
