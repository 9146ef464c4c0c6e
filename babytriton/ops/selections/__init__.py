"""What a mask selects, ``x[mask]``, as the whole tensor and the mask: its size is data.

Elementwise functions compute what is not selected as well, reductions leave it out, and what is
assigned to ``y[mask]`` is chosen from. So all of it fuses, and no size depends on numbers.
"""
