"""If, Loop and Scan: read as operators, with the results of onnxruntime."""

import importlib.util

import numpy as np
import pytest

if not all(importlib.util.find_spec(package) for package in ("onnx", "onnxruntime")):
    pytest.skip("needs the packages onnx and onnxruntime", allow_module_level=True)

import onnxruntime
from onnx import parser

from netbuilder.exchange.onnx import read_onnx
from netbuilder.graph import NameScope
from netbuilder.model import ModelHelper
from netbuilder.runtime import Workspace

RNG = np.random.default_rng(7)


def f(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def check(text, kinds=None, **feeds):
    """Compare a model in ONNX's text form with onnxruntime; return the types of the operators read."""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    read = read_onnx(model, reference=False)
    predictor = read.predictor(trusted=True)
    for case in feeds.pop("cases", [feeds]):
        want = session.run(None, case)
        found = predictor.run({name: case[name] for name in read.inputs})
        for name, expected in zip(names, want):
            assert (found[name].shape, found[name].dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)
    return [op.type for op in read.net.op]


BRANCHES = """
    g (bool c, float[n, 3] x) => (float[m, 3] y) {
        twice = Add(x, x)
        y = If(c) <
            then_branch = a () => (out) { part = Mul(twice, x)  out = Relu(part) },
            else_branch = b () => (out) {
                part = Constant<value = float[1, 3] {1, 2, 3}>()  out = Concat<axis = 0>(x, part)
            }>
    }"""


def test_a_branch_is_chosen_while_the_net_runs():
    cases = [{"c": np.array(c), "x": f(2, 3)} for c in (True, False, True)]
    assert check(BRANCHES, cases=cases)[-1] == "If"


def test_the_results_of_branches_that_are_constants_or_values_around_them():
    text = """g (bool c, float[2] x) => (float[2] y, float[2] z) {
        y, z = If(c) <
            then_branch = a () => (p, q) { p = Constant<value = float[2] {1, 2}>()  q = Identity(x) },
            else_branch = b () => (p, q) { q = Constant<value = float[2] {3, 4}>()  p = Neg(x) }>
    }"""
    check(text, cases=[{"c": np.array(c), "x": f(2)} for c in (True, False)])


def test_a_constant_condition_leaves_one_branch():
    text = """g (float[2] x) => (float[2] y) {
        c = Constant<value = bool {0}>()
        y = If(c) <then_branch = a () => (p) { p = Neg(x) }, else_branch = b () => (p) { p = Exp(x) }>
    }"""
    assert check(text, x=f(2)) == ["Exp"]


LOOP = """
    g (%s float[2] x) => (float[2] y, float[k, 2] all, int64[k] steps) {
        %s
        yes = Constant<value = bool {1}>()
        y, all, steps = Loop(count, yes, x) <body = b (int64 i, bool c, float[2] v) => (goes_on, w, w, j) {
            goes_on = Identity(c)
            w = Sin(v)
            j = Mul(i, i)
        }>
    }"""


def test_a_loop_of_a_known_number_of_steps_becomes_these_steps():
    text = LOOP % ("", "count = Constant<value = int64 {3}>()")
    assert check(text, x=f(2)).count("Sin") == 3


def test_a_loop_of_a_computed_number_of_steps():
    cases = [{"count": np.array(n), "x": f(2)} for n in (4, 0, 1)]
    kinds = check(LOOP % ("int64 count,", ""), cases=cases)
    assert "ONNXWhile" in kinds and "Sin" not in kinds


def test_a_loop_ends_by_its_condition_and_reads_values_around_it():
    text = """g (float x, float[2, 2] w) => (float y, int64 n) {
        count = Constant<value = int64 {20}>()
        zero = Constant<value = int64 {0}>()
        yes = Constant<value = bool {1}>()
        most = Constant<value = float {50}>()
        by = ReduceMax<keepdims = 0>(w)
        y, n = Loop(count, yes, x, zero) <body = b (int64 i, bool c, float v, int64 m) => (goes_on, u, k) {
            u = Mul(v, by)
            goes_on = Less(u, most)
            k = Identity(i)
        }>
    }"""
    kinds = check(text, cases=[{"x": np.array(x, np.float32), "w": np.float32([[1, 2], [3, 2]])} for x in (1, 40, 60)])
    assert "ONNXWhile" in kinds


def test_a_loop_whose_condition_becomes_false_while_it_is_read():
    text = """g (float[2] x) => (float[2] y) {
        none = Constant<value = int64 {9}>()
        yes = Constant<value = bool {1}>()
        last = Constant<value = int64 {2}>()
        y = Loop(none, yes, x) <body = b (int64 i, bool c, float[2] v) => (goes_on, w) {
            goes_on = Less(i, last)
            w = Neg(v)
        }>
    }"""
    assert check(text, x=f(2)).count("Negative") == 3


def test_a_value_that_grows_from_step_to_step():
    text = """g (int64 count, float[n, 2] x) => (float[m, 2] y) {
        yes = Constant<value = bool {1}>()
        y = Loop(count, yes, x) <body = b (int64 i, bool c, float[k, 2] v) => (goes_on, w) {
            goes_on = Identity(c)
            w = Concat<axis = 0>(v, x)
        }>
    }"""
    check(text, count=np.array(3), x=f(2, 2))


def test_a_sequence_that_a_loop_fills():
    text = """g (float[4] x) => (float[12] y) {
        count = Constant<value = int64 {3}>()
        yes = Constant<value = bool {1}>()
        none = SequenceEmpty()
        all = Loop(count, yes, none) <body = b (int64 i, bool c, seq(float[4]) s) => (goes_on, t) {
            goes_on = Identity(c)
            number = Cast<to = 1>(i)
            part = Add(x, number)
            t = SequenceInsert(s, part)
        }>
        y = ConcatFromSequence<axis = 0>(all)
    }"""
    assert "ONNXWhile" not in check(text, x=f(4))


def test_graphs_in_graphs_and_names_that_are_used_twice():
    text = """g (int64 count, bool c, float[2] x) => (float[2] y, float[2] z) {
        yes = Constant<value = bool {1}>()
        y = Loop(count, yes, x) <body = b (int64 i, bool c1, float[2] v) => (goes_on, w) {
            goes_on = Identity(c1)
            part = Mul(v, v)
            w = If(c) <then_branch = p () => (o) { o = Sub(part, x) }, else_branch = q () => (o) { o = Sin(part) }>
        }>
        z = Loop(count, yes, y) <body = b2 (int64 i2, bool c2, float[2] v2) => (goes_on2, w2) {
            goes_on2 = Identity(c2)
            part2 = Add(v2, x)
            w2 = Sin(part2)
        }>
    }"""
    check(text, cases=[{"count": np.array(n), "c": np.array(c), "x": f(2)} for n in (1, 3) for c in (True, False)])


SCAN = """
    g (float[2] first, float[%s, 3, 2] x, float[2, %s] t) => (float[2] last, float[k, 2] sums, float[2, k] turned) {
        axes = Constant<value = int64[1] {0}>()
        last, sums, turned = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [0, 1],
            scan_output_axes = [0, 1], scan_output_directions = [1, 1],
            body = b (float[2] s, float[3, 2] row, float[2] column) => (after, sum, product) {
                total = ReduceSum<keepdims = 0>(row, axes)
                sum = Add(total, s)
                after = Sin(sum)
                product = Mul(column, s)
            }> (first, x, t)
    }"""


@pytest.mark.parametrize("steps", ["4", "n"])
def test_scan_over_other_axes_and_backwards(steps):
    text = SCAN % (steps, steps)
    kinds = check(text, first=f(2), x=f(4, 3, 2), t=f(2, 4))
    assert ("ONNXWhile" in kinds) == (steps == "n")


@pytest.mark.parametrize("scope", ["", "gpu_0"])
def test_a_branch_can_be_trained(scope):
    text = """g (bool c, float[n, 3] x) => (float[n, 3] y) <float[3] w = {1, 2, 3}> {
        y = If(c) <
            then_branch = a () => (out) { part = Mul(x, w)  out = Sin(part) },
            else_branch = b () => (out) { out = Add(x, w) }>
    }"""
    read = read_onnx(parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}'), training=True)
    model = ModelHelper("branches")
    with NameScope(scope):
        rows = model.net.ReduceSum(read.add_to(model)["y"], axes=[1], keepdims=0)
        gradients = model.AddGradientOperators([model.net.AveragedLoss([rows], ["loss"])])
    workspace, x, prefix = Workspace(threads=1), f(2, 3), f"{scope}/" if scope else ""
    workspace.run_net_once(model.param_init_net)
    workspace.feed(f"{prefix}x", x)
    w = np.float32([1, 2, 3])
    for chosen, slope in ((True, np.cos(x * w) * x), (False, np.ones_like(x))):
        workspace.feed(f"{prefix}c", np.array(chosen))
        workspace.run_net_once(model.net)
        found = workspace.fetch(str(gradients[f"{prefix}w"]))
        np.testing.assert_allclose(found, slope.sum(axis=0) / 2, rtol=1e-4, atol=1e-5)
