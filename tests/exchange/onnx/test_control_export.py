"""If, While and ONNXWhile as ONNX's If and Loop: onnxruntime gives what the nets give, and they are read back."""

import importlib.util

import numpy as np
import pytest

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import NetDef, OperatorError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace

if not all(importlib.util.find_spec(package) for package in ("onnx", "onnxruntime")):
    pytest.skip("needs the packages onnx and onnxruntime", allow_module_level=True)

import onnxruntime

from netbuilder.exchange.onnx import onnx_model, read_onnx

RNG = np.random.default_rng(11)
X = RNG.standard_normal((3, 4)).astype(np.float32)
W = RNG.standard_normal((5, 4)).astype(np.float32)
B = RNG.standard_normal(5).astype(np.float32)


def net(*ops, inputs=(), outputs=(), name="n"):
    return NetDef(name=name, op=ops, external_input=list(inputs), external_output=list(outputs))


def copy(source, target):
    return make_op("Copy", [source], [target])


def run(predictor, names, feeds):
    workspace = Workspace(threads=1)
    for name, value in feeds.items():
        workspace.feed(name, value)
    workspace.run_net_once(predictor)
    return [workspace.fetch(name) for name in names]


def export(predictor, outputs, parameters=None, **feeds):
    specs = {name: TensorSpec(value.shape, value.dtype) for name, value in feeds.items()}
    return onnx_model(predictor, parameters or {}, shapes=specs, outputs=outputs)


def check(predictor, outputs, cases, parameters=None, other_batch=True):
    """Compare a net, onnxruntime and the net read back for each of the inputs; return the types of the nodes."""
    model = export(predictor, outputs, parameters, **cases[0])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    back = read_onnx(model, reference=False)
    again = back.predictor(trusted=True)
    if other_batch:
        cases = [
            *cases,
            {name: np.concatenate([value] * 2) if value.ndim > 1 else value for name, value in cases[0].items()},
        ]
    for case in cases:
        want = run(predictor, outputs, {**case, **(parameters or {})})
        read_back = again.run({name: case[name] for name in back.inputs})
        for name, found, expected in zip(outputs, session.run(None, case), want):
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(read_back[name], expected, rtol=1e-5, atol=1e-6)
    return [node.op_type for node in model.graph.node]


def yes_and_no(**feeds):
    return [{"c": np.array(c), **feeds} for c in (True, False)]


def test_a_branch_with_parameters():
    then = net(make_op("FC", ["x", "w", "b"], ["part"]), make_op("Relu", ["part"], ["y"]))
    other = net(make_op("Scale", ["x"], ["part"], scale=2.0), make_op("FC", ["part", "w", "b"], ["y"]))
    outer = net(
        make_op("Negative", ["data"], ["x"]),
        make_op("If", ["c", "x", "w", "b"], ["y"], then_net=then, else_net=other),
        make_op("Negative", ["y"], ["z"]),
        make_op("FC", ["data", "w", "b"], ["plain"]),
    )
    kinds = check(outer, ["z", "plain"], yes_and_no(data=X), {"w": W, "b": B})
    assert kinds.count("If") == 1


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "not declared"])
def test_a_blob_that_only_one_branch_overwrites(declared):
    then = net(make_op("Tanh", ["x"], ["x"]), make_op("Negative", ["x"], ["x"]))
    choose = make_op("If", ["c", "x"] if declared else ["c", "data"], ["x"], then_net=then)
    if not declared:
        choose = make_op("If", ["c", "data"], ["x"], then_net=net(make_op("Sin", ["data"], ["x"])))
    outer = net(make_op("Negative", ["data"], ["x"]), choose, copy("x", "y"))
    check(outer, ["y"], yes_and_no(data=X))


def test_a_branch_in_a_branch_and_a_computed_condition():
    inner = make_op("If", ["d", "x"], ["y"], then_net=net(make_op("Sin", ["x"], ["y"])), else_net=net(copy("x", "y")))
    then = net(make_op("Sqr", ["x"], ["x2"]), inner, make_op("Add", ["y", "x2"], ["y"]))
    outer = net(
        make_op("SumElements", ["x"], ["total"]),
        make_op("ConstantFill", [], ["zero"], shape=[], value=0.0),
        make_op("GT", ["total", "zero"], ["c"]),
        make_op("If", ["c", "x", "d"], ["y"], then_net=then, else_net=net(make_op("Cos", ["x"], ["y"]))),
    )
    cases = [{"x": sign * np.abs(X), "d": np.array(d)} for sign in (1, -1) for d in (True, False)]
    check(outer, ["y"], cases, other_batch=True)


def counting(limit):
    """Return a loop that adds W to ``total`` and counts in ``i`` until ``limit``, and what fills its blobs."""
    step = net(
        make_op("Add", ["total", "x"], ["total"]), make_op("Add", ["i", "one"], ["i"]), make_op("Sin", ["total"], ["s"])
    )
    test = net(make_op("LT", ["i", "limit"], ["c"]))
    fills = [
        make_op("ConstantFill", [], ["i"], shape=[], value=0.0),
        make_op("ConstantFill", [], ["one"], shape=[], value=1.0),
        make_op("ConstantFill", [], ["c"], shape=[], value=1, dtype=5),
        make_op("Scale", ["x"], ["total"], scale=0.5),
        copy("x", "s"),
    ]
    return fills, step, test


def test_a_loop_with_a_net_for_its_condition():
    fills, step, test = counting(4)
    loop = make_op(
        "While", ["c", "total", "x", "i", "one", "limit"], ["total", "i", "s", "c"], loop_net=step, cond_net=test
    )
    outer = net(*fills, loop, make_op("Add", ["s", "total"], ["y"]))
    cases = [{"x": X, "limit": np.array(n, np.float32)} for n in (4, 0, 1, 7.5)]
    assert check(outer, ["y", "i"], cases).count("Loop") == 1


def test_a_loop_in_a_branch_whose_condition_the_body_makes():
    fills, step, test = counting(3)
    step.op.extend(test.op)
    loop = make_op("While", ["c", "total", "x", "i", "one", "limit"], ["total", "i", "c", "s"], loop_net=step)
    then = net(*fills, loop, copy("total", "y"))
    outer = net(make_op("If", ["d", "x", "limit"], ["y"], then_net=then, else_net=net(copy("x", "y"))))
    cases = [{"d": np.array(d), "x": X, "limit": np.array(3, np.float32)} for d in (True, False)]
    check(outer, ["y"], cases)


@pytest.mark.parametrize("has_trip_count, has_cond", [(1, 0), (0, 1), (1, 1)])
def test_a_loop_with_values_that_change_places(has_trip_count, has_cond):
    """The next values are each other's; an iteration's number is added."""
    body = net(
        make_op("Cast", ["i"], ["number"], to=1),
        make_op("Add", ["a", "w"], ["moved"]),
        make_op("Add", ["moved", "number"], ["next_b"]),
        make_op("Sin", ["b"], ["next_a"]),
        make_op("SumElements", ["next_b"], ["total"]),
        make_op("LT", ["total", "most"], ["on"]),
        inputs=["i", "go", "a", "b", "w", "most"],
        outputs=["on", "next_a", "next_b"],
    )
    loop = make_op(
        "ONNXWhile", ["limit", "first", "x", "x2", "x", "most"], ["p", "q"], body=body, has_trip_count=has_trip_count,
        has_cond=has_cond, captured=2,
    )  # fmt: skip
    outer = net(make_op("Sqr", ["x"], ["x2"]), loop)
    cases = [
        {"x": np.abs(X), "limit": np.array(n), "first": np.array(first), "most": np.array(40, np.float32)}
        for n in (3, 0, 9) for first in (True, False)
    ]  # fmt: skip
    assert "Loop" in check(outer, ["p", "q"], cases)


def refusal(match, *ops, outputs=("y",), **feeds):
    with pytest.raises(OperatorError, match=match):
        export(net(*ops), list(outputs), **(feeds or {"x": X, "c": np.array(True)}))


def test_what_cannot_be_written():
    sum_rows = net(make_op("ReduceSum", ["x"], ["y"], axes=[0], keepdims=0))
    refusal(r"'y' has shape \(3, 4\) of float32 if the condition holds, else \(4,\)",
            make_op("If", ["c", "x"], ["y"], then_net=net(copy("x", "y")), else_net=sum_rows))  # fmt: skip
    refusal("leaves 'y' without a value", make_op("If", ["c", "x"], ["y"], then_net=net(copy("x", "y"))))
    loop = net(make_op("Concat", ["t", "x"], ["u", "n"], axis=0), copy("u", "t"))
    refusal("a step makes 't' of shape .6, 4. of float32, from shape .3, 4.", copy("x", "t"),
            make_op("While", ["c", "t", "x"], ["t"], loop_net=loop), copy("t", "y"))  # fmt: skip
    refusal("'y' has no value before the loop", make_op("While", ["c", "x"], ["y"], loop_net=net(copy("x", "y"))))
    body = net(make_op("Sqr", ["a"], ["b"]), inputs=["i", "go", "a"], outputs=["go", "b", "b"])
    refusal("it collects a blob of each iteration", make_op("ConstantFill", [], ["n"], shape=[], value=3, dtype=10),
            make_op("ONNXWhile", ["n", "c", "x"], ["z", "y"], body=body, has_trip_count=1))  # fmt: skip
