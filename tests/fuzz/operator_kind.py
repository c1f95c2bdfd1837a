"""Nets of one operator with random arguments, shapes, types and values, with oneDNN and without."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import golden_data
from fuzz.mutations import NUMBERS
from netbuilder.ops.core.operator import argument_fields
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import set_argument
from netbuilder.runtime import Workspace

__all__ = ["LEFT_OUT", "operator_trial"]

LEFT_OUT = {
    "Python": "calls the test's own functions",
    "PythonGradient": "calls the test's own functions",
    "LogFatal": "ends the net with the user's own error",
}
_EXTENTS = (0, 1, 1, 2, 3, 4, 5, 8, 17)
_DTYPES = (np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8, np.int8, np.int16, np.uint16, np.bool_)
_SMALL = (0, 1, 2, 3, 4, 5, 7, 8, 16, 100, -1, -2, -3, 1000)
_FLOATS = (0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"), 3.0, 2.0**33)
_TEXTS = ("NCHW", "NHWC", "", "x", "sum", "mean", "constant", "reflect", "edge", "float", "int", "\0", "é", "../x")


def operator_trial(folder: Path) -> Callable[[random.Random], None]:
    """Return a trial: a modified golden case of some operator, run in a new workspace."""
    cases = [case for case in golden_data.cases() if case.op not in LEFT_OUT and is_registered(case.op)]
    by_type: dict[str, list[Any]] = {}
    for case in cases:
        if sum(np.asarray(value).size for value in case.inputs.values()) < 5000:
            by_type.setdefault(case.op, []).append(case)
    types = sorted(by_type)

    def trial(rng: random.Random) -> None:
        case = rng.choice(by_type[rng.choice(types)])
        op = OperatorDef()
        ops = [case.operator, *(g for g in case.gradient_ops if is_registered(g.type) and g.type not in LEFT_OUT)]
        op.CopyFrom(rng.choice(ops))
        values = {**case.inputs, **case.outputs, **case.output_grads}
        inputs = {name: values[name] for name in op.input if name in values}
        for _ in range(rng.choice((1, 1, 2, 3))):
            _change(rng, op, inputs)
        workspace = Workspace(engines=() if rng.random() < 0.5 else None, threads=1, seed=1)
        for name, value in inputs.items():
            workspace.feed(name, value)
        with np.errstate(all="ignore"):
            workspace.run_operator_once(op)
        for name in op.output:
            workspace.fetch(name)

    return trial


def _change(rng: random.Random, op: OperatorDef, inputs: dict[str, Any]) -> None:
    way = rng.randrange(10)
    if way < 4:
        _change_argument(rng, op)
    elif way < 9 and inputs:
        name = rng.choice(sorted(inputs))
        inputs[name] = _changed(rng, np.asarray(inputs[name]))
    else:
        _change_blobs(rng, op)


def _change_argument(rng: random.Random, op: OperatorDef) -> None:
    fields = sorted(argument_fields(find(op.type)))
    if op.arg and rng.random() < 0.15:
        del op.arg[rng.randrange(len(op.arg))]
        return
    if not fields:
        return
    name = rng.choice(fields)
    number = rng.choice(_SMALL if rng.random() < 0.7 else NUMBERS)
    kind = rng.randrange(6)
    value: Any = number
    if kind == 1:
        value = [rng.choice(_SMALL) for _ in range(rng.randrange(6))]
    elif kind == 2:
        value = rng.choice(_FLOATS)
    elif kind == 3:
        value = rng.choice(_TEXTS)
    elif kind == 4:
        value = [rng.choice(NUMBERS) for _ in range(rng.randrange(1, 4))]
    elif kind == 5:
        value = rng.choice((b"\xff\xfe", b"", [b"\xff", b"x"], [], [0.5, float("nan")]))
    kept = [argument for argument in op.arg if argument.name != name]
    del op.arg[:]
    op.arg.extend(kept)
    set_argument(op, name, value)


def _changed(rng: random.Random, value: Any) -> Any:
    way = rng.randrange(6)
    if way == 0 and value.dtype != object:
        with np.errstate(all="ignore"):
            return value.astype(rng.choice(_DTYPES))
    if way == 1:
        shape = tuple(rng.choice(_EXTENTS) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 5))))
        return np.resize(value, shape) if value.size else np.zeros(shape, value.dtype)
    if way == 2 and value.ndim:
        axis = rng.randrange(value.ndim)
        shape = tuple(rng.choice(_EXTENTS) if i == axis else n for i, n in enumerate(value.shape))
        return np.resize(value, shape) if value.size else np.zeros(shape, value.dtype)
    if way == 3:
        return value.reshape(-1) if rng.random() < 0.5 else value[None]
    out = value.copy()
    for _ in range(rng.choice((1, 1, 3))):
        if out.size:
            out.reshape(-1)[rng.randrange(out.size)] = _element(rng, out.dtype)
    return out


def _element(rng: random.Random, dtype: Any) -> Any:
    if dtype.kind == "O":
        return rng.choice((b"", b"\xff", b"x" * 100))
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return dtype.type(rng.choice(_FLOATS))
    if dtype.kind == "b":
        return rng.random() < 0.5
    number = rng.choice(_SMALL if rng.random() < 0.5 else NUMBERS)
    return np.array(number % 2**64, np.uint64).astype(dtype)


def _change_blobs(rng: random.Random, op: OperatorDef) -> None:
    blobs = op.input if rng.random() < 0.6 else op.output
    way = rng.randrange(4)
    if way == 0 and blobs:
        del blobs[rng.randrange(len(blobs))]
    elif way == 1 and blobs:
        blobs.append(rng.choice(list(blobs)))
    elif way == 2 and blobs:
        blobs.append("another")
    elif blobs:
        blobs[rng.randrange(len(blobs))] = rng.choice((*op.input, *op.output, "another"))
