"""Operators of a predict net that read only parameters run once, and the results are the same."""

import numpy as np
import pytest

from netbuilder import Predictor, Workspace
from netbuilder.passes.constant_operators import constant_part
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op

RNG = np.random.default_rng(0)
PARAMETERS = {
    "w": RNG.normal(size=(4, 3)).astype(np.float32),
    "v": RNG.normal(size=(3, 4)).astype(np.float32),
    "index": np.array([2, 0, 1, 2], np.int32),
}


def net(*ops, outputs=("y",)):
    made = NetDef(name="net", op=ops)
    made.external_output.extend(outputs)
    return made


def types(proto):
    return [op.type for op in proto.op]


TABLE = [
    make_op("MatMul", ["w", "v"], ["table"]),
    make_op("Softmax", ["table"], ["shares"]),
    make_op("Gather", ["shares", "index"], ["rows"]),
    make_op("Add", ["x", "rows"], ["sum"]),
    make_op("MatMul", ["sum", "table"], ["y"]),
]


def test_what_reads_only_parameters_runs_once():
    part = constant_part(net(*TABLE), PARAMETERS, ["x", "y"])
    assert types(part.once) == ["MatMul", "Softmax", "Gather"] and types(part.rest) == ["Add", "MatMul"]
    assert part.made == ("table", "rows") and part.between == {"shares"}


@pytest.mark.parametrize(
    ("ops", "left"),
    [
        ([make_op("Dropout", ["w"], ["y", "mask"], is_test=0)], "draws"),
        ([make_op("Relu", ["w"], ["y"])], "is an output"),
        ([make_op("Relu", ["w"], ["w"]), make_op("Add", ["x", "w"], ["y"])], "changes a parameter"),
        ([make_op("Relu", ["w"], ["a"]), make_op("Relu", ["a"], ["a"]), make_op("Add", ["x", "a"], ["y"])], "twice"),
        ([make_op("ConstantFill", [], ["a"], shape=[4, 3]), make_op("Add", ["x", "a"], ["y"])], "a fill needs memory"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_stays(ops, left):
    assert constant_part(net(*ops), PARAMETERS, ["x", "y"]) is None, left


def test_a_predictor_gives_the_same_and_keeps_no_parameter_that_nothing_reads():
    x = RNG.normal(size=(4, 4)).astype(np.float32)
    plain = Predictor(NetDef(), net(*TABLE), inputs=["x"], parameters=PARAMETERS, fold=False)
    folded = Predictor(NetDef(), net(*TABLE), inputs=["x"], parameters=PARAMETERS)
    np.testing.assert_allclose(folded.run(x=x)["y"], plain.run(x=x)["y"], rtol=1e-5)
    assert types(folded.net) == ["Add", "MatMul"] and types(plain.net) == types(net(*TABLE))
    assert not {"w", "v", "index", "shares"}.intersection(folded.workspace.blobs())
    assert {"table", "rows"}.issubset(folded.workspace.blobs())


def test_what_is_observed_or_was_in_the_workspace_stays():
    workspace = Workspace()
    workspace.feed("w", PARAMETERS["w"])
    made = Predictor(
        NetDef(), net(*TABLE), inputs=["x"], parameters=PARAMETERS, workspace=workspace, observable=["shares"]
    )
    x = np.zeros((4, 4), np.float32)
    made.run(x=x)
    table = PARAMETERS["w"] @ PARAMETERS["v"]
    want = np.exp(table) / np.exp(table).sum(1, keepdims=True)
    np.testing.assert_allclose(workspace.fetch("shares"), want, rtol=1e-5)
    np.testing.assert_array_equal(workspace.fetch("w"), PARAMETERS["w"])


def test_large_results_are_computed_in_each_run():
    ops = [make_op("Tile", ["w"], ["many"], tiles=2_000_000, axis=0), make_op("ReduceMean", ["many"], ["m"], axes=[0])]
    ops += [make_op("Add", ["x", "m"], ["y"]), make_op("Add", ["y", "many"], ["z"])]
    made = Predictor(NetDef(), net(*ops, outputs=["z"]), inputs=["x"], parameters=PARAMETERS)
    assert types(made.net)[0] == "Tile" and made.workspace.get("many").is_empty
    np.testing.assert_array_equal(made.workspace.fetch("w"), PARAMETERS["w"])


def test_an_error_of_a_constant_operator_comes_when_the_predictor_runs():
    ops = [make_op("Gather", ["w", "index"], ["rows"]), make_op("Add", ["x", "rows"], ["y"])]
    wrong = {**PARAMETERS, "index": np.array([7], np.int32)}
    made = Predictor(NetDef(), net(*ops), inputs=["x"], parameters=wrong)
    with pytest.raises(Exception, match="index"):
        made.run(x=np.zeros((1, 3), np.float32))
