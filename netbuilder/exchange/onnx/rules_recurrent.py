"""Export of recurrent nets: cells that ONNX has become LSTM, GRU and RNN, any other step net the body of a Scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.graph import Graph, rule
from netbuilder.exchange.onnx.library import onnx_library
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.renaming import rename_blobs
from netbuilder.proto import NetDef, OperatorError
from netbuilder.proto.late_dataclass import dataclass

__all__: list[str] = []

Value = Any
"""A value of a step net: the name of a blob that it reads, or (number of the operator, number of the output)."""

# -- cells ----------------------------------------------------------------------------------------


def _gate(k: int, x: Any, state: Any = "h") -> Any:
    """A projection of the state added to what comes from the input."""
    return ("Sum", ("FC", state, f"W{k}", f"B{k}"), x)


def _mask(compare: str) -> Any:
    return ("StopGradient", ("Cast", (compare, "lengths", ("CopyFromCPUInput", "t"))))


_RESET, _UPDATE = (_gate(k, (f"Split.{k}", "x")) for k in range(2))
_OUTPUT = _gate(2, ("Split.2", "x"), ("Mul", ("Sigmoid", _RESET), "h"))
_OUTPUT_RESET_LATER = ("Sum", ("Mul", ("Sigmoid", _RESET), ("FC", "h", "W2", "B2")), ("Split.2", "x"))


def _gru(output: Any, *lengths: str) -> Any:
    return ("GRUUnit", "h", ("Concat", _RESET, _UPDATE, output), *lengths, "t")


# Kind, arguments, the order of the gates in ONNX, and the operators that compute the state. A text in their place is
# the same value wherever it is; "A.1" is the second output of an A.
_CELLS: list[tuple[str, dict[str, Any], tuple[int, ...], Any]] = [
    *(
        ("LSTM", {}, (0, 2, 1, 3), ("LSTMUnit", "h", "c", _gate(0, "x"), *lengths, "t"))
        for lengths in ((), ("lengths",))
    ),
    *(
        ("GRU", {"linear_before_reset": later}, (1, 0, 2), _gru(output, *lengths))
        for later, output in enumerate((_OUTPUT, _OUTPUT_RESET_LATER))
        for lengths in ((), ("lengths",))
    ),
    *(
        ("RNN", {"activations": [kind], **more}, (0,), pattern)
        for kind in ("Tanh", "Relu")
        for new in ((kind, _gate(0, "x")),)
        for more, pattern in (
            ({}, new),
            ({"drop": True}, ("Mul", new, _mask("GT"))),
            ({}, ("Add", ("Mul", new, _mask("GT")), ("Mul", "h", _mask("LE")))),
        )
    ),
]
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "FC": {"axis": 2, "axis_w": 1},
    "Split": {"axis": 2, "split": ()},
    "Concat": {"axis": 2},
}


@dataclass(frozen=True)
class _Cell:
    """A cell in a step net: what the names in its row of ``_CELLS`` are, and the numbers of its states."""

    kind: str
    arguments: dict[str, Any]
    order: tuple[int, ...]
    found: dict[str, Value]
    root: Any
    states: tuple[int, ...]


class _Step:
    """The step net of an operator as expressions."""

    def __init__(self, op: Any) -> None:
        self.op, self.ops = op, op.step.ops
        self.last: dict[str, Value] = {}
        self.read: list[list[Value]] = []
        for i, each in enumerate(self.ops):
            self.read.append([self.last.get(name, name) for name in each.inputs])
            self.last.update({name: (i, k) for k, name in enumerate(each.outputs)})
        self.links = [link for link in op.links if link.window == 1]
        numbers = {state.name: number for number, state in enumerate(op.states)}
        self.before = {each.internal: numbers[each.external] for each in self._of_states(0)}
        self.after = {numbers[each.external]: self.last.get(each.internal) for each in self._of_states(1)}
        self.sequences = {
            each.internal: op.forward_inputs.index(each.external)
            for each in self.links
            if each.external in op.forward_inputs and not each.offset
        }

    @property
    def is_plain(self) -> bool:
        """Whether a step reads and writes one row of each state and sequence."""
        known = len(self.before) + len(self.after) + len(self.sequences)
        return known == len(self.op.links) and len(self.after) == len(self.op.states)

    def _of_states(self, offset: int) -> list[Any]:
        return [each for each in self.links if each.external in self.op.recurrent_states and each.offset == offset]

    def cells(self) -> list[_Cell] | None:
        """Return the cells that compute all states, in the order of the step net; None if there is another operator."""
        made = [cell for number in range(len(self.op.states)) if (cell := self._cell(number)) is not None]
        if sorted(n for cell in made for n in cell.states) != list(range(len(self.op.states))):
            return None
        return sorted(made, key=lambda cell: int(cell.root[0]))

    def _cell(self, number: int) -> _Cell | None:
        root = self.after.get(number)
        if not isinstance(root, tuple) or root[1] != 0:
            return None
        for kind, arguments, order, pattern in _CELLS:
            found: dict[str, Value] = {}
            if not self._matches(pattern, root, found) or self.before.get(found["h"]) != number:
                continue
            states: tuple[int, ...] = (number,)
            if "c" in found:
                cell = next((n for n, value in self.after.items() if value == (root[0], 1)), None)
                if cell is None or self.before.get(found["c"]) != cell:
                    continue
                states = (number, cell)
            if found.get("t", self.op.timestep) == self.op.timestep:
                return _Cell(kind, arguments, order, found, root, states)
        return None

    def _matches(self, pattern: Any, value: Value, found: dict[str, Value]) -> bool:
        if isinstance(pattern, str):
            return bool(found.setdefault(pattern, value) == value)
        kind, _, output = pattern[0].partition(".")
        if not isinstance(value, tuple) or value[1] != int(output or 0):
            return False
        op, read = self.ops[value[0]].op, self.read[value[0]]
        if op.type != kind or len(read) != len(pattern) - 1:
            return False
        if any(getattr(op, name) != given for name, given in _ARGUMENTS.get(kind, {}).items()):
            return False
        if kind in ("Mul", "Add") and op.broadcast and op.axis != 1:
            return False
        return all(self._matches(part, each, found) for part, each in zip(pattern[1:], read))

    def projection(self, value: Value) -> tuple[Value, str, str] | None:
        """Return what an FC in the step net reads, and the names of its parameters; None for another value."""
        found: dict[str, Value] = {}
        if not self._matches(("FC", "x", "W", "B"), value, found):
            return None
        return found["x"], found["W"], found["B"]


@rule("RecurrentNetwork")
def _recurrent_network(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if y[-1]:
        raise OperatorError("RecurrentNetwork: its last output, what the gradient reads, is used")
    step = _Step(op)
    if not step.is_plain:
        raise OperatorError("RecurrentNetwork: a step reads or writes several rows of a state, or of a sequence")
    firsts = [_first(g, op, x, number, y) for number in range(len(op.states))]
    if not _as_layers(g, step, x, y, firsts):
        _as_scan(g, step, x, y, firsts)


def _first(g: Graph, op: Any, x: Sequence[str], number: int, y: Sequence[str]) -> str:
    """Return the initial value of a state, (1, samples, ...)."""
    name, samples = x[op.states[number].initial], g.spec(x[0]).shape[1]
    spec = g.spec(name)
    shape = (1, *(spec.shape[1:] if spec.ndim > 2 else (samples, spec.shape[-1])))
    if spec.shape == shape:
        return name
    if spec.ndim > 2:
        raise OperatorError(f"RecurrentNetwork: the initial value of a state has {spec.shape[0]} rows, not one")
    made = g.between("Expand", [name, g.constant(f"{_hint(y)}/shape", shape, np.int64)], f"{_hint(y)}/first")
    g.specs[made] = TensorSpec(shape, spec.dtype)
    return made


def _hint(y: Sequence[str]) -> str:
    return next(filter(None, y))


def _write_outputs(g: Graph, op: Any, number: int, rows: dict[str, str], y: Sequence[str]) -> None:
    """Write the outputs that are rows of a state: ``rows`` has the "first" one, "all" later ones and the "last"."""
    aliases = op.output_aliases(op.output_names)
    for target, name in zip(y, op.output_names[:-1]):
        alias = aliases[name]
        if not target or alias.source != op.states[number].name:
            continue
        if alias.offset in (1, -1):
            g.add("Identity", [rows["all" if alias.offset == 1 else "last"]], [target])
            continue
        whole = g.between("Concat", [rows["first"], rows["all"]], f"{target}/whole", axis=0)
        ends = [alias.offset, np.iinfo(np.int64).max, 0]
        g.add("Slice", [whole, *(g.constant(f"{target}/bound", [n], np.int64) for n in ends)], [target])


# -- as LSTM, GRU and RNN --------------------------------------------------------------------------


def _as_layers(g: Graph, step: _Step, x: Sequence[str], y: Sequence[str], firsts: Sequence[str]) -> bool:
    """Write the step net as ONNX's layers, one after the other; return whether it consists of such."""
    op, cells = step.op, step.cells()
    inputs = dict(zip(op.forward_inputs, x))
    aliases = [op.output_aliases(op.output_names)[name] for name, used in zip(op.output_names[:-1], y) if used]
    if cells is None or not _only_lasts(op, cells, aliases):
        return False
    rows: dict[Any, str] = {}  # the values of a hidden state in all steps, by the root of the cell
    plans = []
    for cell in cells:
        given = _projected(g, step, cell, inputs, {each.root for each in cells})
        names = [cell.found[name] for name in sorted(cell.found) if name[0] in "WB"]
        if given is None or not all(isinstance(n, str) and g.is_constant(inputs.get(n, "")) for n in names):
            return False
        plans.append(given)
    for cell, (source, w, b) in zip(cells, plans):
        made = _layer(g, step, cell, rows.get(source, source), w, b, inputs, [firsts[n] for n in cell.states], y)
        rows[cell.root] = made["all"]
        for number, name in zip(cell.states, ("", "cell ")):
            own = {"first": firsts[number], "all": made.get("all", ""), "last": made[f"{name}last"]}
            _write_outputs(g, op, number, own, y)
    return True


def _only_lasts(op: Any, cells: Sequence[_Cell], aliases: Sequence[Any]) -> bool:
    """Whether only the last of the cell states are read, the only ones that ONNX's LSTM returns."""
    names = {op.states[n].name for cell in cells for n in cell.states[1:]}
    return all(alias.offset == -1 for alias in aliases if alias.source in names)


def _projected(
    g: Graph, step: _Step, cell: _Cell, inputs: dict[str, str], roots: set[Any]
) -> tuple[Any, np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """Return the input of a layer, a name or the root of an earlier cell, with the weights and biases for its gates.

    Without a projection of its own, the gates are the input: the weights are ones.
    """
    value = cell.found["x"]
    if isinstance(value, str) and value in step.sequences:
        sequence = inputs[step.op.forward_inputs[step.sequences[value]]]
        op, read = g.makers.get(sequence, (None, []))
        if op is not None and op.type == "FC" and (op.axis, op.axis_w) == (2, 1) and all(map(g.is_constant, read[1:])):
            weights, biases = (g.constant_of(name, op, "a parameter") for name in read[1:])
            return read[0], weights, biases
        width = g.spec(sequence).shape[-1]
        dtype = g.spec(sequence).dtype
        return sequence, np.eye(width, dtype=dtype), np.zeros(width, dtype)
    if (found := step.projection(value)) is None or found[0] not in roots:
        return None
    names = [inputs.get(name, "") for name in found[1:]]
    if not all(map(g.is_constant, names)):
        return None
    return found[0], *(g.constant_of(name, step.op, "a parameter") for name in names)


def _layer(
    g: Graph, step: _Step, cell: _Cell, x: str, w: Any, b: Any, inputs: dict[str, str], firsts: Sequence[str],
    y: Sequence[str],
) -> dict[str, str]:  # fmt: skip
    """Write one layer; return the states in "all" steps, the "last" one, and the "cell last" one."""
    op, hint, found = step.ops[cell.root[0]].op, _hint(y), cell.found

    def joined(letter: str) -> Any:
        names = [inputs[found[f"{letter}{k}"]] for k in range(3) if f"{letter}{k}" in found]
        return np.concatenate([g.constant_of(name, step.op, "a parameter") for name in names])

    def ordered(array: Any) -> Any:
        parts = np.split(array, len(cell.order))
        return np.concatenate([parts[k] for k in cell.order])

    r, bias = joined("W"), joined("B")
    hidden = r.shape[1]
    if cell.kind == "LSTM" and op.forget_bias:
        bias = bias + np.repeat([0, op.forget_bias, 0, 0], hidden).astype(bias.dtype)
    weights = {"W": ordered(w), "R": ordered(r), "B": np.concatenate([ordered(b), ordered(bias)])}
    constants = [g.constant(f"{hint}/{name}", value[None]) for name, value in weights.items()]
    lengths = inputs[found["lengths"]] if "lengths" in found else ""
    counts = lengths
    if lengths and g.spec(lengths).dtype != np.int32:
        counts = g.between("Cast", [lengths], f"{hint}/lengths", to=6)
    arguments = {name: value for name, value in cell.arguments.items() if name != "drop"}
    made = [g.fresh(f"{hint}/{name}") for name in ("steps", "last", "cell_last")[: 1 + len(firsts)]]
    g.add(cell.kind, [x, *constants, counts, *firsts], made, hidden_size=hidden, **arguments)
    axis = g.constant(f"{hint}/direction", [1], np.int64)
    rows = {"all": g.between("Squeeze", [made[0], axis], f"{hint}/all")}
    rows |= dict(zip(("last", "cell last"), made[1:]))
    if lengths:
        drop = bool(cell.arguments.get("drop", getattr(op, "drop_states", False)))
        _after_the_end(g, rows, x, lengths, firsts, drop, hint)
    return rows


def _after_the_end(
    g: Graph, rows: dict[str, str], x: str, lengths: str, firsts: Sequence[str], drop: bool, hint: str
) -> None:
    """Change what ONNX gives after the end of a sequence, zeros in all steps and the last states, to what is here."""

    def number(value: Any) -> str:
        return g.constant(f"{hint}/number", value, np.int64)

    column = g.between("Unsqueeze", [g.between("Cast", [lengths], f"{hint}/wide", to=7), number([1])], f"{hint}/column")
    some = g.between("Greater", [column, number(0)], f"{hint}/some")
    for name, first in zip(("last", "cell last"), firsts):  # of an empty sequence it is the first one
        rows[name] = g.between("Where", [some, rows[name], first], f"{hint}/last")
    steps = g.between("Gather", [g.between("Shape", [x], f"{hint}/extents"), number(0)], f"{hint}/count", axis=0)
    if drop:
        full = g.between("Not", [g.between("Less", [column, steps], f"{hint}/short")], f"{hint}/full")
        zero = g.constant(f"{hint}/zero", 0, g.spec(firsts[0]).dtype)
        rows |= {name: g.between("Where", [full, rows[name], zero], f"{hint}/kept") for name in rows if name != "all"}
        return
    times = g.between("Range", [number(0), steps, number(1)], f"{hint}/times")
    times = g.between("Unsqueeze", [times, number([1, 2])], f"{hint}/times")
    running = g.between("Less", [times, column], f"{hint}/running")
    rows["all"] = g.between("Where", [running, rows["all"], rows["last"]], f"{hint}/held")


# -- as Scan --------------------------------------------------------------------------------------


def _as_scan(g: Graph, step: _Step, x: Sequence[str], y: Sequence[str], firsts: Sequence[str]) -> None:
    """Write the step net as the body of a Scan, whose states are the step's number and the states of the net."""
    op, hint = step.op, _hint(y)
    captured = {name: value for name, value in zip(op.forward_inputs, x) if name not in op.linked}
    sequences = [(name, x[index]) for name, index in step.sequences.items()]
    if len({g.spec(value).shape[0] for _, value in sequences}) > 1:
        raise OperatorError("RecurrentNetwork: its sequences differ in their numbers of steps")

    def inner(name: str) -> str:
        return captured.get(name) or f"{hint}/step/{name}"

    net = NetDef()
    net.CopyFrom(op.step_net)
    rename_blobs(net, inner)
    states = {number: inner(name) for name, number in step.before.items()}
    after = {number: each.internal for number, each in _writers(step)}
    specs = {value: g.spec(value) for value in captured.values()}
    specs |= {inner(name): _row(g.spec(value)) for name, value in sequences}
    specs |= {name: g.spec(firsts[number]) for number, name in states.items()}
    specs[inner(op.timestep)] = TensorSpec((1,), np.dtype(np.int32))
    order = range(len(op.states))
    body = g.inner(net, specs, [inner(after[number]) for number in order])
    infos: list[list[Any]] = [[], []]

    def info(name: str, dtype: Any, into: int) -> str:
        helper = onnx_library().helper
        infos[into].append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None))
        return name

    axis = body.constant(f"{hint}/step/axis", [0], np.int64)
    info(inner(op.timestep), np.int32, 0)
    for number in order:
        info(states.get(number, f"{hint}/step/state_{number}"), g.spec(firsts[number]).dtype, 0)
    before = len(body.nodes)
    for name, value in sequences:
        row = info(f"{inner(name)}/row", g.spec(value).dtype, 0)
        body.add("Unsqueeze", [row, axis], [inner(name)])
    body.nodes[:] = [*body.nodes[before:], *body.nodes[:before]]
    one = body.constant(f"{hint}/step/one", [1], np.int32)
    info(body.between("Add", [inner(op.timestep), one], f"{hint}/step/next"), np.int32, 1)
    made = [inner(after[number]) for number in order]
    for number, name in enumerate(made):
        info(body.between("Identity", [name], f"{hint}/step/after"), g.spec(firsts[number]).dtype, 1)
    for number, name in enumerate(made):
        info(body.between("Squeeze", [name, axis], f"{hint}/step/rows"), g.spec(firsts[number]).dtype, 1)
    lasts, alls = ([g.fresh(f"{hint}/{name}") for _ in order] for name in ("last", "all"))
    zero = g.constant(f"{hint}/start", [0], np.int32)
    g.add(
        "Scan", [zero, *firsts, *(value for _, value in sequences)], [g.fresh(f"{hint}/count"), *lasts, *alls],
        body=g.as_body(body, *infos), num_scan_inputs=len(sequences),
    )  # fmt: skip
    for number in order:
        _write_outputs(g, op, number, {"first": firsts[number], "all": alls[number], "last": lasts[number]}, y)


def _writers(step: _Step) -> list[tuple[int, Any]]:
    numbers = {state.name: number for number, state in enumerate(step.op.states)}
    return [(numbers[each.external], each) for each in step._of_states(1)]


def _row(spec: TensorSpec) -> TensorSpec:
    return spec.with_shape((1, *spec.shape[1:]))


# -- single operators -----------------------------------------------------------------------------


@rule("LSTMUnit", "GRUUnit")
def _unit(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    """Write one step of a cell by its formula."""
    hint, dtype, states = _hint(y), g.spec(x[0]).dtype, op.states
    width, axis = g.spec(x[0]).shape[-1], g.spec(x[0]).ndim - 1
    parts = [g.fresh(f"{hint}/gate") for _ in range(op.gates)]
    g.add("Split", [x[states], g.constant(f"{hint}/widths", [width] * op.gates, np.int64)], parts, axis=axis)

    def of(kind: str, *inputs: str) -> str:
        return g.between(kind, inputs, f"{hint}/{kind.lower()}")

    if op.type == "GRUUnit":
        update, one = of("Sigmoid", parts[1]), g.constant(f"{hint}/one", 1, dtype)
        kept, new = of("Mul", update, x[0]), of("Mul", of("Sub", one, update), of("Tanh", parts[2]))
        after = [of("Add", kept, new)]
    else:
        forget = of("Add", parts[1], g.constant(f"{hint}/forget_bias", op.forget_bias, dtype))
        kept, new = of("Mul", of("Sigmoid", forget), x[1]), of("Mul", of("Sigmoid", parts[0]), of("Tanh", parts[3]))
        cell = of("Add", kept, new)
        after = [of("Mul", of("Sigmoid", parts[2]), of("Tanh", cell)), cell]
    if op.sequence_lengths:
        lengths, time = (g.between("Cast", [x[states + i]], f"{hint}/number", to=7) for i in (1, 2))
        column = of("Unsqueeze", of("Greater", lengths, time), g.constant(f"{hint}/axis", [1], np.int64))
        ended = [g.constant(f"{hint}/zero", 0, dtype)] * states if op.drop_states else x[:states]
        after = [of("Where", column, new, old) for new, old in zip(after, ended)]
    for name, value in zip(y, after):
        if name:
            g.add("Identity", [value], [name])


@rule("InferenceLSTM")
def _inference_lstm(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    hint, hidden, d = _hint(y), g.spec(x[1]).shape[2], op.directions
    groups = op.groups([g.constant_of(name, op, "a parameter") for name in x[3:]])
    rows = g.between("Transpose", [x[0]], f"{hint}/rows", perm=[1, 0, 2]) if op.batch_first else x[0]
    lasts: list[list[str]] = [[], []]

    def ordered(array: Any) -> Any:
        i, f, c, o = np.split(array, 4)
        return np.concatenate([i, o, f, c])

    for layer in range(op.num_layers):
        own = [[ordered(each) for each in group] for group in groups[layer * d : (layer + 1) * d]]
        params = [np.stack([each[k] for each in own]) for k in range(2)]
        params += [np.stack([np.concatenate(each[2:]) for each in own])] if op.has_biases else []
        names = [g.constant(f"{hint}/{name}", value) for name, value in zip("WRB", params)]
        bounds = [g.constant(f"{hint}/bound", [n], np.int64) for n in (layer * d, (layer + 1) * d, 0)]
        first = [g.between("Slice", [name, *bounds], f"{hint}/first") for name in x[1:3]]
        made = [g.fresh(f"{hint}/{name}") for name in ("steps", "last", "cell_last")]
        given = [rows, *names, *[""] * (3 - len(names)), "", *first]
        g.add("LSTM", given, made, hidden_size=hidden, direction="bidirectional" if d == 2 else "forward")
        moved = g.between("Transpose", made[:1], f"{hint}/moved", perm=[0, 2, 1, 3])
        rows = g.between("Reshape", [moved, g.constant(f"{hint}/shape", [0, 0, d * hidden], np.int64)], f"{hint}/rows")
        for each, name in zip(lasts, made[1:]):
            each.append(name)
    if y[0]:
        g.add("Transpose", [rows], [y[0]], perm=[1, 0, 2] if op.batch_first else [0, 1, 2])
    for target, parts in zip(y[1:], lasts):
        if target:
            g.add("Concat", parts, [target], axis=0)


@rule("ONNXLSTM", "ONNXGRU", "ONNXRNN")
def _onnx_layer(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    kind, named = op.type.removeprefix("ONNX"), dict(zip(op.given, x[3:]))
    optional = [named.get(name, "") for name in op.optional]
    while optional and not optional[-1]:
        optional.pop()
    if op.layout and g.opset < 14:
        raise OperatorError(f"{op.type} with layout=1 needs opset 14, got {g.opset}")
    g.add(
        kind, [*x[:3], *optional], list(y), hidden_size=op.hidden_size, direction=op.direction,
        activations=list(op.activations) or None, clip=op.clip or None, layout=op.layout or None,
        linear_before_reset=1 if getattr(op, "linear_before_reset", False) else None,
    )  # fmt: skip
