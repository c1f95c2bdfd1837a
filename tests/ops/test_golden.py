"""Every operator against what Caffe2 computed: outputs, shapes, gradient operators and their outputs."""

from __future__ import annotations

import numpy as np
import pytest

import golden_data
from checks import interpret
from golden_cases import of_each_operator
from golden_data import Case, cases, mismatch
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.operator import Operator, decode, spec_of
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.proto import PROTO_CUDA, GradientError, NetError, OperatorDef
from netbuilder.proto.arguments import arguments, make_device_option
from netbuilder.runtime import Workspace

# Caffe2 has golden cases of operators that overwrite what their gradient reads.

# Cases whose gradient operators give other numbers than Caffe2's, and why.
OTHER_NUMBERS = {
    "Mul-10": "broadcast and in place, Caffe2 clears dY, over which it writes dA, before it reads it: all zeros",
    "IntegralImage-0": "Caffe2 adds up what lies above and left of each place, where the slope is of what lies below",
}
# Cases whose generated gradient operators differ from Caffe2's, and why.
OTHER_OPERATORS = {
    "Sqr-0": "Caffe2 scales dY in place, which spoils it for others that read it; here dX is scaled",
    "Sqr-1": "as Sqr-0",
    "Sqr-3": "as Sqr-0",
    "Pow-4": "in place, Caffe2 writes X ** (e - 1) over dY before it reads it; here it goes to a blob of its own",
    "Pow-5": "one operator, whose results have the shapes of X and of the exponent",
    "Pow-6": "as Pow-5",
    "RowMul-0": "the gradient of w has the shape of w",
    "RowMul-1": "as RowMul-0",
    "UnpackRNNSequence-0": "Caffe2's gradient has the steps of the longest sequence; here it has those of X",
    "UnpackRNNSequence-2": "as UnpackRNNSequence-0",
}


def _key(case: Case) -> str:
    return f"{case.op}-{case.index}"


READY = [case for case in cases() if is_registered(case.operator.type) and _key(case) not in golden_data.REFUSED]


every_case = of_each_operator(READY)
every_gradient = of_each_operator([case for case in READY if case.has_gradient])


@pytest.mark.parametrize("key", golden_data.REFUSED)
def test_cases_that_are_refused(key):
    (case,) = (case for case in cases() if _key(case) == key)
    with pytest.raises(NetError, match=golden_data.REFUSED[key]):
        _in_workspace(case.inputs, [case.operator], case.outputs, None)


def test_all_operators_with_cases_are_there():
    assert [name for name in golden_data.operators() if not is_registered(name)] == []


@pytest.mark.one_in(3)
@every_case
def test_outputs(case):
    found = interpret([case.operator], case.inputs)
    _compare(case, {name: found[name] for name in case.outputs}, case.outputs)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("engines", [(), None], ids=["numpy", "engines"])
@every_case
def test_outputs_in_a_workspace(case, engines):
    found = _in_workspace(case.inputs, [case.operator], case.outputs, engines)
    _compare(case, found, case.outputs)


def _decoded(case: Case) -> Operator:
    return decode(find(case.operator.type), case.operator)


@of_each_operator([case for case in READY if not _decoded(case).dynamic])
def test_inferred_shapes(case):
    op = _decoded(case)
    specs = op.infer(*(spec_of(case.inputs[name]) for name in case.operator.input))
    assert len(specs) == len(case.operator.output)
    for name, spec in zip(case.operator.output, specs):
        if name in case.outputs:
            assert (spec.shape, spec.dtype) == (case.outputs[name].shape, case.outputs[name].dtype), name


@every_gradient
def test_generated_gradient_operators(case):
    given = {i: f"{name}_grad" for i, name in enumerate(case.operator.output) if f"{name}_grad" in case.output_grads}
    if _key(case) in golden_data.OVERWRITTEN:
        with pytest.raises(GradientError, match="which its gradient reads"):
            operator_gradient(case.operator, given)
        return
    made, where = operator_gradient(case.operator, given)
    differs = [_described(op) for op in made] != [_described(op) for op in case.gradient_ops]
    assert differs == (_key(case) in OTHER_OPERATORS), [_described(op) for op in made]
    assert {case.operator.input[i] for i in where} >= case.input_grads.keys()


@pytest.mark.one_in(3)
@every_gradient
def test_stored_gradient_operators(case):
    found = interpret(case.gradient_ops, _before_gradient(case))
    _compare_gradient(case, found)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("engines", [(), None], ids=["numpy", "engines"])
@every_gradient
def test_stored_gradient_operators_in_a_workspace(case, engines):
    found = _in_workspace(_before_gradient(case), case.gradient_ops, case.gradient_blobs, engines)
    _compare_gradient(case, found)


@every_case
def test_on_a_gpu(case, one_gpu):
    """The case and its gradients with the operators on a GPU and what they read on the host."""
    _compare(case, _in_workspace(case.inputs, _on_gpu([case.operator]), case.outputs, None), case.outputs)
    if case.has_gradient:
        ops = _on_gpu(case.gradient_ops)
        _compare_gradient(case, _in_workspace(_before_gradient(case), ops, case.gradient_blobs, None))


@of_each_operator([case for case in READY if case.gradient_refused])
def test_refused_gradients_are_refused_or_right(case):
    """Where Caffe2 refused to build a gradient, there is none, or one that runs."""
    given = {i: f"{name}_grad" for i, name in enumerate(case.operator.output)}
    try:
        made, _ = operator_gradient(case.operator, given)
    except ValueError as error:
        assert case.operator.type in str(error)
        return
    slopes = {f"{name}_grad": np.ones_like(value) for name, value in case.outputs.items()}
    blobs = interpret(made, {**case.inputs, **case.outputs, **slopes})
    for op in made:
        assert all(name in blobs for name in op.output)


def _before_gradient(case: Case) -> dict[str, np.ndarray]:
    """The blobs after the forward operator ran, random ones as stored, and the gradients of the outputs."""
    return {**case.inputs, **case.outputs, **case.output_grads}


def _in_workspace(blobs, ops, wanted, engines):
    workspace = Workspace(engines=engines)
    for name, value in blobs.items():
        workspace.feed(name, value)
    for op in ops:
        workspace.run_operator_once(op)
    return {name: workspace.fetch(name) for name in wanted}


def _on_gpu(ops):
    placed = [OperatorDef.FromString(op.SerializeToString()) for op in ops]
    for op in placed:
        op.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
    return placed


def _described(op: OperatorDef) -> tuple:
    return op.type, list(op.input), list(op.output), arguments(op)


def _compare_gradient(case: Case, found: dict[str, np.ndarray]) -> None:
    problems = {
        name: mismatch(found[name], want, "close", case.grad_rtol, case.grad_atol)
        for name, want in case.gradient_blobs.items()
    }
    problems = {name: problem for name, problem in problems.items() if problem}
    if _key(case) in OTHER_NUMBERS:
        assert problems, f"{case} agrees with Caffe2 by now: drop it from OTHER_NUMBERS"
    else:
        assert not problems


def _compare(case: Case, found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, want in wanted.items():
        assert mismatch(found[name], want, case.check, case.rtol, case.atol) is None, name
    if case.check == "distribution":
        _check_distribution(case, found)


def _check_distribution(case: Case, found: dict[str, np.ndarray]) -> None:
    expected = case.meta["expect"]
    if case.op == "Dropout":
        _check_dropout(found, case.inputs["X"], expected)
        return
    (y,) = (value.astype(np.float64) for value in found.values())
    low, high = expected.get("low"), expected.get("high")
    if "uniform" in expected["kind"]:
        whole = "integers" in expected["kind"]
        assert low <= y.min() and y.max() <= high
        mean, std = (low + high) / 2, np.sqrt(((high - low + whole) ** 2 - whole) / 12)
        reach = 0 if whole else 0.02 * (high - low)
        assert y.min() <= low + reach and y.max() >= high - reach, "the ends are never reached"
    else:
        mean, std = expected["mean"], expected["std"]
    # Six standard deviations of the sample's mean; its deviation from the true one is as small, roughly.
    assert abs(y.mean() - mean) < 6 * std / np.sqrt(y.size)
    assert abs(y.std() / std - 1) < 6 / np.sqrt(y.size)
    assert abs(np.corrcoef(y.ravel()[:-1], y.ravel()[1:])[0, 1]) < 6 / np.sqrt(y.size), "neighbors depend on each other"


def _check_dropout(found, x, expected):
    y, mask = found["Y"], found["mask"]
    np.testing.assert_allclose(y, np.where(mask, x * expected["kept_value"], 0), 1e-6)
    share = expected["dropped_fraction"]
    assert abs((~mask).mean() - share) < 6 * np.sqrt(share * (1 - share) / mask.size)
