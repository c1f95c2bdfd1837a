"""Python: an operator that runs a Python function, and PythonGradient, which runs another for its gradient.

A net names functions by tokens; the functions themselves exist only in the process that registered them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.data.blob_values import as_tensor
from netbuilder.data.forking import new_lock
from netbuilder.data.tensor_records import NUMPY_TYPES
from netbuilder.ops.core.contexts import LEFT_AS_IS, GradientContext, RunContext
from netbuilder.ops.core.operator import STRING, Operator
from netbuilder.ops.core.registry import kernel
from netbuilder.ops.core.registry import register as register_operator
from netbuilder.proto import ArgumentError, GradientError, NetError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Python",
    "PythonGradient",
    "PythonTensor",
    "python_arguments",
    "register",
    "registered",
    "show_workspaces_as",
]

Function = Callable[..., Any]


@dataclass(frozen=True)
class _Functions:
    f: Any  # a function, or a _Factory of one
    grad_f: Any
    pass_workspace: bool
    must_fill: bool


@dataclass(frozen=True)
class _Factory:
    """A call that returns a function, made once for each operator that runs the function."""

    make: Function
    args: Sequence[Any]
    kwargs: dict[str, Any]

    def __call__(self) -> Function:
        made: Function = self.make(*self.args, **self.kwargs)
        return made


_functions: dict[str, _Functions] = {}
_lock = new_lock()


def register(
    f: Function,
    grad_f: Function | None = None,
    pass_workspace: bool = False,
    *,
    token: str | None = None,
    must_fill: bool = True,
) -> str:
    """Register functions for Python operators; return the token by which operators name them.

    Args:
        f: ``f(inputs, outputs)``, with lists of ``PythonTensor``; it fills the outputs by ``feed``, or by ``reshape``
            and writing into ``data``.
        grad_f: the same for the gradient: its inputs are the forward inputs, the forward outputs and the gradients of
            the outputs, its outputs the gradients of the inputs. None: there is no gradient.
        pass_workspace: both get the workspace as a third argument.
        token: the token to use; functions registered under it are replaced. None: the name of ``f``, made unique.
        must_fill: whether an output that a function leaves without a value is an error; if not, its blob keeps its
            value.

    Raises:
        TypeError: a function cannot be called.
    """
    for function, optional in ((f, False), (grad_f, True)):
        if not callable(function) and not (optional and function is None):
            raise TypeError(f"a Python operator needs functions, got {function!r}")
    with _lock:
        if token is None:
            named = f.make if isinstance(f, _Factory) else f
            token = name = getattr(named, "__name__", type(named).__name__)
            count = 0
            while token in _functions:
                count += 1
                token = f"{name}:{count}"
        _functions[token] = _Functions(f, grad_f, pass_workspace, must_fill)
    return token


def python_arguments(
    f: Any, grad_f: Any = None, python_func_type: Any = None, pass_workspace: bool = False, *, must_fill: bool = True
) -> dict[str, Any]:
    """Register functions in any of the forms of Caffe2's ``Net.Python``; return the arguments of the operator.

    Args:
        f, grad_f: functions as ``register`` takes them, or (make, args, kwargs), where ``make(*args, **kwargs)``
            returns one, which may have state: it is called for each operator of each created net, when the operator
            first runs.
        python_func_type: a class; the methods ``forward`` and ``backward`` of ``python_func_type(f)`` are used.
        pass_workspace, must_fill: see ``register``.

    >>> registered(python_arguments(lambda inputs, outputs: outputs[0].feed([1.0]))["token"])
    True
    """
    if python_func_type is not None:
        made = python_func_type(f)
        f, grad_f = made.forward, getattr(made, "backward", None)
    return {"token": register(_function_or_maker(f), _function_or_maker(grad_f), pass_workspace, must_fill=must_fill)}


def _function_or_maker(function: Any) -> Any:
    if not isinstance(function, tuple):
        return function
    if not function or len(function) > 3 or not callable(function[0]):
        raise TypeError(f"a Python operator is made from a function or (make, args, kwargs), got {function!r}")
    args = function[1] if len(function) > 1 else ()
    kwargs = function[2] if len(function) > 2 else {}
    return _Factory(function[0], args, kwargs)


def _function(function: Any, op: Any) -> Function:
    """Return a function as it was registered, or the one that its factory made for this operator of a created net."""
    if not isinstance(function, _Factory):
        return function
    with _lock:
        made: Function | None = op.__dict__.get("_made_function")
    if made is None:
        made = function()
        if not callable(made):
            raise TypeError(f"Python: {function.make!r} has to return a function, got {made!r}")
        with _lock:
            made = op.__dict__.setdefault("_made_function", made)
    return made


def registered(token: str) -> bool:
    """Whether functions are registered under ``token``."""
    return token in _functions


_view: Callable[[Any], Any] | None = None


def show_workspaces_as(view: Callable[[Any], Any] | None) -> None:
    """Pass ``view(workspace)`` instead of the workspace to functions that get it.

    Args:
        view: the function; None: pass the workspace itself again.
    """
    global _view
    _view = view


class PythonTensor:
    """A tensor that a Python function reads or fills.

    >>> y = PythonTensor()
    >>> y.reshape([2, 1]); y.data[...] = 3
    >>> y.shape, y.data.tolist()
    ((2, 1), [[3.0], [3.0]])
    """

    __slots__ = ("_array",)

    def __init__(self, array: Any = None) -> None:
        self._array = array

    @property
    def filled(self) -> bool:
        return self._array is not None

    @property
    def data(self) -> Any:
        """The elements, an array; that of an output may be written into.

        Raises:
            NetError: the tensor has neither a shape nor a value yet.
        """
        if self._array is None:
            raise NetError("this output has no data yet; call reshape(shape) or feed(array) first")
        return self._array

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self._array is None else tuple(self._array.shape)

    def feed(self, array: Any) -> None:
        """Set shape, type and elements from a copy of ``array``; strings become bytes.

        Raises:
            NetError: NumPy cannot convert it to an array of numbers or strings.
        """
        array = np.array(as_tensor(array, "this output"))
        if array.dtype.kind in "US":
            flat = [s.encode() if isinstance(s, str) else bytes(s) for s in array.ravel()]
            array = np.array(flat + [None], STRING)[:-1].reshape(array.shape)  # keeps bytes objects apart
        self._array = array

    def fetch(self) -> Any:
        """Return a copy of the elements."""
        return np.array(self.data)

    def reshape(self, shape: Sequence[int]) -> None:
        """Give the tensor a shape; its type stays, float32 if it has none. New elements are zero."""
        shape = tuple(int(n) for n in shape)
        if self._array is None:
            self._array = np.zeros(shape, np.float32)
        elif tuple(self._array.shape) != shape:
            same = self._array.size == np.prod(shape, dtype=np.int64)
            self._array = self._array.reshape(shape) if same else np.zeros(shape, self._array.dtype)

    def init(self, shape: Sequence[int], dtype: Any) -> None:
        """Give the tensor a shape and a type; its elements are zero.

        Args:
            shape: extents.
            dtype: a NumPy type, or a number of TensorProto.DataType.

        Raises:
            NetError: the type is unknown, or is that of strings, which must be fed.
        """
        if isinstance(dtype, int):
            number, dtype = dtype, NUMPY_TYPES.get(dtype)
            if dtype is None or dtype == STRING:
                raise NetError(f"a tensor of type {number} of TensorProto.DataType cannot be initialized; use feed")
        self._array = np.zeros(tuple(int(n) for n in shape), dtype)


@dataclass(frozen=True)
class _CallsPython(Operator):
    open_arguments = ("",)
    inplace = "one-to-one"
    dynamic = True
    stateful = True
    effects = "calls Python code"
    waits = True
    inputs_on_host = True
    token: str = ""
    grad_output_indices: tuple[int, ...] = ()
    grad_input_indices: tuple[int, ...] = ()


@register_operator
@dataclass(frozen=True)
class Python(_CallsPython):
    """Run the function registered under ``token`` on the inputs and outputs; it may have any further arguments."""

    signature = "X* (...): any -> Y* (...): any"

    def check(self) -> None:
        if not self.token:
            raise ArgumentError(
                "Python: the argument token, which netbuilder.ops.control.python_op.register returns, is missing"
            )
        for name, indices, count in (
            ("grad_output_indices", self.grad_output_indices, self.n_out),
            ("grad_input_indices", self.grad_input_indices, self.n_in),
        ):
            for index in indices:
                if not 0 <= index < count:
                    raise ArgumentError(f"Python: {name} must lie in [0, {count}), got {index}")

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        if self.n_in == 0:
            return []
        functions = _functions.get(self.token)
        if functions is not None and functions.grad_f is None:
            raise GradientError(
                f"Python: {self.token!r} has no gradient function; give grad_f, or put a StopGradient after it"
            )
        # By name, without declaring that they are read: only grad_f knows whether it uses an input that f overwrote.
        inputs = [*g.op.input, *g.op.output]
        inputs += [g.d_output(j) for j in self.grad_output_indices or range(self.n_out)]
        outputs = [g.d_input(i) for i in self.grad_input_indices or range(self.n_in)]
        return [make_op("PythonGradient", inputs, outputs)]


@register_operator
@dataclass(frozen=True)
class PythonGradient(_CallsPython):
    """Run the gradient function registered under ``token``."""

    signature = "X* -> dX*"


def _find(op: Any) -> _Functions:
    functions = _functions.get(op.token)
    if functions is None:
        raise NetError(
            f"{op.type}: no function is registered under the token {op.token!r}; "
            "nets with Python operators run in the process that registered their functions"
        )
    return functions


def _call(
    function: Function, functions: _Functions, op: Any, ctx: RunContext, arrays: Sequence[Any]
) -> tuple[Any, ...]:
    """Run a function on tensors that wrap host arrays; return the values of its outputs, LEFT_AS_IS for none."""
    names = ctx.op_def
    given = {name: _as_input(ctx, array) for name, array in zip(names.input, arrays)}
    outputs = []
    for name in names.output:
        if name in given:  # in place: one tensor is both, and may be written into
            given[name] = PythonTensor(np.array(given[name].data))
        outputs.append(given[name] if name in given else PythonTensor(_previous(ctx, name)))
    inputs = [given[name] for name in names.input]
    workspace = ctx.workspace if _view is None else _view(ctx.workspace)
    function(inputs, outputs, *([workspace] if functions.pass_workspace else []))
    for j, output in enumerate(outputs):
        if functions.must_fill and not output.filled:
            raise NetError(f"{op.type}: {op.token!r} left output {j} ({names.output[j]!r}) without a value")
    return tuple(_result(ctx, output.data) if output.filled else LEFT_AS_IS for output in outputs)


def _result(ctx: RunContext, value: Any) -> Any:
    return value if value.dtype == STRING else ctx.xp.asarray(value)


def _as_input(ctx: RunContext, value: Any) -> Any:
    if not hasattr(value, "dtype"):
        return value
    array = ctx.host(value).view()
    array.flags.writeable = False
    return PythonTensor(array)


def _previous(ctx: RunContext, name: str) -> Any:
    """Return a copy of the value that an output has before the operator runs, or None."""
    workspace = ctx.workspace
    if workspace is None or not workspace.has(name) or workspace.spec(name) is None:
        return None
    value = workspace.fetch(name)
    return value if isinstance(value, np.ndarray) else None


@kernel(Python)
def python(op: Python, ctx: RunContext, *inputs: Any) -> tuple[Any, ...]:
    functions = _find(op)
    return _call(_function(functions.f, op), functions, op, ctx, inputs)


@kernel(PythonGradient)
def python_gradient(op: PythonGradient, ctx: RunContext, *inputs: Any) -> tuple[Any, ...]:
    functions = _find(op)
    if functions.grad_f is None:
        raise NetError(f"PythonGradient: {op.token!r} has no gradient function; register it with grad_f")
    return _call(_function(functions.grad_f, op), functions, op, ctx, inputs)
