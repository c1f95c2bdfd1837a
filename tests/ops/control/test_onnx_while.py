"""ONNXWhile: numbers of iterations, conditions, carried and collected values, as Caffe2 computed them."""

import numpy as np
import pytest

from checks import CPU, DEVICES, GPU
from netbuilder.ops.control.onnx_while import ONNXWhile
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import PROTO_CUDA, ArgumentError, NetDef, ShapeError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, i64, refusal

BOOL = TensorSpec((1,), np.dtype(bool))


def body(*ops, outputs=("next", "double"), inputs=("turn", "cond", "x")):
    return NetDef(name="body", op=ops, external_input=inputs, external_output=outputs)


DOUBLE = make_op("Add", ["x", "x"], ["double"])
SAME = make_op("Copy", ["cond"], ["next"])
LIMIT = [make_op("ConstantFill", ["double"], ["limit"], value=20.0), make_op("LT", ["double", "limit"], ["next"])]


def run(net, outputs, trips=5, cond=True, device=CPU, inputs=("m", "c", "x0"), **arguments):
    workspace = Workspace()
    for name, value in {"m": np.int64([trips]), "c": np.array([cond]), "x0": np.float32([1])}.items():
        workspace.feed(name, value)
    if device == GPU:
        for op in net.op:
            op.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
    op = make_op("ONNXWhile", inputs, outputs, body=net, **arguments)
    workspace.run_operator_once(op)
    return workspace


class TestONNXWhile(OperatorSuite):
    operator = ONNXWhile
    no_gradient = "it has none"
    left_out = {"test_inplace": "an output may have the name of an input of the body: see below"}
    refusals = (
        refusal(ONNXWhile(), [i64(1), BOOL], "body, a net, must be given", ArgumentError),
        refusal(ONNXWhile(body=body()), [i64(1), BOOL, f32(1)], "it would never end", ArgumentError, n_out=1),
        refusal(
            ONNXWhile(body=body(), has_cond=True),
            [i64(1), BOOL],
            "takes 3 blobs and gives 2 for 2 inputs and 1 output",
            ArgumentError,
            n_out=1,
        ),
    )

    def test_flops(self):
        assert ONNXWhile(body=body(), has_cond=True).flops(i64(1), BOOL) == 0

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize(
        ("ops", "arguments", "last"),
        [
            ([SAME, DOUBLE], {"has_trip_count": 1}, 32),
            ([DOUBLE, *LIMIT], {"has_cond": 1}, 32),
            ([DOUBLE, *LIMIT], {"has_cond": 1, "has_trip_count": 1, "trips": 3}, 8),
            ([SAME, DOUBLE], {"has_trip_count": 1, "cond": False}, 32),
            ([SAME, DOUBLE], {"has_trip_count": 1, "has_cond": 1, "cond": False}, 1),
            ([SAME, DOUBLE], {"has_trip_count": 1, "trips": 0}, 1),
        ],
    )
    def test_forward(self, ops, arguments, last, device):
        workspace = run(body(*ops), ["y"], device=device, **arguments)
        assert workspace.fetch("y").tolist() == [last]
        assert not workspace.has("double")

    def test_what_is_collected(self):
        number = [make_op("Cast", ["turn"], ["float"], to=1), make_op("ExpandDims", ["float"], ["number"], dims=[0])]
        net = body(SAME, DOUBLE, *number, outputs=["next", "double", "double", "number"])
        workspace = run(net, ["y", "all", "numbers"], has_trip_count=1)
        assert workspace.fetch("all").tolist() == [2, 4, 8, 16, 32]
        assert workspace.fetch("numbers").tolist() == [0, 1, 2, 3, 4]
        assert run(net, ["y", "all", "numbers"], has_trip_count=1, trips=0).fetch("all").shape == (0,)

    def test_in_place_without_a_scope(self):
        net = body(SAME, make_op("Add", ["x0", "x0"], ["x0"]), outputs=["next", "x0"], inputs=["turn", "cond", "x0"])
        assert run(net, ["x0"], has_trip_count=1, disable_scopes=1).fetch("x0").tolist() == [32]
        assert run(net, ["x0"], has_trip_count=1).fetch("x0").tolist() == [32]

    def test_values_that_change_places(self):
        net = body(SAME, outputs=["next", "b", "a"], inputs=["turn", "cond", "a", "b"])
        workspace = run(net, ["y", "z"], has_trip_count=1, trips=3, inputs=["m", "c", "x0", "m"])
        assert (workspace.fetch("y").tolist(), workspace.fetch("z").tolist()) == ([3], [1])

    def test_no_turn_gives_copies(self):
        workspace = run(body(SAME, DOUBLE), ["y"], has_trip_count=1, trips=0)
        workspace.run_operator_once(make_op("Scale", ["y"], ["y"], scale=3.0))
        assert (workspace.fetch("x0").tolist(), workspace.fetch("y").tolist()) == ([1], [3])

    def test_what_does_not_fit(self):
        net = body(SAME, DOUBLE)
        with pytest.raises(ShapeError, match="max_trip_count must hold one int64"):
            run(net, ["y"], has_trip_count=1, inputs=["x0", "c", "x0"])
        with pytest.raises(ShapeError, match=r"must have a first axis, and differ only along it, got shapes \[\(\)"):
            run(body(SAME, DOUBLE, outputs=["next", "double", "turn"]), ["y", "all"], has_trip_count=1)
