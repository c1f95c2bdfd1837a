"""Values: what is known of the values of an ONNX model while it is read: elements, extents, types."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from netbuilder.exchange.onnx.inference import copy_inner_infos, inferred_graph
from netbuilder.exchange.onnx.model_inputs import Extent, extents_of
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.core.signatures import Form
from netbuilder.proto import OperatorError, ParseError

__all__ = ["MOST_KNOWN", "Array", "UnknownExtentError", "ValueForm", "Values"]

Array = np.ndarray[Any, Any]

MOST_KNOWN = 64
"""Elements of a constant that inference of shapes is given."""


class ValueForm(NamedTuple):
    """What is known of a value: its type, and its extents as far as they are known; None for what is not."""

    dtype: np.dtype[Any] | None
    extents: tuple[Extent, ...] | None

    def with_open_extents(self) -> ValueForm:
        return ValueForm(self.dtype, None if self.extents is None else (None,) * len(self.extents))

    def with_axis(self, extent: Extent) -> ValueForm:
        """Return this with a further axis in front."""
        return ValueForm(self.dtype, None if self.extents is None else (extent, *self.extents))


class UnknownExtentError(OperatorError):
    """A node can be an operator only if an extent is known that the model leaves dynamic."""


@functools.cache
def _numpy_dtype(onnx: Any, kind: int) -> np.dtype[Any]:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))


class Values:
    """What is known of a model's values: by the model, by ONNX's inference, and by what operators have inferred.

    Attributes:
        library: the package onnx.
        constants: the values whose elements are known.
    """

    def __init__(self, onnx: Any, model: Any, constants: dict[str, Array]) -> None:
        self.library, self.constants = onnx, constants
        self._model, self._graph = model, model.graph
        self.constants |= {each.name: self._array(each) for each in model.graph.initializer}
        self._same: dict[str, str] = {}
        self._of_infos: dict[str, ValueForm] = {}
        self._found: dict[str, TensorSpec] = {}
        graph = inferred_graph(onnx, model)
        copy_inner_infos(graph, model.graph)
        self._infos = {each.name: each for each in (*graph.output, *graph.value_info, *graph.input)}

    def name(self, value: str) -> str:
        """Return the blob that holds a value of the model."""
        return self._same.get(value, value)

    def elements(self, value: str, what: str) -> Array:
        """Return the elements of a value that must be constant.

        Raises:
            OperatorError: the value is computed.
        """
        if value not in self.constants:
            raise OperatorError(f"{what} ({value!r}) is computed while the model runs; it must be a constant")
        return self.constants[value]

    def extents(self, value: str) -> tuple[Extent, ...]:
        """Return the extents of a value: each a number, the name of a dynamic extent, or None if it has no name.

        Raises:
            OperatorError: not even their number can be inferred.
        """
        if value in self.constants:
            return tuple(self.constants[value].shape)
        value = self.name(value) if value not in self._infos and value not in self._found else value
        if value in self._found:
            return self._found[value].shape
        found = self._of_info(value)[1]
        if found is None:
            raise UnknownExtentError(f"the shape of {value!r} cannot be inferred")
        return found

    def rank(self, value: str) -> int:
        """Return the number of axes of a value.

        Raises:
            OperatorError: it cannot be inferred.
        """
        return len(self.extents(value))

    def shape(self, value: str, start: int = 0) -> tuple[int, ...]:
        """Return the extents of a value from the axis ``start`` on.

        Raises:
            OperatorError: one of them is not known before the model runs.
        """
        found = self.extents(value)[start:]
        known = tuple(extent for extent in found if isinstance(extent, int))
        if len(known) < len(found):
            axes = [start + i for i, extent in enumerate(found) if not isinstance(extent, int)]
            raise UnknownExtentError(
                f"the extents of {value!r} along the axes {axes} are dynamic, but must be known; give shapes="
            )
        return known

    def extent(self, value: str, axis: int) -> int:
        """Return the extent of a value along one axis.

        Raises:
            OperatorError: it is not known before the model runs.
        """
        found = self.extents(value)[axis]
        if not isinstance(found, int):
            raise UnknownExtentError(
                f"the extent of {value!r} along the axis {axis} is dynamic, but must be known; give shapes="
            )
        return found

    def same_extents(self, values: Iterable[str]) -> bool:
        """Whether values have the same shape, as far as can be known; False if that is not certain."""
        shapes = {self.extents(value) for value in values}
        return len(shapes) == 1 and None not in next(iter(shapes))

    def dtype(self, value: str) -> np.dtype[Any] | None:
        """Return the NumPy dtype of a value's elements; None if unknown."""
        if value in self.constants:
            return self.constants[value].dtype
        value = self.name(value) if value not in self._infos and value not in self._found else value
        if value in self._found:
            found = self._found[value].dtype
            return found if found.kind in "fiub" else np.dtype(object)
        return self._of_info(value)[0]

    def form_of(self, value: str) -> ValueForm:
        """Return what is known of a value."""
        try:
            return ValueForm(self.dtype(value), self.extents(value))
        except UnknownExtentError:
            return ValueForm(self.dtype(value), None)

    def declare(self, value: str, form: ValueForm) -> None:
        """Say what is known of a value, as far as nothing is yet."""
        if value not in self._infos:
            self._of_infos.pop(value, None)
        before = self._of_info(value)
        self._of_infos[value] = ValueForm(
            form.dtype if before.dtype is None else before.dtype,
            form.extents if before.extents is None else before.extents,
        )

    def forget_found(self, values: Iterable[str]) -> None:
        """Forget the specs that operators have inferred for values."""
        for name in values:
            self._found.pop(name, None)

    def _of_info(self, value: str) -> ValueForm:
        """Return the type and the extents that ONNX infers for a value; None for what it does not know."""
        if value not in self._of_infos:
            kind = self._infos[value].type.tensor_type if value in self._infos else None
            dtype = kind.elem_type if kind is not None else 0
            self._of_infos[value] = ValueForm(
                _numpy_dtype(self.library, dtype) if dtype else None,
                extents_of(self._infos[value]) if kind is not None and kind.HasField("shape") else None,
            )
        return self._of_infos[value]

    def spec(self, value: str) -> TensorSpec | None:
        """Return the shape and dtype of a value; None if one of them is unknown, or an axis is dynamic."""
        dtype = self.dtype(value)
        try:
            shape = self.shape(value)
        except UnknownExtentError:
            return None
        if dtype is None:
            return None
        known = None
        if value in self.constants and dtype.kind in "iu" and self.constants[value].size <= MOST_KNOWN:
            known = tuple(self.constants[value].ravel().tolist())
        kept = value in self.constants or dtype.kind not in "OUS"
        return TensorSpec(shape, dtype if kept else STRING, known=known)

    def stated_form(self, value: str) -> Form:
        """Return the type and the number of axes of a value as signatures have them."""
        dtype = self.dtype(value)
        try:
            rank = self.rank(value)
        except UnknownExtentError:
            rank = None
        return Form(STRING if dtype is not None and dtype.kind in "OUS" else dtype, rank)

    def _array(self, tensor: Any) -> Array:
        try:
            values: Array = self.library.numpy_helper.to_array(tensor)
        except Exception as error:  # of NumPy or onnx: dims that do not match the data, unknown types, invalid text
            raise ParseError(
                f"ONNX model {self._graph.name!r}: constant {tensor.name!r} of dims {list(tensor.dims)} and type "
                f"{tensor.data_type} does not match its data: {error}"
            ) from None
        return values
