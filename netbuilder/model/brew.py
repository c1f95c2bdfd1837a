"""Layer helpers, called as ``brew.conv(model, ...)``, with arguments from the scopes around.

A helper gets the model's ``arg_scope``, over it the arguments of the ``brew.arg_scope`` blocks around the
call, over those the call's own. ``register`` adds a helper.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from netbuilder.model.arg_scope import arg_scope, scope_arguments
from netbuilder.model.helpers import (
    algebra,
    control,
    inputs,
    nonlinearity,
    normalization,
    outputs,
    pooling,
    quantization,
    train,
)
from netbuilder.model.helpers import conv as _conv
from netbuilder.model.helpers import dropout as _dropout
from netbuilder.model.helpers import elementwise_linear as _elementwise_linear
from netbuilder.model.helpers import embedding as _embedding
from netbuilder.model.helpers import fc as _fc
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.rollback import remove_added_on_error

__all__ = [
    "Register",
    "accuracy",
    "add",
    "add_weight_decay",
    "arg_max",
    "arg_min",
    "arg_scope",
    "average_pool",
    "batch_mat_mul",
    "concat",
    "cond",
    "conv",
    "conv_nd",
    "conv_transpose",
    "db_input",
    "depth_concat",
    "dropout",
    "elementwise_linear",
    "elu",
    "embedding",
    "fc",
    "group_conv",
    "group_conv_deprecated",
    "has_helper",
    "image_input",
    "instance_norm",
    "iter",
    "layer_norm",
    "loop",
    "lrn",
    "mat_mul",
    "max_pool",
    "max_pool_with_index",
    "moments_with_running_stats",
    "prelu",
    "reduce_sum",
    "register",
    "relu",
    "sigmoid",
    "softmax",
    "spatial_bn",
    "spatial_gn",
    "sub",
    "sum",
    "tanh",
    "transpose",
]

P = ParamSpec("P")
R = TypeVar("R")

_OWN = ("Register", "arg_scope", "has_helper", "register")
_helpers: dict[str, Callable[..., Any]] = {}


def register(helper: Callable[P, R]) -> Callable[P, R]:
    """Make a function a helper: ``brew.<its name>``; return it as it is then called.

    Args:
        helper: takes a ModelHelper as its first argument, ``model``. If it takes ``**kwargs``, it gets
            all arguments of the scopes, else those that it names.

    Raises:
        AttributeError: a helper of this name exists.
        TypeError: ``helper`` is not a function.
    """
    name = getattr(helper, "__name__", None)
    if not callable(helper) or not isinstance(name, str) or not name.isidentifier():
        raise TypeError(f"brew.register: needs a function with a name, got {helper!r}")
    if name in _helpers or name in _OWN:
        raise AttributeError(f"brew has a helper {name!r} already; give the new one another name")
    wrapped = _with_scopes(helper, name)
    _helpers[name] = wrapped
    globals()[name] = wrapped
    return wrapped


Register = register


def has_helper(helper: str | Callable[..., Any]) -> bool:
    """Whether a helper of this name, or of this function's name, is registered."""
    return (helper if isinstance(helper, str) else getattr(helper, "__name__", "")) in _helpers


def _with_scopes(helper: Callable[P, R], name: str) -> Callable[P, R]:
    signature = inspect.signature(helper)
    parameters = signature.parameters.values()
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    takes_all = len(names) < len(parameters)
    optional_from = len([p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD])
    known = frozenset(names)

    @functools.wraps(helper)
    def call(*args: Any, **kwargs: Any) -> Any:
        model = args[0] if args else kwargs.get("model")
        if not isinstance(model, ModelHelper):
            raise RuntimeError(
                f"brew.{name}: the first argument must be the ModelHelper to add to, got {model!r}; "
                f"as in brew.{name}(model, ...)"
            )
        given = {**model.arg_scope, **scope_arguments(name)}
        if not takes_all:
            given = {key: value for key, value in given.items() if key in known}
        if len(args) > optional_from:
            for key in names[optional_from : len(args)]:
                given.pop(key, None)
        given.update(kwargs)
        with remove_added_on_error(model):
            try:
                return helper(*args, **given)
            except TypeError as error:
                if misfit := _misfit(signature, args, given):
                    raise TypeError(f"brew.{name}: {misfit}") from error
                raise

    return call


def _misfit(signature: inspect.Signature, args: Sequence[Any], given: Mapping[str, Any]) -> str:
    """Say why a function cannot be called so, and what misspelt arguments may have been meant; "" if it can."""
    try:
        signature.bind(*args, **given)
    except TypeError as error:
        free = [key for key in list(signature.parameters)[len(args) :] if key not in given]
        hints = ""
        for key in given:
            if key not in signature.parameters and (near := difflib.get_close_matches(key, free, n=1)):
                hints += f"; by {key!r}, did you mean {near[0]}?"
        return f"{error}{hints}"
    return ""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    near = difflib.get_close_matches(name, _helpers, n=3)
    raise AttributeError(
        f"brew has no helper {name!r}"
        + (f"; did you mean {', '.join(near)}?" if near else "")
        + "; model.net.<Operator> adds single operators, brew.register(function) a helper"
    )


def __dir__() -> list[str]:
    return [*_OWN, *_helpers]


accuracy = register(outputs.accuracy)
add = register(algebra.add)
add_weight_decay = register(train.add_weight_decay)
arg_max = register(outputs.arg_max)
arg_min = register(outputs.arg_min)
average_pool = register(pooling.average_pool)
batch_mat_mul = register(algebra.batch_mat_mul)
concat = register(outputs.concat)
cond = register(control.cond)
conv = register(_conv.conv)
conv_nd = register(_conv.conv_nd)
conv_transpose = register(_conv.conv_transpose)
db_input = register(inputs.db_input)
depth_concat = register(outputs.depth_concat)
dropout = register(_dropout.dropout)
elementwise_linear = register(_elementwise_linear.elementwise_linear)
embedding = register(_embedding.embedding)
elu = register(nonlinearity.elu)
fc = register(_fc.fc)
fused_8bit_rowwise_quantized_to_float = register(quantization.fused_8bit_rowwise_quantized_to_float)
group_conv = register(_conv.group_conv)
group_conv_deprecated = register(_conv.group_conv_deprecated)
image_input = register(inputs.image_input)
instance_norm = register(normalization.instance_norm)
iter = register(train.iter)
layer_norm = register(normalization.layer_norm)
loop = register(control.loop)
lrn = register(normalization.lrn)
mat_mul = register(algebra.mat_mul)
max_pool = register(pooling.max_pool)
max_pool_with_index = register(pooling.max_pool_with_index)
moments_with_running_stats = register(normalization.moments_with_running_stats)
prelu = register(nonlinearity.prelu)
reduce_sum = register(algebra.reduce_sum)
relu = register(nonlinearity.relu)
sigmoid = register(nonlinearity.sigmoid)
softmax = register(outputs.softmax)
sparse_lengths_sum_4bit_rowwise_sparse = register(quantization.sparse_lengths_sum_4bit_rowwise_sparse)
spatial_bn = register(normalization.spatial_bn)
spatial_gn = register(normalization.spatial_gn)
sub = register(algebra.sub)
sum = register(algebra.sum)
tanh = register(nonlinearity.tanh)
transpose = register(algebra.transpose)
