"""Import of ONNX's Einsum: transpositions, sums over axes and products of matrices."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from netbuilder.exchange.onnx.reading import Reader, reads
from netbuilder.exchange.onnx.values import ValueForm
from netbuilder.proto import OperatorError

__all__: list[str] = []


@reads("Einsum")
def _einsum(r: Reader, node: Any) -> None:
    equation = re.sub(r"\s", "", str(r.attributes(node)["equation"]))
    terms, result = _terms(equation, [r.rank(name) for name in node.input])
    if any(len(set(term)) < len(term) for term in (*terms, result)):
        raise OperatorError(f"equation {equation!r}: a label that a term has twice is not supported")
    extents: dict[str, int] = {}
    for name, term in zip(node.input, terms):
        for label, extent in zip(term, r.shape(name)):
            if extents.setdefault(label, extent) != extent:
                raise OperatorError(f"equation {equation!r}: axes of extent 1 that are broadcast are not supported")
    value, labels = node.input[0], terms[0]
    for index, (name, term) in enumerate(zip(node.input[1:], terms[1:]), 2):
        later = {label for each in (result, *terms[index:]) for label in each}
        kept = [label for label in dict.fromkeys((*labels, *term)) if label in later]
        value, labels = _product(r, node.output[0], (value, labels), (name, term), kept, extents)
    value, labels = _summed(r, node.output[0], value, labels, result)
    order = [labels.index(label) for label in result]
    if order == sorted(order):
        r.same(value, node.output[0])
    else:
        r.add("Transpose", [value], node.output, axes=order)


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
    extents: dict[str, int],
) -> tuple[str, list[str]]:
    """Multiply two operands, summing over the labels that both have and that are not kept; as products of matrices."""
    (left, left_labels), (right, right_labels) = (
        _summed(r, hint, value, labels, [*kept, *other]) for (value, labels), other in ((a, b[1]), (b, a[1]))
    )
    batch = [label for label in left_labels if label in right_labels and label in kept]
    inner = [label for label in left_labels if label in right_labels and label not in kept]
    rows = [label for label in left_labels if label not in right_labels]
    columns = [label for label in right_labels if label not in left_labels]

    labels = [*batch, *rows, *columns]
    if len(rows) == len(columns) == len(inner) == 1:  # as MatMul, which rules for attention know
        trans_b = right_labels.index(columns[0]) < right_labels.index(inner[0])
        second = (batch, columns, inner) if trans_b else (batch, inner, columns)
        factors = [
            _in_order(r, hint, left, left_labels, (batch, rows, inner)),
            _in_order(r, hint, right, right_labels, second),
        ]
        made = r.add("BatchMatMul", factors, [r.between(hint)], broadcast=1, trans_b=int(trans_b))
        return made, labels

    def matrix(value: str, labels: list[str], groups: Sequence[list[str]]) -> str:
        moved = _in_order(r, hint, value, labels, groups)
        shape = [math.prod(extents[label] for label in group) for group in groups]
        return r.add("Reshape", [moved], [r.between(hint), r.between(hint)], shape=shape)

    made = r.add(
        "BatchMatMul",
        [matrix(left, left_labels, (batch, rows, inner)), matrix(right, right_labels, (batch, inner, columns))],
        [r.between(hint)],
    )
    wide = r.add("Reshape", [made], [r.between(hint), r.between(hint)], shape=[extents[label] for label in labels])
    return wide, labels


def _in_order(r: Reader, hint: str, value: str, labels: list[str], groups: Sequence[list[str]]) -> str:
    """Return a value with its axes in the order of the labels of some groups."""
    order = [labels.index(label) for group in groups for label in group]
    if order == sorted(order):
        return value
    moved, extents = r.add("Transpose", [value], [r.between(hint)], axes=order), r.extents(value)
    r.declare(moved, ValueForm(r.form_of(value).dtype, tuple(extents[axis] for axis in order)))
    return moved
