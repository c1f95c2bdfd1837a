"""Layer helpers, called as ``brew.conv(model, ...)``, and argument scopes.

A helper gets the arguments of the model's ``arg_scope``, of the enclosing ``brew.arg_scope`` blocks, and of the call;
later ones take precedence. ``register`` adds a helper.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from netbuilder.model.helpers import (
    algebra,
    control,
    inputs,
    nonlinearity,
    normalization,
    operators,
    outputs,
    pooling,
    quantization,
    train,
)
from netbuilder.model.helpers import attention as _attention
from netbuilder.model.helpers import conv as _conv
from netbuilder.model.helpers import dropout as _dropout
from netbuilder.model.helpers import einsum as _einsum
from netbuilder.model.helpers import elementwise_linear as _elementwise_linear
from netbuilder.model.helpers import embedding as _embedding
from netbuilder.model.helpers import fc as _fc
from netbuilder.model.helpers.call_checks import helper_checks
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.rollback import remove_added_on_error
from netbuilder.proto import ArgumentError
from netbuilder.proto.suggestions import did_you_mean, mismatch

__all__ = [
    "Register",
    "accuracy",
    "add",
    "add_weight_decay",
    "arg_max",
    "arg_min",
    "arg_scope",
    "attention",
    "average_pool",
    "batch_mat_mul",
    "concat",
    "cond",
    "conv",
    "conv_nd",
    "conv_transpose",
    "db_input",
    "depth_concat",
    "depthwise",
    "dropout",
    "einsum",
    "elementwise_linear",
    "elu",
    "embedding",
    "fc",
    "group_conv",
    "group_conv_deprecated",
    "has_helper",
    "hard_swish",
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
    "positions",
    "prelu",
    "reduce_sum",
    "register",
    "relu",
    "rms_norm",
    "rotary_tables",
    "sigmoid",
    "softmax",
    "spatial_bn",
    "spatial_gn",
    "squeeze_excite",
    "stochastic_depth",
    "sub",
    "sum",
    "tanh",
    "transformer_block",
    "transpose",
]

P = ParamSpec("P")
R = TypeVar("R")

_OWN = ("Register", "arg_scope", "has_helper", "register")
_helpers: dict[str, Callable[..., Any]] = {}

_NONE: Mapping[str, Any] = {}

# Helper name -> arguments; those of the innermost block have been merged over those of enclosing blocks.
_scope: ContextVar[Mapping[str, Mapping[str, Any]]] = ContextVar("netbuilder_arg_scope")


@contextmanager
def arg_scope(
    single_helper_or_list: Callable[..., Any] | Sequence[Callable[..., Any]], **kwargs: Any
) -> Iterator[None]:
    """Set arguments of helpers for all their calls in the block.

    Arguments of a call take precedence over those of a block, an inner block over an outer one, and any block
    over the model's own ``arg_scope``.

    Args:
        single_helper_or_list: a helper, such as ``brew.conv``, or several.
        kwargs: the arguments.

    Raises:
        TypeError: ``single_helper_or_list`` is neither a helper nor a list of helpers.

    >>> from netbuilder.model import ModelHelper, brew
    >>> model = ModelHelper("example")
    >>> with brew.arg_scope([brew.conv, brew.fc], weight_init=("MSRAFill", {})):
    ...     fc = brew.fc(model, "x", "fc", 2, 3)
    >>> model.param_init_net.Proto().op[0].type
    'MSRAFill'
    """
    helpers: Sequence[Any] = (
        single_helper_or_list if isinstance(single_helper_or_list, (list, tuple)) else [single_helper_or_list]
    )
    for helper in helpers:
        if not callable(helper) or not hasattr(helper, "__name__"):
            raise TypeError(f"arg_scope needs a helper such as brew.conv, or a list of them; got {helper!r}")
    outer = _scope.get(_NONE)
    inner = {helper.__name__: {**outer.get(helper.__name__, _NONE), **kwargs} for helper in helpers}
    token = _scope.set({**outer, **inner})
    try:
        yield
    finally:
        _scope.reset(token)


def register(helper: Callable[P, R]) -> Callable[P, R]:
    """Register a function as the helper ``brew.<its name>``; return the function that applies argument scopes.

    Args:
        helper: takes a ModelHelper as its first argument, ``model``. If it has ``**kwargs`` it gets
            all arguments of the scopes, otherwise only those that it names.

    Raises:
        AttributeError: a helper of this name exists.
        TypeError: ``helper`` is not a function.
    """
    name = getattr(helper, "__name__", None)
    if not callable(helper) or not isinstance(name, str) or not name.isidentifier():
        raise TypeError(f"brew.register: helper must be a function with a name, got {helper!r}")
    if name in _helpers or name in _OWN:
        raise AttributeError(f"brew.register: there is a helper {name!r} already; give the new one another name")
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
    checks = helper_checks(name, signature)

    @functools.wraps(helper)
    def call(*args: Any, **kwargs: Any) -> Any:
        model = args[0] if args else kwargs.get("model")
        if not isinstance(model, ModelHelper):
            raise RuntimeError(
                f"brew.{name}: the first argument must be a ModelHelper, got {model!r}; "
                f"call it as brew.{name}(model, ...)"
            )
        given = {**model.arg_scope, **_scope.get(_NONE).get(name, _NONE)}
        if not takes_all:
            given = {key: value for key, value in given.items() if key in known}
        if len(args) > optional_from:
            for key in names[optional_from : len(args)]:
                given.pop(key, None)
        given.update(kwargs)

        def unlike() -> str:
            return mismatch(signature, args, {key: given[key] for key in given if key in known or key in kwargs})

        if problem := checks.problem(args, given):
            if why := unlike():
                raise TypeError(f"brew.{name}: {why}")
            raise ArgumentError(problem)
        with remove_added_on_error(model):
            try:
                return helper(*args, **given)
            except TypeError as error:
                if why := unlike():
                    raise TypeError(f"brew.{name}: {why}") from error
                raise
            except ArgumentError as error:  # of the operator, which knows its own arguments only
                said = str(error)
                for key in kwargs:
                    unknown = key not in known and f"unknown argument {key!r}" in said and "?" not in said
                    if unknown and (near := did_you_mean(key, names)):
                        raise ArgumentError(f"brew.{name}: unknown argument {key!r}{near}") from error
                raise

    return call


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"brew has no helper {name!r}; model.net.<Operator> adds single operators, brew.register(function) a helper"
        f"{did_you_mean(name, _helpers)}"
    )


def __dir__() -> list[str]:
    return [*_OWN, *_helpers]


accuracy = register(outputs.accuracy)
add = register(algebra.add)
add_weight_decay = register(train.add_weight_decay)
arg_max = register(outputs.arg_max)
arg_min = register(outputs.arg_min)
attention = register(_attention.attention)
average_pool = register(pooling.average_pool)
batch_mat_mul = register(algebra.batch_mat_mul)
concat = register(outputs.concat)
cond = register(control.cond)
conv = register(_conv.conv)
conv_nd = register(_conv.conv_nd)
conv_transpose = register(_conv.conv_transpose)
db_input = register(inputs.db_input)
depth_concat = register(outputs.depth_concat)
depthwise = register(_conv.depthwise)
dropout = register(_dropout.dropout)
elementwise_linear = register(_elementwise_linear.elementwise_linear)
einsum = register(_einsum.einsum)
embedding = register(_embedding.embedding)
elu = register(nonlinearity.elu)
fc = register(_fc.fc)
fused_8bit_rowwise_quantized_to_float = register(quantization.fused_8bit_rowwise_quantized_to_float)
group_conv = register(_conv.group_conv)
group_conv_deprecated = register(_conv.group_conv_deprecated)
hard_swish = register(nonlinearity.hard_swish)
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
positions = register(_attention.positions)
prelu = register(nonlinearity.prelu)
reduce_sum = register(algebra.reduce_sum)
relu = register(nonlinearity.relu)
rms_norm = register(normalization.rms_norm)
rotary_tables = register(_attention.rotary_tables)
sigmoid = register(nonlinearity.sigmoid)
softmax = register(outputs.softmax)
sparse_lengths_sum_4bit_rowwise_sparse = register(quantization.sparse_lengths_sum_4bit_rowwise_sparse)
spatial_bn = register(normalization.spatial_bn)
spatial_gn = register(normalization.spatial_gn)
squeeze_excite = register(_conv.squeeze_excite)
stochastic_depth = register(_dropout.stochastic_depth)
sub = register(algebra.sub)
sum = register(algebra.sum)
tanh = register(nonlinearity.tanh)
transformer_block = register(_attention.transformer_block)
transpose = register(algebra.transpose)

for _helper in operators.HELPERS:
    register(_helper)
