"""The matrices of Winograd's minimal filtering, in one and two dimensions, and descriptions for its products.

The points are 0, 3/4, -3/4, 3/2, -3/2 and infinity: with them, errors in float32 are a few 1e-6 of the largest result
(with 0, 1, -1, 2, -2 and infinity, they are four times as large).

Source of how to choose points: B. Barabasz et al., Error Analysis and Improving the Accuracy of Winograd Convolution
for Deep Neural Networks, 2018.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import Constant
from netbuilder.engines.onednn.blocked_layout import Desc, View, plain_in, row_major

__all__ = ["AT", "FLOAT", "POINTS", "TILE", "WINDOW", "constant", "matrices", "ones", "plain", "strided"]

TILE, WINDOW, POINTS = 4, 3, 6
AT = POINTS * POINTS  # points of a tile, so products per tile and channel
FLOAT = 4  # bytes
_FINITE = (0.0, 0.75, -0.75, 1.5, -1.5)


@functools.cache
def matrices() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return B', G and A' of one dimension: results are A' (G g * B' d) for a filter g of 3 and data d of 6."""
    evaluate = [_evaluation(extent) for extent in (POINTS, WINDOW, TILE)]
    whole, window, tile = evaluate
    return np.linalg.inv(whole).T, window, tile.T


def _evaluation(extent: int) -> np.ndarray[Any, Any]:
    """Return the matrix from coefficients to values at the points; at infinity, the value is the last coefficient."""
    finite = np.vander(np.array(_FINITE), extent, increasing=True)
    return np.vstack([finite, np.eye(extent)[-1:]])


@functools.cache
def constant(which: str) -> Constant:
    """Return the memory of a matrix for two dimensions, in the orientation that the products read."""
    b, g, a = matrices()
    flipped = g[:, ::-1]
    found = {
        "data": np.kron(b, b), "window": np.kron(g, g), "flipped": np.kron(flipped, flipped), "results": np.kron(a, a),
        "results gradient": np.kron(a, a).T, "window gradient": np.kron(g, g).T,
    }[which]  # fmt: skip
    return Constant(found.astype(np.float32))


@functools.cache
def ones(n: int) -> Constant:
    """Return the memory of so many ones."""
    return Constant(np.ones(n, np.float32))


def plain(*dims: int) -> Desc:
    """Describe float32 values in plain order."""
    return plain_in(row_major(dims), c.F32)


def strided(dims: Sequence[int], strides: Sequence[int]) -> Desc:
    """Describe float32 values with given strides, in elements."""
    return plain_in(View(tuple(dims), tuple(strides)), c.F32)
