"""Scalar kernels: loops over elements, from the same Python, as TensorIR.

``generator`` visits the syntax and makes the statements of ``program``; ``independence`` says which
of their loops may run in any order; ``blocks`` makes blocks of them, ``tensorir`` the functions.
"""
