"""Shared checks of operators: forward against a reference, shapes, numerical gradients, refusals.

Operators run here by a small interpreter over plain kernels and, for the same inputs, in a workspace, where the
planner picks prepared kernels: both must agree with the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import emulated_gpu
from netbuilder.engines.cudnn import table as cudnn
from netbuilder.engines.gpu import gpu, to_host
from netbuilder.graph.blob_devices import place_operators
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.contexts import Sparse
from netbuilder.ops.core.operator import Operator, decode, encode, spec_of
from netbuilder.ops.core.registry import find, plain_kernel
from netbuilder.proto import PROTO_CUDA, NetDef, OperatorDef
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime.plan.run_context import KernelContext

CPU = "cpu"
GPU = "gpu"
DEVICES = [CPU, pytest.param(GPU, marks=pytest.mark.gpu)]

Arrays = Sequence[Any]


def _on_device(op_def: OperatorDef, device: str) -> OperatorDef:
    placed = OperatorDef()
    placed.CopyFrom(op_def)
    if device == GPU:
        placed.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
    return placed


def placed(net: NetDef, device: str) -> NetDef:
    """Return a copy of a net whose operators are all on a device."""
    copy = NetDef()
    copy.CopyFrom(net)
    if device == GPU:
        place_operators(copy, make_device_option(PROTO_CUDA, 0))
    return copy


def interpret(
    ops: Sequence[OperatorDef], blobs: Mapping[str, Any], device: str = CPU, workspace: Any = None
) -> dict[str, Any]:
    """Run operators in order through their plain kernels; return all blobs, as NumPy arrays where they are arrays."""
    values: dict[str, Any] = {}
    for name, value in blobs.items():
        values[name] = value
    for op_def in ops:
        placed = _on_device(op_def, device)
        context = KernelContext(placed, workspace)
        op = decode(find(op_def.type), op_def)
        kernel = plain_kernel(op_def.type, placed.device_option.device_type)
        assert kernel is not None, f"{op_def.type} has no plain kernel"
        with gpu(0) if context.is_gpu else nullcontext():
            inputs = [_to_device(context.xp, values[name]) for name in op_def.input]
            results = kernel(op, context, *inputs)
        if context.is_gpu and not op.outputs_on_host:
            assert not any(map(_on_host, results)), f"{op_def.type}: a result lies on the host"
        assert isinstance(results, tuple), f"{op_def.type}: a kernel returns a tuple"
        assert len(results) >= len(op_def.output), f"{op_def.type}: {len(results)} results for {list(op_def.output)}"
        for name, result in zip(op_def.output, results):
            values[name] = result
    return {name: to_host(v) if hasattr(v, "dtype") else v for name, v in values.items()}


def _to_device(xp: Any, value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return xp.asarray(value)
    return value


def _on_host(result: Any) -> bool:
    return isinstance(result, (np.ndarray, np.generic)) and result.dtype != object


def names_of(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def run_plain(op: Operator, inputs: Arrays, device: str = CPU) -> list[Any]:
    """Run a hand-made operator with ``op.n_out`` outputs."""
    xs, ys = names_of("x", len(inputs)), names_of("y", op.n_out)
    done = interpret([_placed(op, xs, ys)], dict(zip(xs, inputs)), device)
    return [done[y] for y in _placed(op, xs, ys).output]


def _placed(op: Operator, xs: list[str], ys: list[str]) -> OperatorDef:
    outputs = list(ys)
    for i, j in type(op).must_inplace:
        if i < len(xs) and j < len(outputs):
            outputs[j] = xs[i]
    return encode(op, xs, outputs)


def check_forward(
    op: Operator,
    inputs: Arrays,
    expected: Arrays,
    device: str = CPU,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """Compare outputs with a float64 reference, and their shapes and dtypes with ``infer``.

    Args:
        expected: one array per output, or None for an output that has no reference.
    """
    op.with_arity(len(inputs), max(op.n_out, len(expected)))
    got = run_plain(op, inputs, device)
    specs = [spec_of(np.asarray(x)) for x in inputs]
    cost = op.flops(*specs)
    assert isinstance(cost, int) and cost >= 0, f"{op}: {cost!r} is no number of operations"
    if not op.dynamic:
        stated = [(s.shape, str(s.dtype)) for s in op.infer(*specs)]
        computed = [(y.shape, str(y.dtype)) for y in got]
        assert stated == computed, f"{op}: infer states {stated}, but the plain kernel returned {computed}"
    _compare(op, got, expected, rtol, atol, "plain")
    from netbuilder.runtime import Workspace

    xs, ys = names_of("x", len(inputs)), names_of("y", op.n_out)
    op_def = _placed(op, xs, ys)
    if device == GPU and not op.has_side_effects:
        blobs = _in_a_net([op_def], dict(zip(xs, inputs)))
        _compare(op, [blobs[y] for y in op_def.output], expected, rtol, atol, "in a net")
        return
    for engines in ((), None) if device == CPU else (None,):
        workspace = Workspace(engines=engines)
        for name, value in zip(xs, inputs):
            workspace.feed(name, value)
        workspace.run_operator_once(_on_device(op_def, device))
        got = [workspace.fetch(y) for y in op_def.output]
        _compare(op, got, expected, rtol, atol, "planned" if engines is None else "planned without engines")


def _compare(op: Operator, got: Arrays, expected: Arrays, rtol: float, atol: float, how: str) -> None:
    for i, (y, want) in enumerate(zip(got, expected)):
        if want is None:
            continue
        if np.asarray(want).dtype == object:
            assert (np.asarray(y, object) == want).all(), f"{op}, output {i}, {how}"
            continue
        assert np.shape(y) == np.shape(want), f"{op}, output {i}, {how}: shape {np.shape(y)}, not {np.shape(want)}"
        if np.asarray(y).dtype.kind in "iub" and np.asarray(want).dtype.kind in "iub":  # exactly
            np.testing.assert_array_equal(y, want, err_msg=f"{op}, output {i}, {how}")
            continue
        np.testing.assert_allclose(
            np.asarray(y, np.float64), np.asarray(want, np.float64), rtol, atol, err_msg=f"{op}, output {i}, {how}"
        )


def check_gradient(
    op: Operator,
    inputs: Arrays,
    device: str = CPU,
    *,
    wrt: Sequence[int] = (0,),
    outputs: Sequence[int] = (0,),
    step: float = 1e-5,
    rtol: float = 1e-4,
    atol: float = 1e-6,
) -> None:
    """Compare an operator's gradient with central differences, both in float64; on a GPU, with that on the CPU.

    Args:
        op: made by hand, ``n_out`` set where optional outputs are wanted.
        inputs: floating inputs are taken in float64.
        wrt: the inputs whose gradients are checked.
        outputs: the outputs that a gradient reaches; the loss is their sum, weighted by fixed random numbers.
    """
    op.with_arity(len(inputs), op.n_out)
    if device == GPU:
        _check_gradient_on_gpu(op, inputs, wrt, outputs)
        return
    inputs = [np.asarray(x, np.float64) if np.asarray(x).dtype.kind == "f" else x for x in inputs]
    xs, ys = names_of("x", len(inputs)), names_of("y", op.n_out)
    op_def = _placed(op, xs, ys)
    ys = list(op_def.output)
    forward = interpret([op_def], dict(zip(xs, inputs)))
    weights = {j: np.random.default_rng(j).standard_normal(np.shape(forward[ys[j]])) for j in outputs}

    ops, d_inputs = operator_gradient(op_def, {j: f"dy{j}" for j in outputs})
    blobs = interpret(ops, {**forward, **{f"dy{j}": w for j, w in weights.items()}})

    def loss(values: Arrays) -> float:
        done = interpret([op_def], dict(zip(xs, values)))
        return sum(float((weights[j] * done[ys[j]]).sum()) for j in outputs)

    for i in wrt:
        assert i in d_inputs, f"{op}: input {i} has no gradient"
        got = dense_gradient(d_inputs[i], blobs, np.shape(inputs[i]))
        want = np.zeros(np.shape(inputs[i]))
        for k in np.ndindex(want.shape):
            moved = [np.array(x) for x in inputs]
            moved[i][k] += step
            up = loss(moved)
            moved[i][k] -= 2 * step
            want[k] = (up - loss(moved)) / (2 * step)
        assert got.shape == want.shape, f"{op}: gradient of input {i} has shape {got.shape}, not {want.shape}"
        np.testing.assert_allclose(got, want, rtol, atol, err_msg=f"{op}: gradient of input {i}")


def _check_gradient_on_gpu(op: Operator, inputs: Arrays, wrt: Sequence[int], outputs: Sequence[int]) -> None:
    """Compare an operator and its gradient on a GPU with plain kernels on the CPU, in float64.

    On the GPU they run through plain kernels, and as a net, with prepared ones; where cuDNN has the operator and there
    is but its double, as a second net.
    """
    xs, ys = names_of("x", len(inputs)), names_of("y", op.n_out)
    op_def, given = _placed(op, xs, ys), dict(zip(xs, inputs))
    ys = list(op_def.output)
    forward = interpret([op_def], given)
    for j in outputs:
        y = np.asarray(forward[ys[j]])
        given[f"dy{j}"] = np.random.default_rng(j).standard_normal(y.shape).astype(y.dtype)
    ops, d_inputs = operator_gradient(op_def, {j: f"dy{j}" for j in outputs})

    def check(found: Mapping[str, Any], how: str, rtol: float, atol: float) -> None:
        if not op.draws:
            want = interpret([op_def], _widened(given))
            _compare(op, [found[y] for y in ys], [want[y] for y in ys], rtol, atol, how)
        want = interpret(ops, _widened(found))
        for i in wrt:
            got, right = (dense_gradient(d_inputs[i], blobs, np.shape(inputs[i])) for blobs in (found, want))
            np.testing.assert_allclose(got, right, rtol, atol, err_msg=f"{op}: gradient of input {i}, {how}")

    check(interpret([op_def, *ops], _widened(given), GPU), "plain", 1e-6, 1e-8)
    check(_in_a_net([op_def, *ops], given), "in a net", 1e-3, 1e-4)
    if emulated_gpu.active() and op.type in cudnn.KERNELS:
        from cudnn_double import cudnn_double

        with cudnn_double():
            check(_in_a_net([op_def, *ops], given), "in a net with cuDNN", 1e-3, 1e-4)


def _widened(blobs: Mapping[str, Any]) -> dict[str, Any]:
    """Return blobs with floating-point numbers in float64."""
    return {name: np.asarray(x, np.float64) if np.asarray(x).dtype.kind == "f" else x for name, x in blobs.items()}


def _in_a_net(ops: Sequence[OperatorDef], given: Mapping[str, Any]) -> dict[str, Any]:
    """Run three steps of a net on a GPU, of which the last may be a CUDA graph; return all blobs that it keeps.

    What gradient operators pass to one another is not kept, and may be computed within a fused kernel.
    """
    from netbuilder.runtime import Workspace

    workspace, net = Workspace(), placed(NetDef(name="net", op=ops), GPU)
    for step in range(3):
        for name, value in given.items():
            workspace.feed(name, value, net.op[0].device_option)
        if not step:
            workspace.create_net(net, **({} if ops[1:] else {"observable": [*ops[0].output]}))
        workspace.run_net(net.name)
    written = {blob: i for i, op in enumerate(ops[1:]) for blob in op.output}  # last
    passed = {blob for i, op in enumerate(ops[1:]) for blob in op.input if written.get(blob, i) < i}
    return {name: workspace.fetch(name) for name in workspace.blobs() if name not in passed}


def dense_gradient(where: str | Sparse, blobs: Mapping[str, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return a gradient as an array; a sparse one is added up."""
    if isinstance(where, str):
        return np.asarray(blobs[where])
    dense = np.zeros(tuple(shape))
    np.add.at(dense, blobs[where.indices], blobs[where.values])
    return dense


def check_inplace(op: Operator, inputs: Arrays, pair: tuple[int, int], device: str = CPU) -> None:
    """Check that output ``pair[1]`` over input ``pair[0]`` gives what separate blobs give, in a workspace."""
    from netbuilder.runtime import Workspace

    op.with_arity(len(inputs), op.n_out)
    xs, ys = names_of("x", len(inputs)), names_of("y", op.n_out)
    separate = run_plain(op, inputs, device)
    ys = list(_placed(op, xs, ys).output)
    ys[pair[1]] = xs[pair[0]]
    for engines in ((), None) if device == CPU else (None,):
        workspace = Workspace(engines=engines)
        for name, value in zip(xs, inputs):
            workspace.feed(name, value)
        workspace.run_operator_once(_on_device(encode(op, xs, ys), device))
        np.testing.assert_allclose(
            np.asarray(workspace.fetch(ys[pair[1]])), separate[pair[1]], 1e-5, 1e-6, err_msg=f"{op} in place {pair}"
        )
