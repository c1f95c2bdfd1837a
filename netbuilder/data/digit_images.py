"""The handwritten digits that come with netbuilder (see DIGITS.md for their source)."""

from __future__ import annotations

import gzip
import hashlib
from importlib import resources
from typing import Any

import numpy as np

from netbuilder.proto import ParseError

__all__ = ["digits"]

_FILE = "digits.csv.gz"
_SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
_COUNT, _EDGE, _BRIGHTEST = 1797, 8, 16.0

Array = np.ndarray[Any, np.dtype[Any]]


def digits() -> tuple[Array, Array]:
    """Return the UCI set of scanned digits: images and labels, in the order of the file.

    Returns:
        Images, float32 of shape (1797, 1, 8, 8) from 0 (paper) to 1 (ink), and labels, int32 of shape (1797,) from
        0 to 9. Each digit occurs about equally often; samples of the 13 writers follow one another.

    Raises:
        ParseError: the file of the installation is damaged.

    Source: Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI Machine Learning Repository, 1998.

    >>> images, labels = digits()
    >>> images.shape, labels[:10].tolist()
    ((1797, 1, 8, 8), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    return _decode((resources.files(__package__) / _FILE).read_bytes())


def _decode(packed: bytes) -> tuple[Array, Array]:
    if hashlib.sha256(packed).hexdigest() != _SHA256:
        raise ParseError(f"{_FILE}: the file ({len(packed)} bytes) is damaged; install netbuilder again")
    text = gzip.decompress(packed).decode()
    rows = np.array(text.replace("\n", ",").rstrip(",").split(","), np.float32).reshape(_COUNT, _EDGE * _EDGE + 1)
    images = rows[:, :-1].reshape(_COUNT, 1, _EDGE, _EDGE) / np.float32(_BRIGHTEST)
    return images, rows[:, -1].astype(np.int32)
