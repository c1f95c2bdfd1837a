"""Plain kernels of elementwise operators, traced into programs.

A plain kernel is called once with symbols in place of arrays, and what it does to them is recorded: so one kernel does
what the array module would do in one for each function, and each formula exists once. A kernel that does
more than elementwise functions and reductions over axes (a decision that depends on elements) cannot be traced.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from netbuilder.engines.programs import (
    Constant,
    Expression,
    HostNumber,
    Load,
    NotTraced,
    Program,
    Stacked,
    Step,
    Sum,
    Uniform,
    View,
    numpy_function,
)
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Symbol", "Tracer", "reshaped_extents"]


_ARITHMETIC = {
    "absolute": 1,
    "add": 2,
    "cbrt": 1,
    "copysign": 2,
    "ceil": 1,
    "cos": 1,
    "cosh": 1,
    "divide": 2,
    "erf": 1,
    "erfc": 1,
    "exp": 1,
    "expm1": 1,
    "floor": 1,
    "log": 1,
    "log10": 1,
    "log1p": 1,
    "log2": 1,
    "maximum": 2,
    "minimum": 2,
    "multiply": 2,
    "negative": 1,
    "positive": 1,
    "power": 2,
    "arccos": 1,
    "arccosh": 1,
    "arcsin": 1,
    "arcsinh": 1,
    "arctan": 1,
    "arctanh": 1,
    "reciprocal": 1,
    "rint": 1,
    "sign": 1,
    "sin": 1,
    "sinh": 1,
    "sqrt": 1,
    "square": 1,
    "subtract": 2,
    "tan": 1,
    "tanh": 1,
    "trunc": 1,
    "bitwise_and": 2,
    "bitwise_or": 2,
    "bitwise_xor": 2,
    "invert": 1,
}
_PREDICATES = {  # of values in their common type
    "equal": 2,
    "greater": 2,
    "greater_equal": 2,
    "isfinite": 1,
    "isinf": 1,
    "isnan": 1,
    "less": 2,
    "less_equal": 2,
    "logical_and": 2,
    "logical_not": 1,
    "logical_or": 2,
    "logical_xor": 2,
    "not_equal": 2,
    "signbit": 1,
}
_OTHER_NAMES = {
    "abs": "absolute",
    "acos": "arccos",
    "bitwise_not": "invert",
    "fabs": "absolute",
    "true_divide": "divide",
}
_FLOATS_ONLY = {"copysign", "power", "reciprocal", "rint", "ceil", "floor", "trunc", "sign"}
_KINDS = "?bBhHiIlLqQefd"


def _sample(value: Any) -> Any:
    """Return an array of one element, or a Python number, that has the type of a value in NumPy's rules."""
    if isinstance(value, Symbol):
        return 1.0 if value.dtype is None else np.ones(1, value.dtype)
    return value


def _kind(value: Any) -> Any:
    """Return what the type of a function's result depends on, of a value: its type, and of an integer the value."""
    if isinstance(value, Symbol):
        return float if value.dtype is None else value.dtype
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, (bool, int, float, np.generic)):
        raise NotTraced(f"a constant {type(value).__name__}")
    return float if type(value) is float else (type(value), value)


@functools.lru_cache(1024)
def _types_of(name: str, kinds: tuple[Any, ...]) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """Return the type of a function's result, and that of its operands together."""
    samples = [np.ones(1, kind) if isinstance(kind, np.dtype) else 1.0 if kind is float else kind[1] for kind in kinds]
    with np.errstate(all="ignore"):
        return np.asarray(numpy_function(name)(*samples)).dtype, np.result_type(*samples)


class Symbol:
    """An array of which only shape and type are known, while a kernel is traced."""

    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("expression", "shape")

    def __init__(self, expression: Expression, shape: tuple[int, ...]) -> None:
        self.expression = expression
        self.shape = shape

    @property
    def dtype(self) -> Any:
        return self.expression.dtype

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.dtype.itemsize)

    def __len__(self) -> int:
        return self.shape[0]

    def reshape(self, *shape: Any) -> Symbol:
        wanted = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else tuple(shape)
        if -1 in wanted:
            known = math.prod(extent for extent in wanted if extent != -1)
            wanted = tuple(self.size // max(known, 1) if extent == -1 else extent for extent in wanted)
        if math.prod(wanted) != self.size:
            raise NotTraced("a reshape to another number of elements")
        try:
            return Symbol(_reshaped(self.expression, self.shape, wanted, {}), wanted)
        except NotTraced:
            if isinstance(self.expression, Step):
                return Symbol(View(self.expression, self.shape), wanted)
            raise

    def ravel(self) -> Symbol:
        return self.reshape(-1)

    def astype(self, dtype: Any, order: str = "K", *, copy: bool = True) -> Symbol:
        return _cast(self, np.dtype(dtype))

    def copy(self, order: str = "C") -> Symbol:
        return Symbol(self.expression, self.shape)

    def sum(self, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Symbol:
        if dtype is None and self.dtype.kind == "i":
            dtype = np.int64  # as by NumPy
        terms = self if dtype is None else self.astype(dtype)
        return terms._reduced("add", axis, keepdims=keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Symbol:
        return self._reduced("maximum", axis, keepdims=keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Symbol:
        return self._reduced("minimum", axis, keepdims=keepdims)

    def _reduced(self, function: str, axis: Any, *, keepdims: bool) -> Symbol:
        types = (np.float32, np.float64, np.int32, np.int64) if function == "add" else (np.float32, np.float64)
        if self.dtype not in types or not self.size or isinstance(self.expression, View):
            raise NotTraced(f"{function} of {self.size} elements of {self.dtype}")
        given = range(self.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        if not all(-self.ndim <= a < self.ndim for a in given):
            raise NotTraced(f"{function} over axis {axis} of {self.ndim}")
        axes = tuple(sorted(a % self.ndim for a in given))
        ones = tuple(1 if a in axes else extent for a, extent in enumerate(self.shape))
        shape = ones if keepdims else tuple(extent for a, extent in enumerate(self.shape) if a not in axes)
        if math.prod(shape) == self.size:
            return self.reshape(shape)
        return Symbol(Load(Sum(self.expression, self.shape, axes, self.dtype, function), shape, self.dtype), shape)

    def mean(self, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Symbol:
        total = self.sum(axis, dtype, keepdims=keepdims)
        return _apply("divide", (total, self.size // total.size))

    def clip(self, low: Any = None, high: Any = None) -> Symbol:
        return _clip(self, low, high)

    def fill(self, value: Any) -> None:
        self._become(_constant(value, self.dtype))

    def __setitem__(self, where: Any, value: Any) -> None:
        if where is not Ellipsis and where != slice(None):
            raise NotTraced("an assignment to a part of an array")
        self._become(value)

    def _become(self, value: Any) -> None:
        """Take the elements of another value, in place."""
        found = _cast(_as_symbol(value), self.dtype)
        if np.broadcast_shapes(found.shape, self.shape) != self.shape:
            raise NotTraced("an assignment of a larger array")
        self.expression = found.expression

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        if method != "__call__" or options.keys() - {"dtype", "casting"}:
            raise NotTraced(f"{function.__name__}.{method}")
        result = _apply(function.__name__, inputs, options.get("dtype"))
        if not out:
            return result
        out[0]._become(result)
        return out[0]

    def __getattr__(self, name: str) -> Any:
        raise NotTraced(f"an array's {name}")

    def __array__(self, *options: Any, **more: Any) -> Any:
        raise NotTraced("a conversion to NumPy")

    def __bool__(self) -> bool:
        raise NotTraced("a decision that depends on elements")

    __int__ = __float__ = __index__ = __iter__ = __bool__

    def __getitem__(self, where: Any) -> Symbol:
        parts = where if isinstance(where, tuple) else (where,)
        if len(parts) == 2 and parts[0] is Ellipsis and isinstance(parts[1], int) and self.size and self.ndim:
            return Symbol(_selected(self.expression, self.shape, parts[1] % self.shape[-1], {}), self.shape[:-1])
        if any(part is not None and part is not Ellipsis and part != slice(None) for part in parts):
            raise NotTraced("a part of an array")
        own = [part for part in parts if part is not None and part is not Ellipsis]
        if Ellipsis not in parts:
            parts = (*parts, Ellipsis)
        at, shape = 0, list[int]()
        for part in parts:
            count = len(self.shape) - len(own) if part is Ellipsis else 0 if part is None else 1
            shape += [1] if part is None else self.shape[at : at + count]
            at += count
        return self.reshape(tuple(shape))


def _forward(name: str) -> Any:
    return lambda self, other: _apply(name, (self, other))


def _backward(name: str) -> Any:
    return lambda self, other: _apply(name, (other, self))


def _in_place(name: str) -> Any:
    def run(self: Symbol, other: Any) -> Symbol:
        self._become(_apply(name, (self, other)))
        return self

    return run


_OPERATORS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "pow": "power",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
}
for _symbol, _name in _OPERATORS.items():
    setattr(Symbol, f"__{_symbol}__", _forward(_name))
    setattr(Symbol, f"__r{_symbol}__", _backward(_name))
    setattr(Symbol, f"__i{_symbol}__", _in_place(_name))
_ORDER = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}
for _symbol, _name in _ORDER.items():
    setattr(Symbol, f"__{_symbol}__", _forward(_name))
for _symbol, _name in {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}.items():
    setattr(Symbol, f"__{_symbol}__", lambda self, name=_name: _apply(name, (self,)))


def _reshaped(value: Expression, old: tuple[int, ...], new: tuple[int, ...], done: dict[int, Any]) -> Expression:
    """Return an expression of shape ``old`` in the shape ``new``: its loads have the same elements, in order."""
    if old == new or isinstance(value, (Constant, HostNumber)):
        return value
    if isinstance(value, Uniform):
        raise NotTraced("a reshape of random numbers")
    found = done.get(id(value))
    if found is not None:
        return found
    if isinstance(value, Load):
        found = replace(value, shape=() if math.prod(value.shape) == 1 else reshaped_extents(value.shape, old, new))
    elif isinstance(value, Stacked):
        raise NotTraced("a reshape of values that were stacked")
    elif isinstance(value, View):
        found = _reshaped(value.value, value.shape, new, {})
    else:
        operands = tuple(_reshaped(operand, old, new, done) for operand in value.operands)
        found = Step(value.function, operands, value.compute, value.dtype)
    done[id(value)] = found
    return found


def reshaped_extents(own: tuple[int, ...], old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    """Return the extents of what is broadcast from ``own`` to the shape ``old``, when that becomes ``new``.

    Raises:
        NotTraced: it is broadcast along a part of an axis of ``new``.
    """
    if own == old:
        return new
    padded = (1,) * (len(old) - len(own)) + own
    left = [(extent, part != 1) for extent, part in zip(old, padded) if extent != 1]
    found = [1] * len(new)
    group: list[int] = []  # axes of ``new`` that, together, are some axes of ``old``
    wanted, given, kinds = 1, 1, set[bool]()
    for axis, extent in enumerate(new):
        if extent == 1:
            continue
        group.append(axis)
        wanted *= extent
        while left and given < wanted:
            own_extent, kind = left.pop(0)
            given *= own_extent
            kinds.add(kind)
        if given == wanted:
            if len(kinds) > 1:
                raise NotTraced("a reshape of what was broadcast")
            if kinds.pop():
                for a in group:
                    found[a] = new[a]
            group, wanted, given = [], 1, 1
    return tuple(found)


def _selected(value: Expression, shape: tuple[int, ...], number: int, done: dict[int, Any]) -> Expression:
    """Return the values with a number along the last axis of an expression of a shape."""
    if isinstance(value, (Constant, HostNumber)):
        return value
    found = done.get(id(value))
    if found is not None:
        return found
    if isinstance(value, Load) and value.shape == shape and value.stride == 1 and not isinstance(value.input, Sum):
        found = Load(value.input, shape[:-1], value.dtype, number, shape[-1])
    elif isinstance(value, Step):
        operands = tuple(_selected(operand, shape, number, done) for operand in value.operands)
        found = Step(value.function, operands, value.compute, value.dtype)
    else:
        raise NotTraced("a part of an array")
    done[id(value)] = found
    return found


def _constant(value: Any, dtype: Any = None) -> Symbol:
    if type(value) in (bool, int, float):
        return Symbol(Constant(value, None if dtype is None else np.dtype(dtype)), ())
    if isinstance(value, (np.generic, np.ndarray)) and np.ndim(value) == 0:
        return Symbol(Constant(value.item(), np.dtype(dtype or value.dtype)), ())
    raise NotTraced(f"a constant {type(value).__name__}")


def _as_symbol(value: Any) -> Symbol:
    return value if isinstance(value, Symbol) else _constant(value)


def _cast(value: Symbol, dtype: np.dtype[Any]) -> Symbol:
    if dtype.char not in _KINDS:
        raise NotTraced(f"elements of type {dtype}")
    if value.dtype is not None and value.dtype == dtype:  # NumPy says that None equals float64
        return Symbol(value.expression, value.shape)
    if isinstance(value.expression, Constant):
        return Symbol(Constant(np.asarray(value.expression.value).astype(dtype).item(), dtype), value.shape)
    if isinstance(value.expression, View):
        inner = value.expression
        return Symbol(View(_cast(Symbol(inner.value, inner.shape), dtype).expression, inner.shape), value.shape)
    if isinstance(value.expression, Stacked):
        parts = tuple(_cast(Symbol(part, value.shape[:-1]), dtype).expression for part in value.expression.values)
        return Symbol(Stacked(parts, dtype), value.shape)
    return Symbol(Step("positive", (value.expression,), dtype, dtype), value.shape)


def _apply(name: str, operands: Sequence[Any], dtype: Any = None) -> Symbol:
    """Return a function of values, in the type that NumPy computes it in."""
    name = _OTHER_NAMES.get(name, name)
    arity = _ARITHMETIC.get(name, _PREDICATES.get(name))
    if arity is None or len(operands) != arity:
        raise NotTraced(f"the function {name}")
    if not any(isinstance(operand, Symbol) for operand in operands):
        with np.errstate(all="ignore"):
            return _constant(numpy_function(name)(*operands), dtype)
    found, common = _types_of(name, tuple(map(_kind, operands)))
    result = found if dtype is None else np.dtype(dtype)
    compute = common if name in _PREDICATES else result
    if compute.char not in _KINDS or (name in _FLOATS_ONLY and compute.kind != "f"):
        raise NotTraced(f"{name} of {compute}")
    symbols = [_as_symbol(operand) for operand in operands]
    if any(isinstance(symbol.expression, (Stacked, View)) for symbol in symbols):
        raise NotTraced("a function of values that were stacked, or reshaped")
    shape = np.broadcast_shapes(*(symbol.shape for symbol in symbols))
    return Symbol(Step(name, tuple(symbol.expression for symbol in symbols), compute, result), shape)


def _where(condition: Any, x: Any, y: Any) -> Symbol:
    dtype = np.where(np.ones(1, bool), _sample(x), _sample(y)).dtype
    symbols = [_cast(_as_symbol(condition), np.dtype(bool)), _as_symbol(x), _as_symbol(y)]
    if any(isinstance(symbol.expression, View) for symbol in symbols):
        raise NotTraced("a choice between values that were reshaped")
    shape = np.broadcast_shapes(*(symbol.shape for symbol in symbols))
    return Symbol(Step("where", tuple(symbol.expression for symbol in symbols), dtype, dtype), shape)


def _clip(x: Any, low: Any = None, high: Any = None) -> Symbol:
    if low is not None:
        x = _apply("maximum", (x, low))
    return _apply("minimum", (x, high)) if high is not None else _as_symbol(x)


def _full(shape: Any, value: Any, dtype: Any) -> Symbol:
    made = _cast(_as_symbol(value), np.dtype(dtype))
    return Symbol(made.expression, (shape,) if isinstance(shape, int) else tuple(shape))


class _Module:
    """What a traced kernel sees as its array module."""

    def __getattr__(self, name: str) -> Any:
        if _OTHER_NAMES.get(name, name) in _ARITHMETIC or name in _PREDICATES:
            return _Function(name)
        value = getattr(np, name, None)
        if isinstance(value, (type, float, type(None))):  # element types, numbers, newaxis
            return value
        raise NotTraced(f"the array module's {name}")

    where = staticmethod(_where)
    clip = staticmethod(_clip)

    @staticmethod
    def sum(value: Symbol, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Symbol:
        return value.sum(axis, dtype, keepdims=keepdims)

    @staticmethod
    def mean(value: Symbol, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Symbol:
        return value.mean(axis, dtype, keepdims=keepdims)

    @staticmethod
    def vdot(x: Symbol, y: Symbol) -> Symbol:
        return _apply("multiply", (x.ravel(), y.ravel())).sum()

    @staticmethod
    def asarray(value: Any, dtype: Any = None) -> Symbol:
        made = _as_symbol(value)
        return made if dtype is None else _cast(made, np.dtype(dtype))

    @staticmethod
    def full_like(like: Symbol, value: Any, dtype: Any = None) -> Symbol:
        return _full(like.shape, value, dtype or like.dtype)

    @staticmethod
    def zeros_like(like: Symbol, dtype: Any = None) -> Symbol:
        return _full(like.shape, 0, dtype or like.dtype)

    @staticmethod
    def ones_like(like: Symbol, dtype: Any = None) -> Symbol:
        return _full(like.shape, 1, dtype or like.dtype)

    @staticmethod
    def zeros(shape: Any, dtype: Any = float) -> Symbol:
        return _full(shape, 0, dtype)

    @staticmethod
    def ones(shape: Any, dtype: Any = float) -> Symbol:
        return _full(shape, 1, dtype)

    empty = staticmethod(zeros)

    @staticmethod
    def broadcast_to(value: Any, shape: Any) -> Symbol:
        return _full(shape, value, value.dtype)

    @staticmethod
    def stack(values: Sequence[Symbol], axis: int) -> Symbol:
        first = values[0]
        if axis != -1 or any((value.shape, value.dtype) != (first.shape, first.dtype) for value in values):
            raise NotTraced("values stacked in another way than as the last axis")
        return Symbol(Stacked(tuple(value.expression for value in values), first.dtype), (*first.shape, len(values)))

    @staticmethod
    def moveaxis(value: Any, source: int, target: int) -> Symbol:
        drawn = value.expression
        if not isinstance(drawn, Uniform) or drawn.moved is not None or source != 0 or target < 0:
            raise NotTraced("a transposition")
        first, *rest = value.shape
        moved = (math.prod(rest[:target]), first, math.prod(rest[target:]))
        drawn.moved, drawn.shape = moved, (*rest[:target], first, *rest[target:])
        return Symbol(drawn, drawn.shape)

    @staticmethod
    def full(shape: Any, value: Any, dtype: Any) -> Symbol:
        return _full(shape, value, dtype)


@dataclass(frozen=True)
class _Function:
    name: str

    def __call__(self, *operands: Any, out: Any = None, dtype: Any = None, casting: Any = None) -> Any:
        result = _apply(self.name, operands, dtype)
        if out is None:
            return result
        out._become(result)
        return out


def _in_one_shape(symbols: Sequence[Symbol]) -> Sequence[Symbol]:
    """Return symbols whose shapes differ in axes of extent 1 only in one shape; others as they are."""
    if len({tuple(n for n in symbol.shape if n != 1) for symbol in symbols}) > 1:
        return symbols
    if any(isinstance(symbol.expression, (Stacked, View)) for symbol in symbols):
        return symbols
    shape = max((symbol.shape for symbol in symbols), key=len)
    return [symbol if symbol.shape == shape else symbol.reshape(shape) for symbol in symbols]


@dataclass(eq=False)
class _Integer:
    """An input in the host's memory: a kernel may compute a number from it, in each call."""

    input: int


@dataclass(eq=False)
class Tracer:
    """The run context of kernels while they are traced; several operators in a row make one program.

    >>> tracer = Tracer()
    >>> x = tracer.input(0, TensorSpec((3,), np.dtype("float32")))
    >>> y = x * 2 + 1
    >>> [step.function for step in tracer.program([y]).steps()]
    ['multiply', 'add']
    """

    op_def: Any = None
    is_gpu: bool = True
    workspace: None = None
    xp: Any = field(default_factory=_Module)
    numbers: list[HostNumber | Uniform] = field(default_factory=list)
    run_context: Any = None

    def input(self, number: int, spec: TensorSpec, shape: Sequence[int] | None = None) -> Symbol:
        """Return the symbol of an input; ``shape`` replaces that of its spec."""
        if spec.dtype.char not in _KINDS:
            raise NotTraced(f"elements of type {spec.dtype}")
        shape = spec.shape if shape is None else tuple(shape)
        return Symbol(Load(number, shape, spec.dtype), shape)

    def host_input(self, number: int) -> Any:
        """Return what stands for an input in the host's memory."""
        return _Integer(number)

    def derived(self, function: Callable[[int], float], counter: Any, dtype: Any = None) -> Any:
        """See ``RunContext.derived``."""
        if not isinstance(counter, _Integer):
            raise NotTraced("a number that is read from the GPU")
        self.numbers.append(HostNumber(function, counter.input, None if dtype is None else np.dtype(dtype)))
        return Symbol(self.numbers[-1], ())

    def uniform(self, shape: Sequence[int], *, per_sample: bool = False) -> Symbol:
        """See ``RunContext.uniform``."""
        if self.run_context is None:
            raise NotTraced("random numbers without a stream")
        start = self.run_context.position(shape, per_sample=per_sample)[1]
        self.numbers.append(Uniform(self.run_context, start, tuple(shape)))
        return Symbol(self.numbers[-1], tuple(shape))

    def __getattr__(self, name: str) -> Any:
        raise NotTraced(f"the run context's {name}")

    def run(self, kernel: Callable[..., Any], op: Any, inputs: Sequence[Any]) -> Sequence[Symbol]:
        """Return the outputs of a plain kernel."""
        try:
            found = kernel(op, self, *inputs)
        except (AttributeError, IndexError, OverflowError, TypeError, ValueError) as error:
            raise NotTraced(f"{op.type}: {error}") from error
        if not all(isinstance(symbol, Symbol) for symbol in found):
            raise NotTraced(f"{op.type} returns other things than arrays")
        return tuple(found)

    def as_stored(self, symbol: Symbol, spec: TensorSpec) -> Symbol:
        """Return a symbol in the type of the buffer that it is stored in.

        Raises:
            NotTraced: it has another shape.
        """
        if symbol.shape != spec.shape:
            raise NotTraced(f"a result of shape {symbol.shape} for one of shape {spec.shape}")
        return _cast(symbol, spec.dtype)

    def program(self, outputs: Sequence[Symbol]) -> Program:
        """Return the program that computes some symbols; shapes that differ in axes of extent 1 are the longest one.

        Raises:
            NotTraced: they have several shapes, or read sums.
        """
        outputs = _in_one_shape(outputs)
        shapes = {symbol.shape[:-1] if isinstance(symbol.expression, Stacked) else symbol.shape for symbol in outputs}
        shape = shapes.pop()
        if shapes or any(symbol.dtype is None or isinstance(symbol.expression, View) for symbol in outputs):
            raise NotTraced("outputs of several shapes")
        if any(isinstance(number, Uniform) and number.shape != shape for number in self.numbers):
            raise NotTraced("random numbers that are broadcast")
        program = Program(
            shape,
            tuple(symbol.expression for symbol in outputs),
            tuple(symbol.dtype for symbol in outputs),
            tuple(self.numbers),
        )
        if program.sums():
            raise NotTraced("a sum over axes")
        return program
