"""The samples of every family of the operator table."""

import importlib
import pkgutil

from tests.conformance.sample import Sample

SAMPLES: tuple[Sample, ...] = tuple(
    sample
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name)
    for sample in importlib.import_module(f"{__name__}.{module.name}").SAMPLES
)
