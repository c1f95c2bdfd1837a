"""Export of products, softmax, normalizations and fully connected layers to ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.graph import Graph, rule
from netbuilder.proto import OperatorError

__all__: list[str] = []


def _as_rows(g: Graph, x: str, axis: int, hint: str) -> str:
    """Return ``x`` flattened to a matrix at ``axis``."""
    spec = g.spec(x)
    if spec.ndim == 2 and axis == 1:
        return x
    return g.between("Flatten", [x], f"{hint}/rows", axis=axis)


@rule("FC", "FCTransposed")
def _fc(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    w, out = g.spec(x[1]), g.spec(y[0])
    weights = x[1] if w.ndim == 2 else g.between("Flatten", [x[1]], f"{y[0]}/weights", axis=op.axis_w)
    rows = _as_rows(g, x[0], op.axis, y[0])
    transposed = 1 if op.type == "FC" else 0
    if out.ndim == 2:
        g.add("Gemm", [rows, weights, x[2]], [y[0]], transB=transposed)
        return
    made = g.between("Gemm", [rows, weights, x[2]], f"{y[0]}/matrix", transB=transposed)
    shape = g.constant(f"{y[0]}/shape", [-1, *out.shape[1:]], np.int64)
    g.add("Reshape", [made, shape], [y[0]])


@rule("MatMul")
def _matmul(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    a, b = _as_rows(g, x[0], op.axis_a, f"{y[0]}/a"), _as_rows(g, x[1], op.axis_b, f"{y[0]}/b")
    if not (op.trans_a or op.trans_b):
        g.add("MatMul", [a, b], [y[0]])
    else:
        g.add("Gemm", [a, b], [y[0]], transA=int(op.trans_a), transB=int(op.trans_b))


@rule("BatchMatMul")
def _batch_matmul(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    sides = []
    for name, transposed in ((x[0], op.trans_a), (x[1], op.trans_b)):
        ndim = g.spec(name).ndim
        order = [*range(ndim - 2), ndim - 1, ndim - 2]
        sides.append(g.between("Transpose", [name], f"{name}/transposed", perm=order) if transposed else name)
    g.add("MatMul", sides, [y[0]])


@rule("Softmax")
def _softmax(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    ndim = g.spec(x[0]).ndim
    axis = op.axis % ndim if ndim else 0
    if axis == ndim - 1:
        g.add("Softmax", [x[0]], [y[0]], axis=-1)
        return
    # Caffe2's Softmax normalizes over all axes from ``axis`` on together.
    rows = g.between("Flatten", [x[0]], f"{y[0]}/rows", axis=axis)
    made = g.between("Softmax", [rows], f"{y[0]}/softmax", axis=-1)
    _reshape_like(g, made, x[0], y[0])


@rule("LogSoftmax")
def _log_softmax(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("LogSoftmax", [x[0]], [y[0]], axis=op.axis)


@rule("Attention")
def _attention(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    (_, heads, t, d), (_, groups, s, _), dtype = g.spec(x[0]).shape, g.spec(x[1]).shape, g.spec(x[0]).dtype
    q, hint = x[0], y[0]

    def regroup(value: str, *shape: int) -> str:
        if heads == groups:
            return value
        return g.between("Reshape", [value, g.constant(f"{hint}/shape", [-1, *shape], np.int64)], f"{hint}/grouped")

    q = regroup(g.between("Mul", [q, g.constant(f"{hint}/scale", op.factor(d), dtype)], f"{hint}/scaled"),
                groups, heads // groups * t, d)  # fmt: skip
    keys = g.between("Transpose", [x[1]], f"{hint}/keys", perm=[0, 1, 3, 2])
    scores = regroup(g.between("MatMul", [q, keys], f"{hint}/scores"), heads, t, s)
    seen = None
    if op.causal:
        seen = g.constant(f"{hint}/causal", np.tri(t, s, s - t, dtype=bool))
    if len(x) > 3 and g.spec(x[3]).dtype.kind == "b":
        seen = x[3] if seen is None else g.between("And", [x[3], seen], f"{hint}/seen")
    elif len(x) > 3:
        scores = g.between("Add", [scores, x[3]], f"{hint}/masked")
    if seen is not None:
        least = np.finfo(dtype).min if op.zero_weights == "unseen" else -np.inf
        lowest = g.constant(f"{hint}/lowest", least, dtype)
        scores = g.between("Where", [seen, scores, lowest], f"{hint}/visible")
    weights = g.between("Softmax", [scores], f"{hint}/weights", axis=-1)
    if seen is not None and op.zero_weights == "unseen":  # a query that sees no key gets zeros
        weights = g.between("Where", [seen, weights, g.constant(f"{hint}/zero", 0, dtype)], f"{hint}/kept")
    if op.zero_weights == "nan":
        undefined = g.between("IsNaN", [weights], f"{hint}/undefined")
        weights = g.between("Where", [undefined, g.constant(f"{hint}/zero", 0, dtype), weights], f"{hint}/kept")
    weights = regroup(weights, groups, heads // groups * t, s)
    if heads == groups:
        g.add("MatMul", [weights, x[2]], [hint])
        return
    made = g.between("MatMul", [weights, x[2]], f"{hint}/by_group")
    shape = g.constant(f"{hint}/shape", [-1, heads, t, g.spec(x[2]).shape[3]], np.int64)
    g.add("Reshape", [made, shape], [hint])


def _reshape_like(g: Graph, made: str, like: str, y: str) -> None:
    shape = g.constant(f"{y}/shape", [-1, *g.spec(like).shape[1:]], np.int64)
    g.add("Reshape", [made, shape], [y])


@rule("LayerNorm", "C10LayerNorm_DontUseThisOpYet")
def _layer_norm(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if any(y[1:]):
        raise OperatorError("LayerNorm: mean or deviation is used, but only the first output can be exported")
    if g.opset < 17:
        raise OperatorError(f"LayerNorm needs opset 17, got {g.opset}")
    spec = g.spec(x[0])
    axis = op.axis % spec.ndim
    scale = x[1] if len(x) > 1 else g.constant(f"{y[0]}/scale", np.ones(spec.shape[axis:]), np.float32)
    inputs = [x[0], scale, *x[2:3]]
    g.add("LayerNormalization", inputs, [y[0]], axis=axis, epsilon=op.epsilon)


@rule("RMSNorm")
def _rms_norm(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if any(y[1:]):
        raise OperatorError("RMSNorm: the deviation is used, but only the first output can be exported")
    spec = g.spec(x[0])
    axes = list(range(op.axis % spec.ndim, spec.ndim))
    square = g.between("Mul", [x[0], x[0]], f"{y[0]}/square")
    if g.opset >= 18:
        mean = g.between("ReduceMean", [square, g.constant(f"{y[0]}/axes", axes, np.int64)], f"{y[0]}/mean")
    else:
        mean = g.between("ReduceMean", [square], f"{y[0]}/mean", axes=axes)
    raised = g.between("Add", [mean, g.constant(f"{y[0]}/eps", op.eps, spec.dtype)], f"{y[0]}/raised")
    normal = g.between("Div", [x[0], g.between("Sqrt", [raised], f"{y[0]}/root")], f"{y[0]}/normal")
    g.add("Add", [g.between("Mul", [normal, x[1]], f"{y[0]}/scaled"), x[2]], [y[0]])


@rule("Normalize", "NormalizeL1")
def _normalize(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    axis = op.axis % g.spec(x[0]).ndim
    g.add("LpNormalization", x[:1], [y[0]], axis=axis, p=1 if op.type == "NormalizeL1" else 2)


@rule("ElementwiseLinear")
def _elementwise_linear(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    spec = g.spec(x[0])
    shape = spec.shape[op.axis % spec.ndim :]
    reshaped = x[1:3]
    if len(shape) != 1:
        expected = g.constant(f"{y[0]}/features", shape, np.int64)
        reshaped = [g.between("Reshape", [name, expected], f"{y[0]}/{name}") for name in x[1:3]]
    g.add("Add", [g.between("Mul", [x[0], reshaped[0]], f"{y[0]}/scaled"), reshaped[1]], [y[0]])


@rule("Glu")
def _glu(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    spec = g.spec(x[0])
    axis = op.dim % spec.ndim
    extents = g.constant(f"{y[0]}/extents", [spec.shape[axis] // 2] * 2, np.int64)
    halves = [g.fresh(f"{y[0]}/{name}") for name in ("value", "gate")]
    g.add("Split", [x[0], extents], halves, axis=axis)
    g.add("Mul", [halves[0], g.between("Sigmoid", halves[1:], f"{y[0]}/sigmoid")], [y[0]])


@rule("TopK")
def _top_k(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if len(x) > 1 or any(y[2:]):
        raise OperatorError("TopK: k as an input, or the flattened indices, cannot be exported to ONNX")
    spec = g.spec(x[0])
    axis = op.axis % spec.ndim
    if op.k > spec.shape[axis]:
        raise OperatorError(f"TopK: k={op.k} of {spec.shape[axis]} elements; k must not be larger in ONNX")
    names = [name or g.fresh(f"{x[0]}/unused") for name in y[:2]]
    g.add("TopK", [x[0], g.constant(f"{names[0]}/k", [op.k], np.int64)], names, axis=axis)


@rule("Gather", "BatchGather")
def _gather(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Gather", x[:2], [y[0]], axis=op.indexed_axis(g.spec(x[0]).ndim))
