"""Matrices as tensor trains: cores for the operator TT, random or computed from the weights of an FC."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.proto import NetError, ShapeError

__all__ = ["init_tt_cores", "matrix_to_tt", "split_size", "tt_svd"]

Array = np.ndarray[Any, np.dtype[Any]]
Sizes = Sequence[int]


def _checked(what: str, inp_sizes: Sizes, out_sizes: Sizes, tt_ranks: Sizes) -> tuple[list[int], ...]:
    """Return the sizes and ranks as lists of int."""
    sizes = [[int(n) for n in given] for given in (inp_sizes, out_sizes, tt_ranks)]
    inner, outer, ranks = sizes
    if (
        not len(inner) == len(outer) == len(ranks) - 1 > 0
        or min(map(min, sizes)) < 1
        or (ranks[0], ranks[-1]) != (1, 1)
    ):
        raise NetError(
            f"{what}: inp_sizes and out_sizes must have the same length and tt_ranks one element more, all positive, "
            f"the first and last rank 1; got {inner}, {outer} and {ranks}"
        )
    return inner, outer, ranks


def init_tt_cores(inp_sizes: Sizes, out_sizes: Sizes, tt_ranks: Sizes, seed: int = 1234) -> Array:
    """Return normally distributed cores, float32, in one vector as the operator TT reads them.

    The matrix that they represent, (K, N), has elements of mean 0 and variance 2 / (K + N). (Those of Caffe2's cores
    are smaller by orders of magnitude.)

    Args:
        inp_sizes, out_sizes: their products are K and N.
        tt_ranks: one more than sizes; the first and the last are 1. Lower ranks mean fewer parameters.
        seed: seed of the random numbers.

    Raises:
        NetError: the numbers of sizes and ranks do not match.

    Source of the variance: Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", 2010.
    """
    inner, outer, ranks = _checked("init_tt_cores", inp_sizes, out_sizes, tt_ranks)
    count = sum(i * o * r * s for i, o, r, s in zip(inner, outer, ranks, ranks[1:]))
    variance = 2 / (math.prod(inner) + math.prod(outer)) / math.prod(ranks)  # an element sums over all inner ranks
    numbers = np.random.default_rng(seed).standard_normal(count)
    return (numbers * variance ** (0.5 / len(inner))).astype(np.float32)


def tt_svd(W: Any, sizes: Sizes, tt_ranks: Sizes) -> Array:
    """Return cores of a tensor, float32, in one vector: core k is (tt_ranks[k], sizes[k], tt_ranks[k + 1]), C order.

    The element at (i, j, ...) is the product of the matrices ``core_0[:, i] @ core_1[:, j] @ ...``. All cores but the
    last have orthonormal columns; ranks below the full ones give the truncation of each singular value decomposition.

    Args:
        W: the elements, in C order; any shape.
        sizes: the shape of the tensor.
        tt_ranks: one more than sizes; the first and the last are 1.

    Raises:
        NetError: the numbers of sizes and ranks do not match, or a rank is larger than the full rank.
        ShapeError: W has another number of elements.

    Source: Oseledets, "Tensor-Train Decomposition", SIAM J. Sci. Comput. 33(5), 2011, algorithm 1.
    """
    extents, _, ranks = _checked("tt_svd", sizes, [1] * len(sizes), tt_ranks)
    rest = np.asarray(W, np.float64).reshape(-1)
    if rest.size != math.prod(extents):
        raise ShapeError(
            f"tt_svd: W must have {math.prod(extents)} elements, the product of {extents}, got {rest.size}"
        )
    cores = []
    for k, (extent, rank) in enumerate(zip(extents[:-1], ranks[1:])):
        matrix = rest.reshape(ranks[k] * extent, -1)
        if rank > min(matrix.shape):
            raise NetError(
                f"tt_svd: tt_ranks[{k + 1}] must be at most {min(matrix.shape)} for sizes {extents}, got {rank}"
            )
        u, s, v = np.linalg.svd(matrix, full_matrices=False)
        cores.append(u[:, :rank])
        rest = s[:rank, None] * v[:rank]
    return np.concatenate([core.reshape(-1) for core in (*cores, rest)]).astype(np.float32)


def matrix_to_tt(W: Any, inp_sizes: Sizes, out_sizes: Sizes, tt_ranks: Sizes) -> Array:
    """Return cores, float32, with which the operator TT computes the same as FC with weights W: X W^T.

    With full ranks the results are equal up to rounding; lower ranks approximate W, see ``tt_svd``.

    Args:
        W: (N, K), as the weights of FC.
        inp_sizes, out_sizes: their products are K and N.
        tt_ranks: one more than sizes; the first and the last are 1.

    Raises:
        NetError: the numbers of sizes and ranks do not match.
        ShapeError: W has another shape.
    """
    inner, outer, ranks = _checked("matrix_to_tt", inp_sizes, out_sizes, tt_ranks)
    weights = np.asarray(W)
    expected = math.prod(outer), math.prod(inner)
    if weights.shape != expected:
        raise ShapeError(
            f"matrix_to_tt: W must have shape {expected}, the products of out_sizes and inp_sizes, as for FC; "
            f"got {weights.shape}"
        )
    parts = len(inner)
    pairs = [axis for k in range(parts) for axis in (k, parts + k)]  # interleave the factors of row and column
    tensor = weights.T.reshape(*inner, *outer).transpose(pairs)
    flat = tt_svd(tensor, [i * o for i, o in zip(inner, outer)], ranks)
    cores, begin = [], 0
    for i, o, r, s in zip(inner, outer, ranks, ranks[1:]):
        core = flat[begin : begin + r * i * o * s].reshape(r, i, o, s)
        cores.append(core.transpose(1, 3, 0, 2).reshape(-1))
        begin += core.size
    return np.concatenate(cores[::-1])


def split_size(size: int, parts: int) -> list[int]:
    """Return ``parts`` numbers of similar size whose product is ``size``, by a greedy split of its prime factors.

    >>> split_size(768, 3), split_size(7, 2)
    ([8, 8, 12], [1, 7])
    """
    found, factors, divisor = [1] * parts, [], 2
    while size > 1:
        while size % divisor == 0:
            factors.append(divisor)
            size //= divisor
        divisor = divisor + 1 if divisor * divisor <= size else max(size, 2)
    for factor in reversed(factors):  # the largest first, to the smallest product
        found[found.index(min(found))] *= factor
    return sorted(found)
