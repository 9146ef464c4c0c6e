"""Reverse mode: what a program computed, and the gradients of it, back to front.

Bindings of Relax are noted on a tape as rows emit them; a row's gradient is plain torch, whose own
rows are noted in turn where a gradient is to have a gradient.
"""
