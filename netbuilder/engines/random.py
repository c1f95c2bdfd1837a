"""Counter-based random numbers: the same bits for the same key, on NumPy and CuPy, in any order.

Element ``k`` of a stream is a hash of (key, k), so any part of a stream can be drawn independently: a replica with
samples 8 to 15 of a batch draws the numbers that a single device would draw for them.

Source: the finalizer of SplitMix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

__all__ = ["Draw", "filled", "first_counter", "normal", "stream_key", "uniform"]

Draw = Callable[..., Any]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def stream_key(*parts: object) -> int:
    """Return a 64-bit key for a stream, from values with a stable ``str`` (seed, operator, iteration)."""
    digest = hashlib.blake2b("\x1f".join(str(p) for p in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def first_counter(key: int, start: int) -> int:
    """Return the counter whose hash is element ``start`` of a stream; that of the next one is greater by _GOLDEN."""
    return (key + (start + 1) * _GOLDEN) & _MASK


def _bits(xp: Any, key: int, start: int, count: int) -> Any:
    first = np.uint64(first_counter(key, start))
    z = xp.arange(count, dtype=xp.uint64)
    z *= xp.uint64(_GOLDEN)  # wraps modulo 2**64, as intended
    z += xp.asarray(first)
    z ^= z >> xp.uint64(30)
    z *= xp.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> xp.uint64(27)
    z *= xp.uint64(0x94D049BB133111EB)
    z ^= z >> xp.uint64(31)
    return z


_PIECE = 1 << 14  # elements hashed at a time: three arrays of this many 64-bit words stay in a core's cache


def _size(shape: Sequence[int]) -> int:
    n = 1
    for extent in shape:
        n *= int(extent)
    return n


def uniform(xp: Any, key: int, shape: Sequence[int], *, start: int = 0) -> Any:
    """Return float64 in [0, 1), elements ``start`` to ``start + size`` of the stream ``key``.

    >>> a = uniform(np, 7, (4,)); b = uniform(np, 7, (2,), start=2)
    >>> bool((a[2:] == b).all())
    True
    """
    z = _bits(xp, key, start, _size(shape))
    z >>= xp.uint64(11)
    u = z.astype(xp.float64)
    u *= 2.0**-53
    return u.reshape(tuple(shape))


def normal(xp: Any, key: int, shape: Sequence[int], *, start: int = 0) -> Any:
    """Return standard normal float64, by the Box-Muller transform of two streams."""
    u = uniform(xp, key, shape, start=start)
    v = uniform(xp, key ^ 0x5851F42D4C957F2D, shape, start=start)
    return xp.sqrt(-2.0 * xp.log1p(-u)) * xp.cos((2.0 * np.pi) * v)


_WORTH_THREADS = 1 << 18  # elements of an array from which threads, which take 0.1 ms to start, gain time


def filled(
    xp: Any, draw: Draw, key: int, shape: Sequence[int], finish: Callable[[Any], Any], dtype: Any, *, start: int = 0,
    threads: int = 1,
) -> Any:  # fmt: skip
    """Return ``finish(draw(xp, key, shape, start=start))`` in another element type.

    On a CPU it is computed in pieces that stay in a core's cache; whole float64 arrays, several at a time, would
    take up to ten times the memory of the result.

    Args:
        draw: ``uniform`` or ``normal``.
        finish: computes each element from the one that is drawn.
        threads: how many threads compute pieces of a large array at the same time.

    >>> filled(np, uniform, 7, (2, 3), lambda u: 10 * u, np.int32)
    array([[3, 0, 9],
           [5, 4, 2]], dtype=int32)
    """
    size = _size(shape)
    if xp is not np or size <= _PIECE:
        return finish(draw(xp, key, shape, start=start)).astype(dtype)
    y = np.empty(tuple(shape), dtype)
    flat = y.reshape(-1)

    def fill(first: int, last: int) -> None:
        with np.errstate(all="ignore"):  # which another thread does not inherit
            for begin in range(first, last, _PIECE):
                part = flat[begin : min(begin + _PIECE, last)]
                part[...] = finish(draw(np, key, part.shape, start=start + begin))

    if threads == 1 or size < _WORTH_THREADS:
        fill(0, size)
        return y
    each = -(-size // (threads * _PIECE)) * _PIECE
    firsts = range(0, size, each)
    with ThreadPoolExecutor(threads) as pool:  # NumPy computes without the interpreter lock
        list(pool.map(fill, firsts, (min(first + each, size) for first in firsts)))
    return y
