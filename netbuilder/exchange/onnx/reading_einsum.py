"""Import of ONNX's Einsum: transpositions, sums over axes and products of matrices."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from netbuilder.exchange.onnx.reading import Reader, reads
from netbuilder.exchange.onnx.values import UnknownExtentError, ValueForm
from netbuilder.proto import OperatorError

__all__: list[str] = []


@reads("Einsum")
def _einsum(r: Reader, node: Any) -> None:
    equation = re.sub(r"\s", "", str(r.attributes(node)["equation"]))
    terms, result = _terms(equation, [r.rank(name) for name in node.input])
    if any(len(set(term)) < len(term) for term in (*terms, result)):
        raise OperatorError(f"equation {equation!r}: a label that a term has twice is not supported")
    extents = _extents(r, node, equation, terms)
    value, labels = node.input[0], terms[0]
    for index, (name, term) in enumerate(zip(node.input[1:], terms[1:]), 2):
        later = {label for each in (result, *terms[index:]) for label in each}
        kept = [label for label in dict.fromkeys((*result, *labels, *term)) if label in later]
        value, labels = _product(r, node.output[0], (value, labels), (name, term), kept, extents)
    value, labels = _summed(r, node.output[0], value, labels, result)
    order = [labels.index(label) for label in result]
    if order == sorted(order):
        r.same(value, node.output[0])
    else:
        r.add("Transpose", [value], node.output, axes=order)


def _extents(r: Reader, node: Any, equation: str, terms: Sequence[Sequence[str]]) -> dict[str, int | None]:
    """Return the extent of each label; None if it is dynamic."""
    found: dict[str, set[int | None]] = {}
    for name, term in zip(node.input, terms):
        for label, extent in zip(term, r.extents(name)):
            found.setdefault(label, set()).add(extent if isinstance(extent, int) else None)
    if any(len(each) > 1 and (1 in each or len(each - {None}) > 1) for each in found.values()):
        raise OperatorError(f"equation {equation!r}: axes of extent 1 that are broadcast are not supported")
    return {label: next(iter(each - {None}), None) for label, each in found.items()}


def _shape(extents: dict[str, int | None], same: int, groups: Sequence[Sequence[str]]) -> list[int]:
    """Return the argument of a Reshape which keeps some axes, and makes an axis of each group after them.

    Raises:
        UnknownExtentError: more than one of the groups has a dynamic extent.
    """
    dynamic = [group for group in groups if any(extents[label] is None for label in group)]
    if len(dynamic) > 1:
        raise UnknownExtentError(f"the extents of the labels {dynamic} are dynamic, but must be known; give shapes=")
    products = [-1 if group in dynamic else math.prod(extents[label] or 0 for label in group) for group in groups]
    return [0] * same + products


def _terms(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Return the labels of the axes of each operand and of the result; axes of an ellipsis are "0", "1", ..."""
    left, arrow, right = equation.partition("->")
    texts = left.split(",")
    if len(texts) != len(ranks):
        raise OperatorError(f"equation {equation!r} must have a term for each of the {len(ranks)} inputs")
    most = 0
    for text, rank in zip(texts, ranks):
        most = max(most, rank - len(text.replace("...", ""))) if "..." in text else most
    terms = []
    for text, rank in zip(texts, ranks):
        before, dots, after = text.partition("...")
        hidden = [str(i) for i in range(most)][most - (rank - len(before) - len(after)) :] if dots else []
        terms.append([*before, *hidden, *after])
    if arrow:
        before, dots, after = right.partition("...")
        return terms, [*before, *(map(str, range(most)) if dots else ()), *after]
    letters = [label for term in terms for label in term]
    once = sorted(label for label in set(letters) if letters.count(label) == 1 and label.isalpha())
    return terms, [*map(str, range(most)), *once]


def _summed(r: Reader, hint: str, value: str, labels: Sequence[str], kept: Sequence[str]) -> tuple[str, list[str]]:
    """Sum over the axes that are not kept."""
    axes = [i for i, label in enumerate(labels) if label not in kept]
    if not axes:
        return value, list(labels)
    made = r.add("ReduceSum", [value], [r.between(hint)], axes=axes, keepdims=0)
    return made, [label for label in labels if label in kept]


def _product(
    r: Reader,
    hint: str,
    a: tuple[str, Sequence[str]],
    b: tuple[str, Sequence[str]],
    kept: Sequence[str],
    extents: dict[str, int | None],
) -> tuple[str, list[str]]:
    """Multiply two operands, summing over the labels that both have and that are not kept; as products of matrices.

    The axes of the product are in the order of ``kept`` as far as a product of matrices can have them, so that the
    operands are transposed, not the product: of attention that would be the matrix of all scores.
    """
    if kept and kept[-1] in a[1] and kept[-1] not in b[1]:
        a, b = b, a
    (left, left_labels), (right, right_labels) = (
        _summed(r, hint, value, labels, [*kept, *other]) for (value, labels), other in ((a, b[1]), (b, a[1]))
    )
    batch = [label for label in kept if label in left_labels and label in right_labels]
    rows = [label for label in kept if label in left_labels and label not in right_labels]
    columns = [label for label in kept if label in right_labels and label not in left_labels]
    inner = [label for label in left_labels if label in right_labels and label not in kept]

    def matrix(value: str, labels: list[str], groups: Sequence[list[str]], whole: int) -> str:
        """Return an operand with an axis for each group, and for each label of the first ``whole`` groups."""
        moved = _in_order(r, hint, value, labels, groups)
        if all(len(group) == 1 for group in groups[whole:]):
            return moved
        shape = _shape(extents, sum(map(len, groups[:whole])), groups[whole:])
        return r.add("Reshape", [moved], [r.between(hint), r.between(hint)], shape=shape)

    turned = len(columns) == len(inner) == 1 and right_labels.index(columns[0]) < right_labels.index(inner[0])
    trans_b = bool(batch) and turned
    groups = (batch, columns, inner) if trans_b else (batch, inner, columns)
    # rows of a product by one matrix need no common axis
    first = matrix(left, left_labels, (batch, rows, inner), 1 if batch or not rows else 2)
    factors = [first, matrix(right, right_labels, groups, 1)]
    made = r.add("BatchMatMul", factors, [r.between(hint)], broadcast=1, trans_b=int(trans_b))
    labels = [*batch, *rows, *columns]
    if len(columns) == 1 and (len(rows) == 1 or rows and not batch):
        return made, labels
    same = len(batch if batch or not rows else rows)
    shape = _shape(extents, same, [[label] for label in labels[same:]])
    return r.add("Reshape", [made], [r.between(hint), r.between(hint)], shape=shape), labels


def _in_order(r: Reader, hint: str, value: str, labels: list[str], groups: Sequence[list[str]]) -> str:
    """Return a value with its axes in the order of the labels of some groups."""
    order = [labels.index(label) for group in groups for label in group]
    if order == sorted(order):
        return value
    moved, extents = r.add("Transpose", [value], [r.between(hint)], axes=order), r.extents(value)
    r.declare(moved, ValueForm(r.form_of(value).dtype, tuple(extents[axis] for axis in order)))
    return moved
