"""A product of channels between transpositions becomes one in the order that the channels have, without these.

Talking heads are such products: the channels are the heads, the rest of a value their attention matrices.
"""

from __future__ import annotations

import math
from typing import Any

from netbuilder.passes.part_terms import TermFinder
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import arguments, make_op

__all__ = ["ChannelProducts"]

_FEW = 64  # channels: with more, a product by rows of packed weights gains more than the transpositions cost


class ChannelProducts(TermFinder):
    """The replacement of products of channels in one net."""

    def _channel_product(self, root: int) -> bool:
        """Replace what ends with a transposition that moves the channels back to axis 1; say whether it was replaced.

        It is a transposition that moves axis 1 to the end, the product of the last axis with a matrix, and perhaps a
        bias.
        """
        (value,) = self._versions.inputs[root]
        ops, bias = {root}, None
        index = self._versions.writers[value]
        if (
            index >= 0
            and self._ops[index].type == "Add"
            and not {"axis", "axis_str"} & set(arguments(self._ops[index]))
        ):
            ops.add(index)
            value, bias = sorted(self._versions.inputs[index], key=lambda v: self._versions.writers[v] < 0)
            index = self._versions.writers[value]
        if index < 0 or self._ops[index].type != "BatchMatMul" or len(self._ops[index].input) != 2:
            return False
        given = arguments(self._ops[index])
        rows, weights = self._versions.inputs[index]
        first = self._versions.writers[rows]
        ops |= {index, first}
        if first < 0 or given.get("trans_a") or self._ops[first].type != "Transpose":
            return False
        (x,) = self._versions.inputs[first]
        extents, matrix = self._extents(x), self._extents(weights)
        if extents is None or matrix is None or len(matrix) != 2 or len(extents) < 3:
            return False
        channels, made = (extents[1], matrix[0 if given.get("trans_b") else 1])
        if not isinstance(channels, int) or not isinstance(made, int) or max(channels, made) > _FEW:
            return False
        if bias is not None and self._extents(bias) != (made,):
            return False
        rank = len(extents)
        if self._axes(first, rank) != [0, *range(2, rank), 1] or self._axes(root, rank) != [
            0,
            rank - 1,
            *range(1, rank - 1),
        ]:
            return False
        plane = [extent for extent in extents[2:] if isinstance(extent, int)]
        read = [x, weights, *([] if bias is None else [bias])]
        if len(plane) < rank - 2 or not self._is_own(ops, root) or not all(self._lives(each, root) for each in read):
            return False
        names = [self._versions.names[each] for each in read]
        self._replace(ops, root, self._in_order(root, names, (channels, made), plane, bool(given.get("trans_b"))))
        return True

    def _axes(self, index: int, rank: int) -> list[int]:
        axes = arguments(self._ops[index]).get("axes")
        return [*reversed(range(rank))] if axes is None else list(axes)

    def _in_order(
        self, root: int, names: list[str], channels: tuple[int, int], plane: list[int], transposed: bool
    ) -> list[OperatorDef]:
        """Return the operators: the images as matrices, the weights times these, the bias, the images."""
        x, weights, *bias = names
        y = self._ops[root].output[0]
        made: list[OperatorDef] = []
        if len(plane) > 1:
            matrices = self._fresh(f"{y}_matrices")
            shape = [0, channels[0], math.prod(plane)]
            made.append(make_op("Reshape", [x], [matrices, self._fresh(f"{y}_shape")], shape=shape))
            x = matrices
        steps: list[tuple[str, str, dict[str, Any]]] = [
            ("BatchMatMul", weights, {"broadcast": 1, "trans_a": int(not transposed)})
        ]
        steps += [("Add", each, {"broadcast": 1, "axis": 1}) for each in bias]
        for number, (kind, other, options) in enumerate(steps):
            last = number == len(steps) - 1 and len(plane) == 1
            target = y if last else self._fresh(f"{y}_{kind.lower()}")
            made.append(make_op(kind, [other, x] if kind == "BatchMatMul" else [x, other], [target], **options))
            x = target
        if len(plane) > 1:
            made.append(make_op("Reshape", [x], [y, self._fresh(f"{y}_shape")], shape=[0, channels[1], *plane]))
        return made
