"""The example of JAX shows what it says; so does the document."""

import re

from tests.examples import test_examples as examples


def test_example() -> None:
    shown = examples.run(examples.EXAMPLES / "jax_interop.py")
    shown.shows("a * b * (a + b), largest", "RMSNorm, largest", "custom_call @babytriton")
    found = [float(text) for text in re.findall(r"\d\.\de[+-]\d\d", shown.text)]
    assert len(found) == 6
    assert max(found) < 1e-4
    assert shown.text.count("custom_call @babytriton") == 2


def test_document() -> None:
    examples.test_document_prints_what_it_shows(examples.ROOT / "docs" / "jax.md")
