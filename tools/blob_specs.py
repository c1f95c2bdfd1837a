"""Options of the commands that tell a blob's shape and type: ``data=32x3x224x224``, ``label=32:int32``."""

from __future__ import annotations

import argparse

import numpy as np

from netbuilder.ops.operator import TensorSpec

__all__ = ["blob_spec"]

_TYPES = ("float32", "float64", "float16", "int32", "int64", "uint8", "bool")


def blob_spec(text: str) -> tuple[str, TensorSpec]:
    """Return a blob's name and what is said of it, for ``type=`` of an option.

    Raises:
        argparse.ArgumentTypeError: the text is not of this form.

    >>> name, spec = blob_spec("label=32:int32")
    >>> name, spec.shape, str(spec.dtype)
    ('label', (32,), 'int32')
    """
    name, _, rest = text.partition("=")
    shape, _, kind = rest.partition(":")
    extents = shape.split("x") if shape else []
    if (
        not name
        or "=" not in text
        or not all(extent.isdigit() for extent in extents)
        or (kind or "int32") not in _TYPES
    ):
        raise argparse.ArgumentTypeError(
            f"must be BLOB=SHAPE, such as data=32x3x224x224, or BLOB=SHAPE:TYPE with a type of {', '.join(_TYPES)}; "
            f"got {text!r}"
        )
    return name, TensorSpec(tuple(map(int, extents)), np.dtype(kind or "float32"))
