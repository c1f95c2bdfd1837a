"""Compiled oneDNN primitives, and prepared kernels and bound calls made from them."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from netbuilder.data.forking import loading
from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import MemoryRef, Part, Workspace, resolve
from netbuilder.engines.onednn.blocked_layout import BlockedLayout, Desc, Exact, View, element_code, layout_of
from netbuilder.engines.onednn.library import OneDnnError, check, dnnl, limit_cache, threads
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import KeptForGradient, SavedFlops
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "CACHE_BYTES",
    "PRIMITIVE_BYTES",
    "RELU",
    "Extra",
    "PostOp",
    "Primitive",
    "Step",
    "cached",
    "compile_primitive",
    "first_fast",
    "post_argument",
    "prepared",
    "primitives",
    "release_primitives",
    "team_size",
    "threads_after",
]


RELU = (c.ELU, -0.0)
"""Algorithm and alpha of a Relu that keeps NaN: where x is not positive, it is alpha * (exp(x) - 1), which is 0.

The library's own Relu is a maximum with 0, which returns 0 for NaN. With alpha 0, ELU differs from it only for NaN; the
sign of alpha makes the result +0 for negative x. Both take the same time where memory bandwidth limits them.
"""

_PRODUCT_RELU = ((c.HARD_SWISH, 3.4e38, 0.0), (c.LINEAR, 1.0, 0.0))
"""Algorithms, alphas and betas of a Relu that keeps NaN and needs no exponential: x * min(max(alpha * x, 0), 1) + 0.

The factor is 1 for every positive normal number, since alpha times the smallest one is 4. The addition makes -0 to +0.
This differs from a Relu for -inf, for which it is NaN with every alpha (-inf * 0), and for positive numbers below
3e-39, which become smaller. So it is for products, which are -inf only if they overflow or a factor is not finite. A
Clip before it would replace -inf, but NaN too.
"""


@dataclass(frozen=True)
class PostOp:
    """An operation on a primitive's result before it is stored.

    Args:
        kind: "relu"; "product relu", a faster one for products, which gives NaN for -inf; "sum", which adds the
            output's old value; "add" or "multiply", with another value.
        other: the description of that value; ``post_argument`` returns the number of its argument.
    """

    kind: str
    other: Desc | None = None


_BINARY = {"add": c.BINARY_ADD, "multiply": c.BINARY_MUL}
_ELEMENTWISE = {"relu": ((*RELU, 0.0),), "product relu": _PRODUCT_RELU}


def post_argument(index: int) -> int:
    """Return the number of the argument that the post-operation ``index`` of a primitive reads."""
    return (index + 1) * c.POST_OPERATION | c.SRC_1


class Primitive:
    """A primitive compiled for certain descriptors and a number of threads; bound calls keep it alive.

    Args:
        kind: for its name.
        flops: floating-point operations of an execution, of matrix products and convolutions only; 0 for others, whose
            work is proportional to the size of their arguments.
    """

    __slots__ = ("__weakref__", "_descs", "_layouts", "descriptor", "flops", "handle", "name", "scratch")

    def __init__(self, descriptor: Any, kind: str, flops: int = 0) -> None:
        d = dnnl()
        self.descriptor, self.flops = descriptor, flops
        self._descs: dict[int, Desc] = {}
        self._layouts: dict[tuple[int, View], BlockedLayout | None] = {}
        out = d.ffi.new("primitive_t *")
        with loading:
            check(d.lib.dnnl_primitive_create(out, descriptor), kind)
        self.handle = d.ffi.gc(out[0], d.lib.dnnl_primitive_destroy)
        text = d.ffi.new("char **")
        check(d.lib.dnnl_primitive_desc_query(descriptor, c.QUERY_IMPLEMENTATION, 0, text), kind)
        self.name = f"onednn {kind} {d.ffi.string(text[0]).decode()}"
        self.scratch = self._size(c.QUERY_SCRATCHPAD)

    @property
    def slow(self) -> bool:
        """Whether this is one of the library's reference implementations."""
        return "ref:" in self.name or "ref_" in self.name

    def argument(self, number: int) -> Any:
        """Return the memory descriptor of an execution argument."""
        return dnnl().lib.dnnl_primitive_desc_query_md(self.descriptor, c.QUERY_ARGUMENT, number)

    def desc(self, number: int, view: View) -> Desc:
        """Return the description of an argument, in exactly the order and type that this primitive has chosen."""
        if number not in self._descs:
            descriptor = self.argument(number)
            self._descs[number] = Desc(view.dims, element_code(descriptor), Exact(descriptor))
        return self._descs[number]

    def spec(self, number: int, spec: TensorSpec, view: View) -> TensorSpec:
        """Return ``spec`` in the layout that this primitive has chosen for an argument, with the same dtype."""
        key = (number, view)
        if key not in self._layouts:
            self._layouts[key] = layout_of(self.argument(number), view)
        return TensorSpec(spec.shape, spec.dtype, self._layouts[key])

    def nbytes(self, number: int) -> int:
        """Return the bytes of an argument."""
        return int(dnnl().lib.dnnl_memory_desc_get_size(self.argument(number)))

    @property
    def workspace(self) -> int:
        """Bytes of the workspace that the forward primitive writes for the backward one."""
        return self._size(c.QUERY_WORKSPACE)

    def _size(self, what: int) -> int:
        d = dnnl()
        descriptor = d.lib.dnnl_primitive_desc_query_md(self.descriptor, what, 0)
        return int(d.lib.dnnl_memory_desc_get_size(descriptor)) if descriptor != d.ffi.NULL else 0


_INVALID_ARGUMENTS = 2  # the library's status


def compile_primitive(
    kind: str, *args: Any, post: Sequence[PostOp] = (), hint: Primitive | None = None, flops: int = 0
) -> Primitive:
    """Compile a primitive; the arguments are those of the C function, without engine, attributes and hint.

    Args:
        kind: part of the name of that function.
        args: its arguments.
        post: fused operations.
        hint: the forward primitive, for a backward one.
        flops: see ``Primitive``.

    Raises:
        OneDnnError: the library has no implementation, or the arguments are not valid.
    """
    d = dnnl()
    out = d.ffi.new("pd_t *")
    create = getattr(d.lib, f"dnnl_{kind}_primitive_desc_create")
    attributes = _attributes(tuple(post))
    if kind == "reorder":
        args = (args[0], d.engine, args[1], d.engine)
    else:
        args = (d.engine, *args)
    if kind.endswith(("_backward", "_backward_data", "_backward_weights")):
        args = (*args, d.ffi.NULL if hint is None else hint.descriptor)
    try:
        with loading:
            check(create(out, *args, attributes), kind)
    except OverflowError:  # a number that does not fit into the library's integers
        raise OneDnnError(kind, _INVALID_ARGUMENTS) from None
    return Primitive(d.ffi.gc(out[0], d.lib.dnnl_primitive_desc_destroy), kind, flops)


@functools.lru_cache(64)
def _attributes(post: tuple[PostOp, ...]) -> Any:
    """Return the attributes of a primitive: scratch memory is provided by the caller; and operations on results."""
    d = dnnl()
    out = d.ffi.new("primitive_attr_t *")
    check(d.lib.dnnl_primitive_attr_create(out), "attributes")
    attributes = d.ffi.gc(out[0], d.lib.dnnl_primitive_attr_destroy)
    check(d.lib.dnnl_primitive_attr_set_scratchpad_mode(attributes, 1), "attributes")
    if post:
        made = d.ffi.new("post_ops_t *")
        check(d.lib.dnnl_post_ops_create(made), "post-operations")
        for op in post:
            if op.kind == "sum":
                check(d.lib.dnnl_post_ops_append_sum(made[0], 1.0, 0, 0), "post-operation sum")
            elif op.other is not None:
                appended = d.lib.dnnl_post_ops_append_binary(made[0], _BINARY[op.kind], op.other.handle)
                check(appended, f"post-operation {op.kind}")
            else:
                for each in _ELEMENTWISE[op.kind]:
                    check(d.lib.dnnl_post_ops_append_eltwise(made[0], *each), f"post-operation {op.kind}")
        check(d.lib.dnnl_primitive_attr_set_post_ops(attributes, made[0]), "post-operations")
        check(d.lib.dnnl_post_ops_destroy(made[0]), "post-operations")
    return attributes


Made = TypeVar("Made")

PRIMITIVE_BYTES = 160 << 10  # code and tables of a primitive, averaged over convolutions and matrix products
CACHE_BYTES = 64 << 20


def cached(make: Callable[..., Made]) -> Callable[..., Made]:
    """Decorator that caches compiled primitives by arguments and number of threads, so that compiling again is fast.

    The decorated function has one more keyword, ``threads``, and returns None if the library has no implementation
    (the undecorated one raises OneDnnError).
    """

    @functools.wraps(make)
    def call(*args: Any, threads: int, **kwargs: Any) -> Any:
        return primitives.get((make, threads, args, tuple(kwargs.items())), functools.partial(make, *args, **kwargs))

    return call


class _Primitives:
    """A cache of primitives: all that plans use, and the most recently requested others."""

    def __init__(self) -> None:
        self.used: weakref.WeakValueDictionary[Any, Primitive] = weakref.WeakValueDictionary()
        self.recent: OrderedDict[Any, Primitive | None] = OrderedDict()

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the primitive of a key; ``make`` makes it if it is not cached. None: the library has none."""
        try:
            found = self.recent[key]
            self.recent.move_to_end(key)
            return found
        except KeyError:  # not cached, or just dropped by another thread
            pass
        with loading:
            found = self.used.get(key)
            if found is None:
                with threads(key[1]):
                    try:
                        found = make()
                        self.used[key] = found
                    except (OneDnnError, ValueError):
                        pass
            self.recent[key] = found
            self.shrink(CACHE_BYTES)
        return found

    def shrink(self, nbytes: int) -> None:
        """Drop the least recently requested primitives until about so many bytes are left."""
        with loading:
            while len(self.recent) > nbytes // PRIMITIVE_BYTES:
                self.recent.popitem(last=False)


primitives = _Primitives()


def release_primitives() -> None:
    """Free the primitives that no plan uses."""
    primitives.shrink(0)
    with loading:
        limit_cache(0)
        limit_cache()


def first_fast(make: Callable[..., Primitive | None], candidates: Iterable[tuple[Any, ...]]) -> Primitive | None:
    """Return the first primitive that is not a reference implementation, else the first of any kind, or None.

    Args:
        make: returns a primitive, or None if the library has none.
        candidates: arguments of ``make`` to try, in order.
    """
    found = None
    for arguments in candidates:
        made = make(*arguments)
        if made is not None and not made.slow:
            return made
        found = found or made
    return found


SMALL = 32768
"""One thread finishes elementwise work on up to so many elements before several threads would have synchronized."""


def team_size(ctx: PlanContext, elements: int) -> int:
    """Return how many of the lane's threads do elementwise work on so many elements."""
    return 1 if elements <= SMALL else ctx.threads


def threads_after(ctx: PlanContext, elements: int) -> int:
    """Return ``Step.threads_after`` for elementwise work on so many elements."""
    return ctx.threads if team_size(ctx, elements) < ctx.threads else 0


@dataclass(frozen=True)
class Step:
    """One execution of a primitive.

    Args:
        primitive: the primitive.
        arguments: the memory of its arguments, by their numbers.
        threads_after: for work that one thread does fastest, the lane's number of threads, which is restored
            afterwards; 0: all threads of the lane do the work.
    """

    primitive: Primitive
    arguments: Mapping[int, MemoryRef | Part]
    threads_after: int = 0

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any, start: int) -> Call:
        """Return a call that executes the primitive on these buffers; its own scratch memory starts at ``start``."""
        d = dnnl()
        buffers = {number: resolve(argument, inputs, outputs, scratch) for number, argument in self.arguments.items()}
        if self.primitive.scratch:
            buffers[c.SCRATCHPAD] = scratch[start:]
        arguments = d.ffi.new("exec_arg_t[]", len(buffers))
        memories = []
        for slot, (number, buffer) in zip(arguments, buffers.items()):
            slot.arg = number
            slot.memory = _memory_object(self.primitive.argument(number), buffer)
            memories.append(d.ffi.gc(slot.memory, d.lib.dnnl_memory_destroy))
        out = d.ffi.new("stream_t *")
        check(d.lib.dnnl_stream_create(out, d.engine, 1), "stream")
        stream = d.ffi.gc(out[0], d.lib.dnnl_stream_destroy)
        keep = (self.primitive, stream, memories, list(buffers.values()))
        nbytes = sum(buffer.nbytes for number, buffer in buffers.items() if number != c.SCRATCHPAD)
        return _execution(self.primitive, stream, arguments, nbytes, self.threads_after, keep)


def _memory_object(descriptor: Any, buffer: Any) -> Any:
    """Return oneDNN's memory object for an array."""
    d = dnnl()
    memory = d.ffi.new("memory_t *")
    pointer = d.ffi.cast("void *", buffer.ctypes.data)
    check(d.lib.dnnl_memory_create(memory, descriptor, d.engine, pointer), "memory")
    return memory[0]


_BRIEF_FLOPS, _BRIEF_BYTES = 1 << 18, 1 << 17
"""The most work, and bytes of arguments, of primitives that take 10 microseconds or less on one thread."""


def _execution(primitive: Primitive, stream: Any, arguments: Any, nbytes: int, threads_after: int, keep: Any) -> Call:
    """Return the call; ``nbytes``: of all arguments."""
    d = dnnl()
    set_threads = d.omp.set_threads
    execute: Callable[..., int] = d.lib.dnnl_primitive_execute
    given: tuple[Any, ...] = (primitive.handle, stream, len(arguments), arguments)
    if primitive.flops <= _BRIEF_FLOPS and nbytes <= _BRIEF_BYTES and not primitive.slow:
        keep = keep, arguments
        execute, given = d.execute_briefly, (d.address(given[0]), d.address(stream), given[2], d.address(arguments))

    def call(keep: Any = keep) -> None:
        status = execute(*given)
        if status:
            raise OneDnnError(primitive.name, status)

    def call_on_one_thread(keep: Any = keep) -> None:
        set_threads(1)
        status = execute(*given)
        set_threads(threads_after)
        if status:
            raise OneDnnError(primitive.name, status)

    return call_on_one_thread if threads_after > 1 else call


Extra = Callable[[Sequence[Any], Sequence[Any], Any], Call | None]


def prepared(
    inputs: Sequence[TensorSpec | None],
    outputs: Sequence[TensorSpec | None],
    steps: Sequence[Step | Extra],
    *,
    inplace: Sequence[tuple[int, int]] = (),
    scratch: int = 0,
    saved_flops: int = 0,
    name: str = "",
) -> Prepared:
    """Return the prepared kernel that executes ``steps`` in order.

    A step is the execution of a primitive or, for small work in NumPy, a function of (inputs, outputs, scratch) that
    returns the bound call, or None if there is nothing to do.

    Args:
        inputs, outputs, inplace: see ``Prepared``.
        saved_flops: see ``SavedFlops``.
        steps: the steps.
        scratch: bytes of the steps' ``Scratch`` memory; the primitives' own scratch memory follows it.
        name: of the steps that are functions, for ``Prepared.name``.
    """
    executed = [step for step in steps if isinstance(step, Step)]
    own = max([step.primitive.scratch for step in executed], default=0)
    start = -(-scratch // 64) * 64

    def bind(ins: Sequence[Any], outs: Sequence[Any], memory: Any) -> Call:
        calls = [
            step.bind(ins, outs, memory, start) if isinstance(step, Step) else step(ins, outs, memory) for step in steps
        ]
        return _in_order([call for call in calls if call is not None])

    kept = {id(each): each for step in executed for each in step.arguments.values() if isinstance(each, Workspace)}
    names = dict.fromkeys([name] if name else [])
    names.update(dict.fromkeys(step.primitive.name for step in executed))
    return Prepared(
        list(inputs),
        list(outputs),
        bind,
        start + own if start or own else 0,
        tuple(inplace),
        name=" + ".join(names),
        engine="ONEDNN",
        extensions=(
            *([SavedFlops(saved_flops)] if saved_flops else []),
            *([KeptForGradient(tuple(kept.values()))] if kept else []),
        ),
    )


def _in_order(calls: Sequence[Call]) -> Call:
    if len(calls) == 1:
        return calls[0]
    if len(calls) == 2:
        first, second = calls

        def two() -> None:
            first()
            second()

        return two

    def several() -> None:
        for call in calls:
            call()

    return several
