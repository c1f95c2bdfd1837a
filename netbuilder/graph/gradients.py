"""Gradient construction: the functions that nets, operators with subgraphs and Caffe2's scripts call."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from netbuilder.graph.backward import BackwardPass, Gradient
from netbuilder.graph.blob import GRADIENT_SUFFIX, BlobReference, GradientSlice, blob_name, seed_name
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.gradient_context import (
    GradientFunction,
    OverwrittenInputError,
    as_gradient,
    gradient_functions,
    operator_gradient,
)
from netbuilder.graph.gradient_shares import ONLY_SUM_TAG, SUM_TAG
from netbuilder.graph.scope import CurrentDeviceScope
from netbuilder.graph.source import user_source
from netbuilder.graph.versions import EXTERNAL, describe
from netbuilder.proto import GradientError, NetDef, OperatorDef
from netbuilder.proto.arguments import arguments, make_op
from netbuilder.proto.depth import deep_nets, nesting
from netbuilder.proto.errors import unsaid_cause
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.suggestions import did_you_mean

__all__ = [
    "IR",
    "Callback",
    "Differentiated",
    "GradientRegistry",
    "add_gradient_operators",
    "as_references",
    "backward_pass",
    "differentiate",
]

Callback = Callable[[Any, OperatorDef], Any]
"""Called with the net and the gradient operator that was just appended to it."""

_numbers = itertools.count()  # of operators that are differentiated one at a time

GradientMap = dict[BlobReference, BlobReference | GradientSlice]


def add_gradient_operators(net: Any, ys: Any, skip: int, callbacks: Sequence[Callback]) -> GradientMap:
    """See ``Net.AddGradientOperators``; ``net`` is a Net."""
    calls = _checked_callbacks(callbacks)
    proto: NetDef = net.Proto()
    subgraphs = _Subgraphs(calls, type(net))
    if not 0 <= skip <= len(proto.op):
        raise GradientError(f"net {net}: skip must be in [0, {len(proto.op)}], the number of operators, got {skip}")
    ops = list(proto.op)
    skipped = {name for op in ops[:skip] for name in op.output}
    with _depth_error(proto):
        made, found = _backward(ops[skip:], ys, f"net {net}", subgraphs, skipped)
    if not calls:
        net.extend_ops(made)
        return as_references(found)
    before = len(proto.op), len(proto.external_input), len(proto.external_output)
    try:
        _append(net, made, calls)
    except BaseException:
        del proto.op[before[0] :], proto.external_input[before[1] :], proto.external_output[before[2] :]
        raise
    return as_references(found)


def backward_pass(ops: Sequence[OperatorDef], seeds: Mapping[str, Gradient]) -> BackwardPass:
    """Return the backward pass of operators, after its run.

    Args:
        ops: in the order in which they run; unchanged.
        seeds: loss -> its gradient.

    Raises:
        GradientError: see ``Net.AddGradientOperators``.
    """
    return _run(_Subgraphs(), ops, seeds)


def _append(net: Any, made: Iterable[OperatorDef], calls: Sequence[Callback]) -> None:
    """Append operators to a Net, with the calls after each."""
    for op in made:
        net.extend_ops([op])
        appended = net.Proto().op[-1]
        for call in calls:
            call(net, appended)


@dataclass(frozen=True)
class _Subgraphs:
    """Differentiates the subgraphs of operators, at every depth of one backward pass.

    Args:
        calls: the callbacks of the backward pass, for the gradients of subgraphs that take them.
        net_class: of the nets that callbacks are given.
        numbers: see ``BackwardPass``.
    """

    calls: Sequence[Callback] = ()
    net_class: Any = NetDef
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __call__(
        self, net: NetDef, losses: Any, *, name: str | None = None, with_callbacks: bool = False, **names: Any
    ) -> Differentiated:
        """See ``differentiate``.

        Args:
            with_callbacks: call the callbacks for the operators of this gradient net, too.
            names: ``prefix`` and ``results`` of ``BackwardPass``.
        """
        made, found = _backward(net.op, losses, f"net {net.name!r}", self, **names)
        backward = NetDef(name=net.name + GRADIENT_SUFFIX if name is None else name, type=net.type)
        if with_callbacks and self.calls:
            made = self._with_appended(made, backward.name)
        if not net.HasField("type"):
            backward.ClearField("type")
        with deep_nets():
            backward.op.extend(made)
        backward.external_input.extend(undefined_inputs(made))
        results = dict.fromkeys(
            blob
            for name in net.external_input
            if (gradient := found.get(name)) is not None
            for blob in ((gradient,) if isinstance(gradient, str) else (gradient.indices, gradient.values))
        )
        backward.external_output.extend(results)
        return Differentiated(backward, found)

    def _with_appended(self, made: Sequence[OperatorDef], name: str) -> list[OperatorDef]:
        """Return the operators of a gradient net together with those that the callbacks append to it."""
        net = self.net_class(NetDef(name=name))
        _append(net, made, self.calls)
        return list(net.Proto().op)


def _checked_callbacks(callbacks: Sequence[Callback]) -> list[Callback]:
    if callable(callbacks) or not isinstance(callbacks, Iterable) or getattr(callbacks, "ndim", 1) == 0:
        raise TypeError(f"AddGradientOperators: callbacks must be a list of functions, got {callbacks!r}")
    calls = list(callbacks)
    for call in calls:
        if not callable(call):
            raise TypeError(f"AddGradientOperators: callbacks must be functions, got {call!r}")
    return calls


def _backward(
    ops: Sequence[OperatorDef],
    ys: Any,
    where: str,
    subgraphs: _Subgraphs,
    reserved: set[str] | None = None,
    **names: Any,
) -> tuple[list[OperatorDef], dict[str, Gradient]]:
    """Return the backward pass."""
    seeds = _seeds(ys)
    try:
        backward = _run(subgraphs, ops, seeds, reserved, **names)
    except OverwrittenInputError as error:
        error.args = (f"{where}: {error}",)
        raise
    except GradientError as error:
        raise GradientError(f"{where}: {error}") from unsaid_cause(error)
    return backward.operators, backward.gradients


def _run(
    subgraphs: _Subgraphs,
    ops: Sequence[OperatorDef],
    seeds: Mapping[str, Gradient | None],
    reserved: set[str] | None = None,
    **names: Any,
) -> BackwardPass:
    backward = BackwardPass(ops, subgraphs, subgraphs.numbers, reserved.__contains__ if reserved else None, **names)
    _check_losses(backward, seeds)
    _check_stop_gradients(backward, seeds)
    line = user_source(2)
    for loss, gradient in seeds.items():
        if gradient is None:
            op = _ones(backward, loss, line)
            backward.seed(loss, op.output[0], op)
        else:
            backward.seed(loss, gradient, None)
    with deep_nets():
        backward.run()
    return backward


def _seeds(ys: Any) -> dict[str, Gradient | None]:
    if isinstance(ys, Mapping):
        return {blob_name(y): as_gradient(gradient) for y, gradient in ys.items()}
    if isinstance(ys, (str, bytes, BlobReference)) or not isinstance(ys, Iterable) or getattr(ys, "ndim", 1) == 0:
        raise TypeError(
            f"ys must be a list of losses, or a mapping of losses to their gradients, got {ys!r}; give [loss]"
        )
    return dict.fromkeys(blob_name(y) for y in ys)


def _check_losses(backward: BackwardPass, seeds: Iterable[str]) -> None:
    known = backward.versions.last
    for loss in seeds:
        if loss not in known:
            raise GradientError(f"no operator writes or reads loss {loss!r}{did_you_mean(loss, known)}")


def _check_stop_gradients(backward: BackwardPass, seeds: Mapping[str, Any]) -> None:
    """Raise if the output of a StopGradient is not read: its author meant to stop the gradient of the input."""
    read: set[str] | None = None
    for index, op in enumerate(backward.ops):
        if op.type != "StopGradient":
            continue
        if read is None:
            read = {name for other in backward.ops for name in other.input}
        for blob in op.output:
            if blob not in read and blob not in seeds:
                raise GradientError(
                    f"{describe(op, index)}: StopGradient's output {blob!r} is orphan: no operator reads it. Let "
                    "StopGradient work in place, or read its output instead of its input"
                )


def _ones(backward: BackwardPass, loss: str, line: str) -> OperatorDef:
    """Return the operator that seeds a loss, on the device that computes the loss."""
    writer = backward.versions.writers[backward.versions.last[loss]]
    device = CurrentDeviceScope()
    if writer != EXTERNAL and backward.ops[writer].HasField("device_option"):
        device = backward.ops[writer].device_option
    op = make_op("ConstantFill", [loss], [seed_name(loss)], device_option=device, value=1.0)
    op.debug_info = line
    return op


def as_references(found: Mapping[str, Gradient]) -> GradientMap:
    """Return where gradients are stored, as references to blobs."""
    return {BlobReference(name): _as_reference(gradient) for name, gradient in found.items()}


def _as_reference(gradient: Gradient) -> BlobReference | GradientSlice:
    if isinstance(gradient, str):
        return BlobReference(gradient)
    return GradientSlice(BlobReference(gradient.indices), BlobReference(gradient.values))


@dataclass(frozen=True)
class Differentiated:
    """The backward pass of a net.

    Args:
        net: the gradient operators only. Its external inputs are the blobs that they read and do not write, its
            external outputs the gradients of the differentiated net's external inputs.
        gradients: where the gradient of each blob is, for blobs with one.
    """

    net: NetDef
    gradients: dict[str, Gradient]


def differentiate(net: NetDef, losses: Any, *, name: str | None = None) -> Differentiated:
    """Differentiate a net without changing it; operators with subgraphs call this for their gradients.

    Args:
        net: the net.
        losses: its losses, each seeded with ones, or a mapping blob -> its gradient.
        name: name of the gradient net; None: the net's name with the suffix "_grad".

    Raises:
        GradientError: see ``Net.AddGradientOperators``.
    """
    with _depth_error(net):
        return _Subgraphs()(net, losses, name=name)


@contextlib.contextmanager
def _depth_error(net: NetDef) -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise GradientError(
            f"net {net.name!r}: its subgraphs (of If, While) are nested {nesting(net):,} deep, too deep for Python's "
            "stack while they are differentiated; about 600 levels are possible"
        ) from error


class GradientRegistry:
    """Gradients of operators and of lists of operators, under Caffe2's names."""

    gradient_registry_ = gradient_functions

    @staticmethod
    def RegisterGradient(op_type: str) -> Callable[[GradientFunction], GradientFunction]:
        """Return a decorator that registers a function as the gradient of an operator type without one.

        The function is called with the operator and the gradients of its outputs: for each a BlobReference, a
        GradientSlice, or None. It returns the gradient operators (a list, one, or None) and where the gradient of
        each input is (a blob, a GradientSlice, or None). The operators are added unchanged.

        Args:
            op_type: the type; netbuilder need not have a kernel for it.
        """

        def register(function: GradientFunction) -> GradientFunction:
            gradient_functions[op_type] = function
            return function

        return register

    @staticmethod
    def GetBackwardPass(
        operators: Sequence[OperatorDef], ys: Any, ys_generate_gradient: bool = False
    ) -> tuple[list[OperatorDef], GradientMap]:
        """Return the gradient operators of ``operators``, and where each blob's gradient is.

        Args:
            operators: in the order in which they run; unchanged.
            ys: the losses, or a mapping loss -> its gradient (None: ones).
            ys_generate_gradient: ignored; Caffe2's scripts pass it.
        """
        made, found = _backward(operators, ys, "backward pass", _Subgraphs())
        return made, as_references(found)

    @staticmethod
    def GetGradientForOp(
        op: OperatorDef, g_output: Sequence[Any]
    ) -> tuple[list[OperatorDef], list[BlobReference | GradientSlice | None]]:
        """Return the gradient operators of one operator, and the gradient of each input or None.

        If the operator has the argument ``outputs_with_grads``, the gradients of other outputs are ignored.

        Args:
            op: the operator.
            g_output: for each output its gradient (a blob, a GradientSlice, or None).
        """
        given = {i: g for i, g in enumerate(map(as_gradient, g_output)) if g is not None}
        if read := arguments(op).get("outputs_with_grads"):
            given = {i: gradient for i, gradient in given.items() if i in read}
        with _depth_error(NetDef(name=op.type, op=[op])):
            made, d_inputs = operator_gradient(op, given, _Subgraphs(numbers=_numbers), next(_numbers))
        return made, [_as_reference(d_inputs[i]) if i in d_inputs else None for i in range(len(op.input))]


class IR:
    """A list of operators and its backward pass, under Caffe2's name."""

    IS_AUTO_GEN_SUM_OPS_TAG = SUM_TAG.removesuffix(":1")
    ONLY_KEEP_IS_AUTO_GEN_SUM_OPS_TAG = ONLY_SUM_TAG.removesuffix(":1")

    def __init__(self, operators: Sequence[OperatorDef]) -> None:
        self.operators = list(operators)

    def GetBackwardPass(self, ys: Any) -> tuple[list[OperatorDef], GradientMap]:
        """Return the gradient operators, and where each blob's gradient is."""
        return GradientRegistry.GetBackwardPass(self.operators, ys)
