"""Extents and types of the inputs of an ONNX model, and extents given for those that it leaves dynamic."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.data.extents import count_elements
from netbuilder.proto import NetError, ParseError
from netbuilder.proto.suggestions import near_or_known

__all__ = ["Extent", "extents_of", "extents_text", "input_dtype", "input_extents", "with_shapes"]

Extent = int | str | None
"""A number of elements; or of a dynamic axis its name, None if it has none."""


def extents_of(info: Any) -> tuple[Extent, ...]:
    """Return the extents in a ValueInfoProto with a shape."""
    return tuple(
        int(d.dim_value) if d.HasField("dim_value") else d.dim_param or None for d in info.type.tensor_type.shape.dim
    )


def extents_text(extents: Iterable[Extent]) -> str:
    """Return extents as people write them.

    >>> extents_text(("N", 3, None, 224)), extents_text(())
    ('N x 3 x ? x 224', 'scalar')
    """
    return " x ".join("?" if each is None else str(each) for each in extents) or "scalar"


def input_extents(info: Any) -> tuple[Extent, ...] | None:
    """Return the extents of an input; None if the model does not state how many there are.

    Raises:
        ParseError: the known ones are negative, or too large together.
    """
    if not info.type.tensor_type.HasField("shape"):
        return None
    found = extents_of(info)
    if count_elements([extent for extent in found if isinstance(extent, int)]) is None:
        raise ParseError(f"ONNX model: input {info.name!r} has the impossible shape {extents_text(found)}")
    return found


def input_dtype(onnx: Any, info: Any) -> np.dtype[Any]:
    """Return the type of an input's elements.

    Raises:
        ParseError: ONNX has no such type.
    """
    kind = info.type.tensor_type.elem_type
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    except KeyError:
        raise ParseError(f"ONNX model: input {info.name!r} has elements of the unsupported type {kind}") from None


def with_shapes(model: Any, shapes: Mapping[str, Sequence[int | None]], constants: Collection[str]) -> Any:
    """Return a model whose inputs have the given extents, and all values the extents that follow by name.

    Args:
        model: a ModelProto; left unchanged.
        shapes: extents by input; None for one that stays as it is.
        constants: names among the model's inputs whose values are known.

    Raises:
        NetError: there is no such input, or it has other extents.
    """
    if not shapes:
        return model
    copy = type(model)()
    copy.CopyFrom(model)
    inputs = {each.name: each for each in copy.graph.input}
    named: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            given = [each for each in inputs if each not in constants]
            raise NetError(
                f"the ONNX model {model.graph.name!r} has no input {name!r} to which a shape could be given"
                f"{near_or_known(name, given, 'inputs')}"
            )
        _give(inputs[name], tuple(shape), named)
    for info in (*copy.graph.input, *copy.graph.output, *copy.graph.value_info):
        for d in info.type.tensor_type.shape.dim if info.type.tensor_type.HasField("shape") else ():
            if d.dim_param in named:
                d.dim_value = named[d.dim_param]
    return copy


def _give(info: Any, shape: tuple[int | None, ...], named: dict[str, int]) -> None:
    """Set the extents of an input; add to ``named`` those that had a name."""
    kind = info.type.tensor_type
    if not kind.HasField("shape"):
        kind.shape.dim.extend(type(kind.shape).Dimension() for _ in shape)
        kind.shape.SetInParent()
    found = extents_of(info)
    fits = len(found) == len(shape) and all(
        given is None
        or given >= 0
        and (known == given if isinstance(known, int) else known is None or named.get(known, given) == given)
        for known, given in zip(found, shape)
    )
    if not fits:
        raise NetError(
            f"the input {info.name!r} of the ONNX model has the shape {extents_text(found)}, got "
            f"{extents_text(shape)}; numbers in it are fixed, and a name is the same number in all inputs"
        )
    for d, given in zip(kind.shape.dim, shape):
        if given is None:
            continue
        if d.dim_param:
            named[d.dim_param] = given
        d.dim_value = given
