"""Numbers and extents from inputs or arguments: the operator's errors for impossible ones."""

import numpy as np
import pytest

from netbuilder.ops.core import given_numbers
from netbuilder.proto import ArgumentError, NetError, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace

X = np.zeros((2, 3), np.float32)
NAN, LONG = np.float32("nan"), np.int64(1 << 40)

CASES = {
    "OneHot of no number": ("OneHot", {"i": np.int64([0]), "n": np.int64([3, 4])}, {}, "index_size must be one number"),
    "OneHot of a float": ("OneHot", {"i": np.int64([0]), "n": np.float32([3])}, {}, "must be an integer, got type"),
    "OneHot below 0": ("OneHot", {"i": np.int64([]), "n": np.int64([-1])}, {}, "must not be negative, got -1"),
    "OneHot too wide": ("OneHot", {"i": np.int64([0]), "n": np.int64([1 << 50])}, {}, "OneHot: Y .* the memory of"),
    "Tile": ("Tile", {"x": X, "n": np.int32([1, 2])}, {}, "tiles must be one number"),
    "Tile too large": ("Tile", {"x": X, "n": np.int64([1 << 50])}, {}, "Tile: Y .* bytes, and the memory of this"),
    "Tile's gradient": ("TileGradient", {"x": X, "n": np.int32([5])}, {}, "axis 0 of dY .* be a multiple of tiles=5"),
    "Split": ("Split", {"x": X, "n": np.int32([[1, 1]])}, {}, "must be .* sum|add up|split"),
    "Split of floats": ("Split", {"x": X, "n": np.float32([1, 1])}, {}, "split must be integers, got"),
    "SparseToDense": ("SparseToDense", {"i": np.int32([0, 1]), "v": X[:1]}, {}, "values must begin with the shape of"),
    "SparseToDense of bools": ("SparseToDense", {"i": np.bool_([1, 0]), "v": X}, {}, "indices must be int32 or int64"),
    "Slice": ("Slice", {"x": X, "s": np.float32([0, 0]), "e": np.float32([1, 1])}, {}, "starts must be integers"),
    "Expand": ("Expand", {"x": X, "s": np.float32([2, 3])}, {}, "must be (a vector of )?integers"),
    "Expand too large": ("Expand", {"x": X[:1, :1], "s": np.int64([1 << 31, 1 << 31])}, {}, "Expand: Y"),
    "Expand below 0": ("Expand", {"x": X, "s": np.int64([-2, 3])}, {}, "extents must not be negative"),
    "Range of NaN": ("Range", {"a": NAN.reshape(1)}, {}, "inputs must be finite"),
    "Range too long": ("Range", {"a": LONG.reshape(1)}, {}, "Range: Y of shape .* the memory of this machine"),
    "Range of text": ("Range", {"a": np.array([b"x"], object)}, {}, "must be one number|inputs must"),
    "ResizeNearest": ("ResizeNearest", {"x": X[None, None]}, {"width_scale": 1e30}, "Y cannot have|Y of shape"),
    "a fill": ("ConstantFill", {"s": np.int64([1 << 31, 1 << 31])}, {"input_as_shape": 1}, "Y cannot have|Y of shape"),
    "a fill's value": ("ConstantFill", {"s": X, "v": X}, {}, "value must have one element, got shape"),
    "a fill of infinity": ("ConstantFill", {}, {"shape": [1], "value": float("inf"), "dtype": 2}, "be represented"),
    "Reshape": ("Reshape", {"x": X, "s": np.float32([3, 2])}, {}, "new_shape must be integers, got type"),
    "TopK": ("TopK", {"x": X, "k": np.int64([1, 2])}, {}, "k must be one number"),
    "Conv without axes of W": ("Conv", {"x": X[None, None], "w": np.float32(1)}, {"kernel": 1}, "number of axes"),
    "an argument without end": ("Flatten", {"x": X}, {"axis": 1e30}, "argument 'axis' must be int, got 1"),
    "a type by a list": ("Cast", {"x": X}, {"to": [1, 2]}, "name of an element type"),
    "a type that is no text": ("Cast", {"x": X}, {"to": b"\xff"}, "name of an element type"),
}  # fmt: skip


@pytest.mark.parametrize("engines", [(), None], ids=["plain", "libraries"])
@pytest.mark.parametrize("name", CASES)
def test_numbers_that_cannot_be_are_refused(name, engines):
    op_type, inputs, arguments, message = CASES[name]
    workspace = Workspace(engines=engines)
    for blob, value in inputs.items():
        workspace.feed(blob, value)
    outputs = {"Split": ["y", "z"], "TopK": ["y", "z"], "Reshape": ["y", "z"]}.get(op_type, ["y"])
    with pytest.raises(NetError, match=f"operator 0: {op_type} .*{message}") as caught:
        workspace.run_operator_once(make_op(op_type, list(inputs), outputs, **arguments))
    assert isinstance(caught.value, (ShapeError, ArgumentError))


def test_planned_shapes_beyond_the_memory_are_refused_with_the_operator_and_the_bytes(monkeypatch):
    workspace = Workspace()
    fill = make_op("ConstantFill", [], ["y"], shape=[1 << 20, 1 << 20])
    with pytest.raises(
        ShapeError, match=r"operator 0: ConstantFill \[\] -> \['y'\]: output 'y' of shape .* takes 4,398,"
    ):
        workspace.run_operator_once(fill)
    for shape in ([1 << 40, 1 << 40], [0, 1 << 62]):
        with pytest.raises(ShapeError, match="output 'y' cannot have the shape .* no array can"):
            workspace.run_operator_once(make_op("ConstantFill", [], ["y"], shape=shape))
    monkeypatch.setattr(given_numbers, "machine_memory", lambda: 1000)
    workspace.run_operator_once(make_op("ConstantFill", [], ["y"], shape=[250]))
    with pytest.raises(ShapeError, match="takes 1,004 bytes, and the memory of this machine has 1,000"):
        workspace.run_operator_once(make_op("ConstantFill", [], ["y"], shape=[251]))


def test_the_memory_of_this_machine_is_known():
    assert 1 << 28 < given_numbers.machine_memory() < 1 << 50
