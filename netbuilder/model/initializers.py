"""Initialization of parameters: by a fill operator in the init net, or outside the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference, ScopedBlobReference
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.proto import ArgumentError, TensorProto

__all__ = [
    "ExternalInitializer",
    "Initializer",
    "PseudoFP16Initializer",
    "ReversePseudoFP16Initializer",
    "update_initializer",
]

FillAndArguments = tuple[str, dict[str, Any]]
"""The type of a fill operator, and its arguments other than the shape."""


class Initializer:
    """Initializes a parameter by a fill operator in the init net.

    Args:
        operator_name: type of the fill, such as "XavierFill".
        kwargs: its arguments other than the shape.

    >>> from netbuilder.graph import Net
    >>> Initializer("GaussianFill", std=0.1).create_param("w", Net("example_init"), [2, 3])
    ParameterInfo('w', shape=[2, 3])
    """

    def __init__(self, operator_name: str | None = None, **kwargs: Any) -> None:
        self.operator_name = operator_name
        self.operator_kwargs = kwargs

    def update(self, operator_name: str, kwargs: dict[str, Any]) -> None:
        """Set the fill of an initializer that was made without one.

        Raises:
            ArgumentError: the initializer has a fill already.
        """
        if self.operator_name is not None:
            raise ArgumentError(
                f"the initializer has the fill {self.operator_name!r} already; make another one for {operator_name!r}"
            )
        self.operator_name = operator_name
        self.operator_kwargs = kwargs

    def create_param(self, param_name: BlobReference | str, init_net: Any, shape: Sequence[int]) -> ParameterInfo:
        """Add the fill to ``init_net`` and return the parameter.

        Args:
            param_name: a reference with the full name, or a string, which gets the current name scope.
            init_net: the net that runs once, before training.
            shape: extents, in elements.
        """
        return ParameterInfo(None, self._fill(param_name, init_net, shape), shape=shape)

    def _fill(self, name: BlobReference | str, init_net: Any, shape: Sequence[int]) -> BlobReference:
        if self.operator_name is None:
            raise ArgumentError(
                f"parameter {str(name)!r}: its initializer {type(self).__name__} has no fill operator; "
                f'give it one, for example {type(self).__name__}("XavierFill")'
            )
        for argument, value in self.operator_kwargs.items():
            if argument in ("shape", "value", "values") and not _is_possible(argument, value):
                rule = "be left out: the layer knows it" if argument == "shape" else "be finite"
                raise ArgumentError(
                    f"parameter {str(name)!r}: argument {argument!r} of its initializer {self.operator_name!r} must "
                    f"{rule}, got {value!r}"
                )
        blob: BlobReference = getattr(init_net, self.operator_name)([], name, shape=shape, **self.operator_kwargs)
        return blob


class ExternalInitializer:
    """For parameters that the model does not initialize: they are fed, loaded, or computed by another net.

    The arguments are those of ``Initializer``, which it can replace; they are ignored.
    """

    def __init__(self, operator_name: str | None = None, **kwargs: Any) -> None:
        pass

    def create_param(
        self, param_name: BlobReference | str, init_net: Any, shape: Sequence[int] | None
    ) -> ParameterInfo:
        """Return the parameter; the init net is unchanged.

        Raises:
            TypeError: ``param_name`` is neither a string nor a reference.
        """
        if not isinstance(param_name, (str, BlobReference)):
            raise TypeError(f"param_name must be a string or a BlobReference, got {param_name!r}")
        return ParameterInfo(None, BlobReference(ScopedBlobReference(param_name), init_net), shape=shape)


class PseudoFP16Initializer(Initializer):
    """Fills in float32 and converts to float16: the parameter is float16, its master copy is ``<name>_fp32``."""

    def create_param(self, param_name: BlobReference | str, init_net: Any, shape: Sequence[int]) -> ParameterInfo:
        master = self._fill(param_name + "_fp32", init_net, shape)
        param = init_net.FloatToHalf(master, param_name)
        return ParameterInfo(None, param, shape=shape, blob_copy={TensorProto.FLOAT: master})


class ReversePseudoFP16Initializer(Initializer):
    """Fills in float32; the parameter is float32, its float16 copy is ``<name>_fp16``."""

    def create_param(self, param_name: BlobReference | str, init_net: Any, shape: Sequence[int]) -> ParameterInfo:
        param = self._fill(param_name, init_net, shape)
        half = init_net.FloatToHalf(param, param_name + "_fp16")
        return ParameterInfo(None, param, shape=shape, blob_copy={TensorProto.FLOAT16: half})


def update_initializer(
    initializer_class: Any,
    operator_name_and_kwargs: FillAndArguments | None,
    default_operator_name_and_kwargs: FillAndArguments,
) -> Any:
    """Return the initializer described by the arguments of a layer helper.

    Args:
        initializer_class: a class such as ``PseudoFP16Initializer``; None: ``Initializer``. An initializer object
            is returned unchanged.
        operator_name_and_kwargs: the fill and its arguments; None: the default.
        default_operator_name_and_kwargs: the default fill of the layer.

    Raises:
        ArgumentError: the fill is not such a pair, or was given together with an initializer object.

    >>> update_initializer(None, None, ("ConstantFill", {"value": 1.0})).operator_name
    'ConstantFill'
    """
    if initializer_class is not None and not isinstance(initializer_class, type):
        if operator_name_and_kwargs is not None:
            raise ArgumentError(
                f"the initializer {initializer_class!r} has its own fill, so the fill {operator_name_and_kwargs!r} "
                "would not be used; give only one of them"
            )
        if not callable(getattr(initializer_class, "create_param", None)):
            raise ArgumentError(f"{initializer_class!r} is no initializer, such as Initializer('XavierFill')")
        return initializer_class
    if initializer_class is not None and not callable(getattr(initializer_class, "create_param", None)):
        raise ArgumentError(f"{initializer_class!r} is no class of initializers, such as PseudoFP16Initializer")
    name, kwargs = _checked(
        default_operator_name_and_kwargs if operator_name_and_kwargs is None else operator_name_and_kwargs
    )
    return (initializer_class or Initializer)(name, **kwargs)


def _is_possible(argument: str, value: Any) -> bool:
    if argument == "shape":
        return False
    return all(
        not isinstance(one, float) or math.isfinite(one) for one in (value if isinstance(value, list) else [value])
    )


def _checked(fill: Any) -> FillAndArguments:
    if type(fill) is tuple and len(fill) == 2 and type(fill[0]) is str and type(fill[1]) is dict:  # nearly always
        return fill[0], fill[1]
    if isinstance(fill, (tuple, list)) and len(fill) > 1 and isinstance(fill[0], str):
        if all(isinstance(arguments, dict) for arguments in fill[1:]):
            return fill[0], {name: value for arguments in fill[1:] for name, value in arguments.items()}
    raise ArgumentError(f'a fill must be (operator, arguments), for example ("MSRAFill", {{}}); got {fill!r}')
