"""einsum: sums of products of two blobs, as transpositions and one BatchMatMul."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.proto import ArgumentError

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["einsum"]

Blob = str | BlobReference


def einsum(model: ModelHelper, blob_in: Sequence[Blob], blob_out: Blob, subscripts: str) -> BlobReference:
    """Sum the products of two blobs over the axes whose letters are not in the result, as NumPy's ``einsum``.

    One letter that both blobs have and the result has not is summed by the matrix product; others are summed after it.

    Args:
        blob_in: two blobs.
        subscripts: a letter for each of their axes, and for those of the result: ``"bhtd,bhsd->bhts"``.

    Raises:
        ArgumentError: there are not two blobs, ``subscripts`` is not of this form, has a letter twice in one blob, or
            letters of the result that no blob has.

    >>> from netbuilder.model import ModelHelper, brew
    >>> model = ModelHelper("example_einsum")
    >>> scores = brew.einsum(model, ["queries", "keys"], "scores", "bhtd,bhsd->bhts")
    >>> [op.type for op in model.net.Proto().op]
    ['BatchMatMul']
    """
    left, right, out = _letters(blob_out, blob_in, subscripts)
    shared = [c for c in left if c in right]
    inner = [c for c in shared if c not in out]
    rows, columns = ([c for c in one if c not in other] for one, other in ((left, right), (right, left)))
    # The matrices' axes; "" is one of extent 1. All other axes are those of the stack.
    m, n, k = ((group or [""])[-1] for group in (rows, columns, inner))
    stack = [c for c in dict.fromkeys(left + right) if c not in (m, n, k)]
    sides, turned, broadcast = [], {}, False
    for blob, letters, side, axes in ((blob_in[0], left, "a", (m, k)), (blob_in[1], right, "b", (k, n))):
        if "" not in axes and [*letters] == [*stack, *reversed(axes)]:
            sides.append(blob)
            turned[f"trans_{side}"] = 1
        else:
            broadcast |= any(c not in letters for c in stack)
            sides.append(_arranged(model, blob, letters, [*stack, *axes], f"{blob_out}_{side}"))
    made = [*stack, m, n]
    summed = [i for i, c in enumerate(made) if not c or c not in out]
    order = [c for c in made if c in out and c]
    last = not summed and order == [*out]
    arguments: dict[str, Any] = {**turned, **({"broadcast": 1} if broadcast else {})}
    y: BlobReference = model.net.BatchMatMul(sides, blob_out if last else f"{blob_out}_products", **arguments)
    if summed:
        y = model.net.ReduceSum(y, blob_out if order == [*out] else f"{blob_out}_sums", axes=summed, keepdims=0)
    if order != [*out]:
        y = model.net.Transpose(y, blob_out, axes=[order.index(c) for c in out])
    return y


def _letters(blob_out: Blob, blob_in: Sequence[Blob], subscripts: str) -> list[str]:
    layer = f"einsum {str(blob_out)!r}"
    if not isinstance(blob_in, (list, tuple)) or len(blob_in) != 2:
        raise ArgumentError(f"{layer} takes two blobs, got {blob_in!r}")
    found = re.fullmatch(r"\s*([a-zA-Z]+)\s*,\s*([a-zA-Z]+)\s*->\s*([a-zA-Z]*)\s*", subscripts)
    if found is None:
        raise ArgumentError(f"{layer}: subscripts must have the form 'ij,jk->ik', got {subscripts!r}")
    left, right, out = found.groups()
    twice = [part for part in (left, right, out) if len({*part}) < len(part)]
    unknown = [c for c in out if c not in left + right]
    if twice or unknown:
        raise ArgumentError(
            f"{layer}: letters must be in a blob once, and those of the result in a blob, got {subscripts!r}"
        )
    return [left, right, out]


def _arranged(model: ModelHelper, blob: Blob, letters: str, axes: Sequence[str], name: str) -> Blob:
    """Return a blob with these axes, those that it does not have, of extent 1, included."""
    order = [letters.index(c) for c in axes if c and c in letters]
    if order != sorted(order):
        blob = model.net.Transpose(blob, f"{name}_turned", axes=order)
    missing = [i for i, c in enumerate(axes) if not c or c not in letters]
    if missing:
        blob = model.net.ExpandDims(blob, f"{name}_wide", dims=missing)
    return blob
