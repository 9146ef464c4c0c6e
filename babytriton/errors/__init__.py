"""The catalogue: every message a user can see, a class each.

``BT0xx`` are raised while compiling and point at a line; ``BT1xx`` are raised at the call's guard
or by an integration, and name an argument; ``BT2xx`` are about devices and tools; ``BT900`` is a
bug of this package.
Those of scalar kernels stand in :mod:`babytriton.errors.kernels`.
"""

# All of them, and nothing else, is what the catalogue is.
from babytriton.errors.calling import *  # noqa: F403
from babytriton.errors.compiling import *  # noqa: F403
from babytriton.errors.integrations import *  # noqa: F403
from babytriton.errors.tools import *  # noqa: F403
