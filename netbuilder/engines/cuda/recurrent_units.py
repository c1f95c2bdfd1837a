"""LSTMUnit, GRUUnit and their gradients as one kernel each, a thread for each element of the state.

The number of the step is an argument of the launch: in a recurrent net it is the same in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import c_type, with_prelude
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.extensions import CAPTURABLE
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["gru_unit", "gru_unit_gradient", "lstm_unit", "lstm_unit_gradient"]

_LSTM = """
const T made = SIGMOID(f) * c + SIGMOID(i) * TANH(g);
hidden[k] = runs ? SIGMOID(o) * TANH(made) : KEPT(h);
cell[k] = runs ? made : KEPT(c);
"""
_LSTM_GRADIENT = """
const T si = SIGMOID(i), sf = SIGMOID(f), so = SIGMOID(o), tg = TANH(g);
const T squashed = TANH(sf * c + si * tg);
const T through = dc + dh * so * (1 - squashed * squashed);
d_hidden[k] = runs ? (T)0 : KEPT(dh);
d_cell[k] = runs ? through * sf : KEPT(dc);
d_gates[at] = runs ? through * tg * si * (1 - si) : (T)0;
d_gates[at + width] = runs ? through * c * sf * (1 - sf) : (T)0;
d_gates[at + 2 * width] = runs ? dh * squashed * so * (1 - so) : (T)0;
d_gates[at + 3 * width] = runs ? through * si * (1 - tg * tg) : (T)0;
"""
_GRU = """
const T su = SIGMOID(u);
hidden[k] = runs ? su * h + (1 - su) * TANH(o) : KEPT(h);
"""
_GRU_GRADIENT = """
const T su = SIGMOID(u), to = TANH(o);
d_hidden[k] = runs ? dh * su : KEPT(dh);
d_gates[at] = 0;
d_gates[at + width] = runs ? dh * (h - to) * su * (1 - su) : (T)0;
d_gates[at + 2 * width] = runs ? dh * (1 - su) * (1 - to * to) : (T)0;
"""


def _gates(op: Any) -> list[str]:
    """Return the statements that read an element's gates."""
    if op.gates == 3:
        return ["const T u = gates[at + width], o = gates[at + 2 * width];"]
    return [
        "const T i = gates[at], o = gates[at + 2 * width], g = gates[at + 3 * width];",
        f"const T f = gates[at + width] + (T){float(op.forget_bias).hex()};",
    ]


def _kernel(op: Any, title: str, state: np.dtype[Any], lengths: Any, text: str, names: dict[str, str]) -> Kernel:
    """Return a kernel.

    Args:
        op: the operator.
        title: of the kernel.
        state: the element type of states.
        lengths: that of the lengths of sequences; None: there are none.
        text: the statements for an element.
        names: the arrays that have the states' shape and are read, and the names of their elements.
    """
    kind = c_type(state)
    states = ("hidden", "cell")[: op.states]
    outputs = (*(f"d_{name}" for name in states), "d_gates") if op.backward else states
    parameters = [f"const {kind}* {name}" for name in (*names, "gates")]
    parameters += [f"const {c_type(lengths)}* lengths"] if lengths is not None else []
    parameters += [f"{kind}* {name}" for name in outputs]
    tanh = "tanh" if state.char == "d" else "tanhf"
    lines = [
        f"typedef {kind} T;",
        f"__device__ __forceinline__ T TANH(T x) {{ return {tanh}(x); }}",
        "__device__ __forceinline__ T SIGMOID(T x) { return (TANH(x * (T)0.5) + 1) * (T)0.5; }",
        f"__device__ __forceinline__ T KEPT(T x) {{ return {'0' if op.drop_states else 'x'}; }}",
        f'extern "C" __global__ void NAME({", ".join(parameters)}, i64 size, i64 samples, i64 width, i64 step) {{',
        f"const i64 k = blockIdx.x * (i64){THREADS} + threadIdx.x;",
        "if (k >= size) return;",
        f"const i64 row = k / width, at = row * {op.gates} * width + k % width;",
        *_gates(op),
        *(f"const T {element} = {name}[k];" for name, element in names.items()),
        f"const bool runs = {'true' if lengths is None else '(i64)lengths[row % samples] > step'};",
        text,
        "}",
    ]
    return Kernel(title, with_prelude("\n".join(lines)))


def _prepared(op: Any, title: str, text: str, specs: Sequence[TensorSpec], read: dict[int, str]) -> Prepared | None:
    """Prepare a kernel; ``read`` has the names of elements of the inputs with the states' shape."""
    state = specs[0].plain
    if state.dtype.char not in "fd":
        return None
    lengths = specs[op.states + 1].dtype if op.sequence_lengths else None
    kernel = _kernel(op, title, state.dtype, lengths, text, {f"x{i}": name for i, name in read.items()})
    arrays = [*read, op.states, *([op.states + 1] if op.sequence_lengths else [])]
    outs = op.infer(*(spec.plain for spec in specs))
    extents = [np.int64(n) for n in (state.size, state.shape[-2], state.shape[-1])]
    blocks = -(-state.size // THREADS)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        fixed = (*(inputs[i] for i in arrays), *outputs, *extents)
        timestep = inputs[op.timestep_index]
        return lambda: kernel(blocks, (*fixed, np.int64(timestep.item())))

    inplace = [(i, j) for i in read for j in range(op.states)] + ([(op.states, op.states)] if op.backward else [])
    used = {*arrays, op.timestep_index}
    expected = [spec.plain if i in used else None for i, spec in enumerate(specs)]
    return Prepared(expected, outs, bind, inplace=inplace, name=f"cuda {kernel.name}", extensions=CAPTURABLE)


def lstm_unit(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare LSTMUnit."""
    return _prepared(op, "lstm_unit", _LSTM, specs, {0: "h", 1: "c"})


def lstm_unit_gradient(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare LSTMUnitGradient."""
    count = len(specs)
    return _prepared(op, "lstm_unit_gradient", _LSTM_GRADIENT, specs, {1: "c", count - 2: "dh", count - 1: "dc"})


def gru_unit(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare GRUUnit."""
    return _prepared(op, "gru_unit", _GRU, specs, {0: "h"})


def gru_unit_gradient(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare GRUUnitGradient."""
    return _prepared(op, "gru_unit_gradient", _GRU_GRADIENT, specs, {0: "h", len(specs) - 1: "dh"})
