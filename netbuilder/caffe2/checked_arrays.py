"""Hypothesis strategies of arrays for tests of operators: tensors, segments, lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.proto.extras import how_to_install

try:
    import hypothesis.strategies as st
    from hypothesis.extra import numpy as hypothesis_numpy
except ImportError as error:
    raise ImportError(
        f"hypothesis_test_util needs hypothesis, which is not installed; {how_to_install('test')}"
    ) from error

from netbuilder.proto import ArgumentError

__all__ = [
    "arrays",
    "dims",
    "elements_of_type",
    "floats",
    "lengths",
    "lengths_tensor",
    "segment_ids",
    "segmented_tensor",
    "sparse_lengths_tensor",
    "sparse_segmented_tensor",
    "tensor",
    "tensor1d",
    "tensors",
    "tensors1d",
    "to_float32",
]

Strategy = Any  # of hypothesis, which need not be installed


def to_float32(x: float) -> float:
    """Return the float32 nearest to a number, as a Python float."""
    return float(np.float32(x))


def floats(*args: Any, **kwargs: Any) -> Strategy:
    """Return the strategy of float32 numbers; bounds are rounded to float32."""
    width = kwargs.setdefault("width", 32)
    if width == 32:
        args = tuple(to_float32(value) if isinstance(value, float) else value for value in args)
        for name in ("min_value", "max_value"):
            if isinstance(kwargs.get(name), float):
                kwargs[name] = to_float32(kwargs[name])
    return st.floats(*args, **kwargs)


def dims(min_value: int = 1, max_value: int = 5) -> Strategy:
    """Return the strategy of an extent."""
    return st.integers(min_value=min_value, max_value=max_value)


def elements_of_type(dtype: Any = np.float32, filter_: Callable[[Any], bool] | None = None) -> Strategy:
    """Return the strategy of elements: numbers in [-1, 1], whole numbers from 0 on, or bools.

    Args:
        dtype: of the elements.
        filter_: predicate of the elements to use.

    Raises:
        ArgumentError: the type is not supported.
    """
    kinds = {
        np.float16: lambda: floats(min_value=-1.0, max_value=1.0),
        np.float32: lambda: floats(min_value=-1.0, max_value=1.0),
        np.float64: lambda: floats(min_value=-1.0, max_value=1.0, width=64),
        np.int32: lambda: st.integers(min_value=0, max_value=2**31 - 1),
        np.int64: lambda: st.integers(min_value=0, max_value=2**63 - 1),
        np.bool_: st.booleans,
    }
    kind = np.dtype(dtype).type
    if kind not in kinds:
        raise ArgumentError(f"elements of type {np.dtype(dtype).name} are not supported; give elements=")
    elements = kinds[kind]()
    return elements if filter_ is None else elements.filter(filter_)


def arrays(
    dims: Sequence[int] | int, dtype: Any = np.float32, elements: Strategy = None, unique: bool = False
) -> Strategy:
    """Return the strategy of arrays of the same shape.

    Args:
        dims: the shape, or the length of a vector.
        dtype: of the elements.
        elements: the strategy of these; they are converted to the type.
        unique: all elements differ.
    """
    given = elements_of_type(dtype) if elements is None else elements
    kind = np.dtype(dtype)
    if kind.kind in "biuf":
        given = given.map(kind.type)
    return hypothesis_numpy.arrays(dtype, dims if isinstance(dims, int) else tuple(dims), elements=given, unique=unique)


def tensor(
    min_dim: int = 1, max_dim: int = 4, dtype: Any = np.float32, elements: Strategy = None, unique: bool = False,
    **kwargs: Any,
) -> Strategy:  # fmt: skip
    """Return the strategy of arrays; ``kwargs`` are those of ``dims``, for each axis."""
    shapes = st.lists(dims(**kwargs), min_size=min_dim, max_size=max_dim)
    return shapes.flatmap(lambda shape: arrays(shape, dtype, elements, unique))


def tensor1d(min_len: int = 1, max_len: int = 64, dtype: Any = np.float32, elements: Strategy = None) -> Strategy:
    """Return the strategy of vectors."""
    return tensor(1, 1, dtype, elements, min_value=min_len, max_value=max_len)


def tensors(
    n: int, min_dim: int = 1, max_dim: int = 4, dtype: Any = np.float32, elements: Strategy = None, **kwargs: Any
) -> Strategy:
    """Return the strategy of lists of ``n`` arrays of the same shape."""
    shapes = st.lists(dims(**kwargs), min_size=min_dim, max_size=max_dim)
    return shapes.flatmap(lambda shape: st.lists(arrays(shape, dtype, elements), min_size=n, max_size=n))


def tensors1d(n: int, min_len: int = 1, max_len: int = 64, dtype: Any = np.float32, elements: Strategy = None) -> Any:
    """Return the strategy of lists of ``n`` vectors of the same length."""
    return tensors(n, 1, 1, dtype, elements, min_value=min_len, max_value=max_len)


# Segments of rows.


def segment_ids(size: int, is_sorted: bool) -> Strategy:
    """Return the strategy of segment ids of ``size`` rows, int32; sorted ones begin with 0."""
    if size == 0:
        return st.just(np.empty((0,), np.int32))
    if not is_sorted:
        return arrays([size], np.int32, st.integers(min_value=0, max_value=2 * size))
    steps = arrays([size], np.bool_, st.booleans())
    return steps.map(lambda step: (np.cumsum(step, dtype=np.int32) - np.int32(step[0])).astype(np.int32))


def lengths(size: int, min_segments: int | None = None, max_segments: int | None = None, **kwargs: Any) -> Strategy:
    """Return the strategy of lengths of segments, int32, that ``size`` rows are divided into.

    Args:
        size: number of rows.
        min_segments, max_segments: bounds of the number of segments; None: 1 (0 without rows) and ``size``.
        kwargs: ignored.
    """
    least = min_segments if min_segments is not None else min(size, 1)
    most = max(least, max_segments if max_segments is not None else size)
    cuts = st.integers(least, most).flatmap(
        lambda count: st.lists(st.integers(0, size), min_size=max(count - 1, 0), max_size=max(count - 1, 0)).map(
            lambda inner: sorted([0, *inner, size]) if count else [0]
        )
    )
    return cuts.map(lambda found: np.diff(np.array(found)).astype(np.int32))


def segmented_tensor(
    min_dim: int = 1, max_dim: int = 4, dtype: Any = np.float32, is_sorted: bool = True, elements: Strategy = None,
    segment_generator: Callable[..., Strategy] = segment_ids, allow_empty: bool = False, **kwargs: Any,
) -> Strategy:  # fmt: skip
    """Return the strategy of pairs: an array, and the segments of its rows.

    Args:
        min_dim, max_dim, dtype, elements: of the array.
        is_sorted: whether segments are in order.
        segment_generator: called with the number of rows and ``is_sorted``.
        allow_empty: whether there may be no rows.
        kwargs: those of ``dims``, for the axes.
    """
    first = dims(min_value=0 if allow_empty else 1, **{k: v for k, v in kwargs.items() if k != "min_value"})
    others = st.lists(dims(**kwargs), min_size=min_dim - 1, max_size=max_dim - 1)
    shapes = st.tuples(first, others).map(lambda pair: [pair[0], *pair[1]])
    return shapes.flatmap(
        lambda shape: st.tuples(
            arrays(shape, dtype, elements), segment_generator(shape[0], is_sorted=is_sorted)
        )
    )  # fmt: skip


def lengths_tensor(
    min_segments: int | None = None, max_segments: int | None = None, *args: Any, **kwargs: Any
) -> Strategy:
    """Return the strategy of pairs: an array, and the lengths of its segments; see ``segmented_tensor``."""
    given: dict[str, Any] = {**kwargs, "segment_generator": _lengths(min_segments, max_segments)}
    return segmented_tensor(*args, **given)


def _lengths(least: int | None = None, most: int | None = None) -> Callable[..., Strategy]:
    return lambda size, **kwargs: lengths(size, least, most)


def sparse_segmented_tensor(
    min_dim: int = 1, max_dim: int = 4, dtype: Any = np.float32, is_sorted: bool = True, elements: Strategy = None,
    allow_empty: bool = False, segment_generator: Callable[..., Strategy] = segment_ids, itype: Any = np.int64,
    **kwargs: Any,
) -> Strategy:  # fmt: skip
    """Return the strategy of triples: an array, indices of its rows, and the segments of these indices."""
    least = 0 if allow_empty else 1
    shapes = st.lists(dims(**kwargs), min_size=min_dim, max_size=max_dim)

    def triples(shape: Sequence[int]) -> Strategy:
        rows = st.integers(min_value=0, max_value=shape[0] - 1)
        counts = dims(min_value=least, **{k: v for k, v in kwargs.items() if k != "min_value"})
        return counts.flatmap(
            lambda count: st.tuples(
                arrays(shape, dtype, elements),
                arrays([count], itype, rows),
                segment_generator(count, is_sorted=is_sorted),
            )
        )

    return shapes.flatmap(triples)


def sparse_lengths_tensor(**kwargs: Any) -> Strategy:
    """Return the strategy of triples: an array, indices of its rows, and the lengths of segments of these."""
    return sparse_segmented_tensor(segment_generator=_lengths(), **kwargs)
