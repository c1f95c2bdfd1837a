"""Helpers that add one operator without parameters, from a table; all of them take the operator's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.helpers.engine import own_arguments
from netbuilder.model.helpers.nonlinearity import HARD_SIGMOID

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["HELPERS"]

Blob = str | BlobReference

_ONE: tuple[tuple[str, str, str], ...] = (
    ("abs", "Abs", "|x|"),
    ("cast", "Cast", "x converted to the type ``to``"),
    ("clip", "Clip", "x clipped to [``min``, ``max``]"),
    ("copy", "Copy", "a copy of x"),
    ("exp", "Exp", "exp(x)"),
    ("expand_dims", "ExpandDims", "x with axes of extent 1 at ``dims``"),
    ("flatten", "Flatten", "x as a matrix, whose columns are the axes from ``axis`` on"),
    ("gelu", "Gelu", "x * P(X <= x) for a standard normal X, or its approximation by tanh with ``fast_gelu``"),
    ("hard_sigmoid", "HardSigmoid", "``alpha`` * x + ``beta``, clipped to [0, 1]; x / 6 + 1 / 2 if they are omitted"),
    ("leaky_relu", "LeakyRelu", "x if it is positive, otherwise ``alpha`` * x"),
    ("log", "Log", "the natural logarithm of x"),
    ("log_softmax", "LogSoftmax", "the logarithm of the softmax along ``axis``, by default the last one"),
    ("mish", "Mish", "x * tanh(log(1 + exp(x)))"),
    ("pad_image", "PadImage", "images with ``pad`` pixels more on each side"),
    ("pow", "Pow", "x to the power ``exponent``"),
    ("reduce_max", "ReduceMax", "the maximum over ``axes``"),
    ("reduce_mean", "ReduceMean", "the mean over ``axes``"),
    ("relu6", "ReluN", "x clipped to [0, 6], or [0, ``n``]"),
    ("reshape", "Reshape", "x in the shape ``shape``, in which 0 stands for an extent of x, and -1 for the rest"),
    ("scale", "Scale", "``scale`` * x"),
    ("slice", "Slice", "x from ``starts`` to before ``ends``, an end of -1 being that of the axis"),
    ("softplus", "Softplus", "log(1 + exp(x))"),
    ("split", "Split", "the parts of x along ``axis``, one for each name, of the extents ``split`` or equal ones"),
    ("sqrt", "Sqrt", "the square root of x"),
    ("squeeze", "Squeeze", "x without its axes ``dims``, of extent 1"),
    ("stop_gradient", "StopGradient", "x, through which no gradient flows"),
    ("swish", "Swish", "x / (1 + exp(-x)), also named SiLU"),
    ("tile", "Tile", "x repeated ``tiles`` times along ``axis``"),
)
_SEVERAL: tuple[tuple[str, str, str], ...] = (
    ("div", "Div", "the first blob divided by the second, broadcast as by NumPy"),
    ("gather", "Gather", "the slices of the first blob, along ``axis``, at the indices in the second"),
    ("maximum", "Max", "the greatest element of all blobs, which have one shape"),
    ("mul", "Mul", "the product of two blobs, broadcast as by NumPy"),
    ("where", "Where", "elements of the second blob where the first is true, and of the third elsewhere"),
)
_ARGUMENTS: dict[str, Mapping[str, Any]] = {"hard_sigmoid": HARD_SIGMOID}
_FURTHER_OUTPUTS = {"reshape": "_{}_shape"}


def _helper(name: str, op_type: str, result: str, *, several: bool) -> Callable[..., Any]:
    defaults, further = _ARGUMENTS.get(name, {}), _FURTHER_OUTPUTS.get(name)

    def helper(model: ModelHelper, blob_in: Any, blob_out: Any, **kwargs: Any) -> Any:
        outputs = blob_out if further is None else [blob_out, further.format(blob_out)]
        made = getattr(model.net, op_type)(blob_in, outputs, **{**defaults, **own_arguments(kwargs)})
        return made if further is None else made[0]

    helper.__name__ = helper.__qualname__ = name
    helper.__annotations__["blob_in"] = "Sequence[Blob]" if several else "Blob"
    helper.__annotations__["blob_out"] = "Sequence[Blob]" if name == "split" else "Blob"
    helper.__doc__ = f"Compute {result} (the operator {op_type}, whose arguments it takes)."
    return helper


HELPERS: Sequence[Callable[..., Any]] = [
    *(_helper(*row, several=False) for row in _ONE),
    *(_helper(*row, several=True) for row in _SEVERAL),
]
"""A helper for each row."""
