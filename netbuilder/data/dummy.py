"""Dummy input: random values and fixed labels, to measure the speed of nets without a data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.proto import NetError

__all__ = ["dummy_batches"]


def dummy_batches(
    shapes: Mapping[str, Sequence[int]],
    *,
    labels: Mapping[str, int] | None = None,
    count: int | None = None,
    seed: int = 0,
) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Yield the same batch repeatedly: normally distributed float32 values, and labels that count up from 0.

    Args:
        shapes: name -> shape, the batch first.
        labels: name -> number of classes, for labels: int32 of shape (batch,), label i being i modulo that number.
            Their batch is that of the first of ``shapes``.
        count: how many batches; None: no end.
        seed: of the values.

    Raises:
        NetError: there are no shapes, or a number is out of range.

    >>> batch = next(dummy_batches({"data": (4, 3, 8, 8)}, labels={"label": 3}))
    >>> batch["data"].shape, batch["label"].tolist()
    ((4, 3, 8, 8), [0, 1, 2, 0])
    """
    if not shapes or any(extent < 1 for shape in shapes.values() for extent in shape) or not all(shapes.values()):
        raise NetError(f"dummy_batches: all extents of shapes must be 1 or greater, got {dict(shapes)}")
    if count is not None and count < 0:
        raise NetError(f"dummy_batches: count must not be negative, got {count}")
    if any(classes < 1 for classes in (labels or {}).values()):
        raise NetError(f"dummy_batches: labels need at least one class, got {dict(labels or {})}")
    rng = np.random.default_rng(seed)
    batch = {name: rng.standard_normal(tuple(shape), dtype=np.float32) for name, shape in shapes.items()}
    size = next(iter(shapes.values()))[0]
    for name, classes in (labels or {}).items():
        batch[name] = (np.arange(size) % classes).astype(np.int32)
    return _repeated(batch, count)


def _repeated(batch: dict[str, Any], count: int | None) -> Iterator[dict[str, Any]]:
    given = 0
    while count is None or given < count:
        yield dict(batch)
        given += 1
