"""The cases of ONNX's own backend tests: every node that is read gives what ONNX expects; docs/onnx.md says which."""

import functools
import importlib.util
import re
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

if importlib.util.find_spec("onnx") is None:
    pytest.skip("needs the package onnx", allow_module_level=True)

import onnx
import onnx.backend.test.case.base
from onnx.backend.test.case.node import collect_testcases

from netbuilder.exchange.onnx import ReferenceNodeWarning, read_onnx
from netbuilder.proto import NetError, OperatorError, ParseError

PAGE = Path(__file__).resolve().parents[3] / "docs" / "onnx.md"


def kinds_of(case):
    return {node.op_type for node in case.model.graph.node}


def array(value):
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    return np.asarray(value)


def problem(got, expected, case):
    """Return in what an output differs from the expected one; None if it does not."""
    expected = array(expected)
    if expected.ndim == 0:
        got = np.asarray(got)  # a single text is fetched as bytes
    if expected.dtype.kind in "OUS":
        same = got.shape == expected.shape and [v.decode() for v in got.ravel().tolist()] == [
            *map(str, expected.ravel())
        ]
        return None if same else f"got {got}, expected {expected}"
    if (got.shape, got.dtype) != (expected.shape, expected.dtype):
        return f"{got.dtype} {got.shape}, expected {expected.dtype} {expected.shape}"
    try:
        np.testing.assert_allclose(got, expected, rtol=max(case.rtol, 1e-4), atol=max(case.atol, 1e-5))
    except AssertionError as error:
        return str(error)
    return None


def dynamic(model, axes):
    """Return a model whose inputs have dynamic extents along these axes, and no extents stated for other values."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    for each in (*copy.graph.input, *copy.graph.output):
        if each.type.WhichOneof("value") == "tensor_type" and each.type.tensor_type.HasField("shape"):
            for d in list(each.type.tensor_type.shape.dim)[axes]:
                d.Clear()
    for each in copy.graph.output:
        if each.type.WhichOneof("value") == "tensor_type":
            each.type.tensor_type.ClearField("shape")
    return copy


def outcome(case, axes=None):
    """Return "refused", "onnx" or "operators" by how the model is read, and what is wrong with its outputs if it is.

    ``axes`` of the inputs, a slice, become dynamic before.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceNodeWarning)
        try:
            read = read_onnx(case.model if axes is None else dynamic(case.model, axes))
        except (NetError, OperatorError, ParseError):
            return "refused", None
    predictor = read.predictor(trusted=True)
    for inputs, outputs in case.data_sets:
        given = dict(zip((each.name for each in case.model.graph.input), inputs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # overflow of casts, for one
            found = predictor.run({name: array(value) for name, value in given.items() if name in read.inputs})
        for output, expected in zip(case.model.graph.output, outputs):
            wrong = problem(found[output.name], expected, case)
            if wrong:
                return "wrong", f"{output.name}: {wrong}"
    return ("onnx" if read.reference_nodes else "operators"), None


def smaller(*shape):
    """Return random numbers: fewer for three pools in three dimensions, which ONNX computes in Python."""
    return np.random.standard_normal((1, 3, 8, 8, 8) if shape == (1, 3, 32, 32, 32) else shape)


@functools.cache
def all_cases():
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("ignore", RuntimeWarning)  # of ONNX's own computation of what it expects
        patched.setattr(np.random, "randn", smaller)
        patched.setattr(onnx.backend.test.case.base, "process_snippet", lambda *args: ("", ""))  # texts of its pages
        return [case for case in collect_testcases(None) if case.kind == "node"]


def cases(expanded):
    """Return ONNX's cases of operators, or of functions in place of which are the operators that they consist of."""
    return [case for case in all_cases() if ("_expanded" in case.name) == expanded]


@pytest.fixture(scope="module")
def outcomes():
    return [(case, *outcome(case)) for case in cases(False)]


def test_what_is_read_gives_what_onnx_expects(outcomes):
    assert {case.name: said for case, kind, said in outcomes if said} == {}


FORMS = {"first axis": slice(0, 1), "all axes": slice(None)}


def worse(case, axes):
    """Return what is worse in a case with dynamic extents; None if nothing is."""
    try:
        kind, said = outcome(case, axes)
    except (NetError, OperatorError) as error:
        return str(error)
    return kind if kind == "refused" else said


# Operators whose import asks for an extent, or for types that are checked with the shapes.
ASKING = re.compile(
    "(softmax_axis|pool_2d_(ceil|uint8|same)|convtranspose|gemm_default_single|split_|squeeze|gather_neg|pow_types|"
    "clip_default_int8|equal_string|layer_normalization_2d|resize_(up|down)sample_s|group_norm|prelu|max_(ex|two)|sum_)"
)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("form", FORMS)
def test_dynamic_extents_make_nothing_worse(form, outcomes):
    """Neither wrong nor refused: those that ask for extents, and a sample of the others."""
    read = [case for case, kind, said in outcomes if kind != "refused" and not said]
    chosen = [case for i, case in enumerate(read) if i % 25 == 0 or ASKING.search(case.name)]
    assert len(chosen) > 100
    assert {case.name: said for case in chosen if (said := worse(case, FORMS[form]))} == {}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("expanded", [False, True])
def test_all_cases_with_dynamic_extents(form, expanded):
    read = [case for case in cases(expanded) if (found := outcome(case))[0] != "refused" and not found[1]]
    assert {case.name: said for case in read if (said := worse(case, FORMS[form]))} == {}


@pytest.mark.slow
def test_functions_as_the_operators_that_they_consist_of():
    """Some 480 nets of up to 127 operators, which the other cases test one by one."""
    found = [(case, *outcome(case)) for case in cases(True)]
    assert {case.name: said for case, _, said in found if said} == {}
    assert sum(kind != "refused" for _, kind, _ in found) > 0.8 * len(found) > 0


def test_unsigned_numbers_are_operators(outcomes):
    kinds = {case.name: kind for case, kind, _ in outcomes}
    for name in ("add", "sub", "mul", "div", "less", "greater_equal", "equal"):
        assert kinds[f"test_{name}_uint32"] == kinds[f"test_{name}_uint64"] == "operators", name


def test_most_cases_are_read(outcomes):
    counts = defaultdict(int)
    for _, kind, _ in outcomes:
        counts[kind] += 1
    assert counts["operators"] > 350 and counts["operators"] + counts["onnx"] > 0.85 * len(outcomes)


def test_the_page_lists_what_is_read_how(outcomes):
    """Of nodes tested alone: those read as operators in some case, and those that are refused in all."""
    single = [(next(iter(kinds_of(case))), kind) for case, kind, _ in outcomes if len(case.model.graph.node) == 1]
    by_kind = defaultdict(set)
    for op_type, kind in single:
        by_kind[op_type].add(kind)
    text = PAGE.read_text(encoding="utf-8")

    def listed(heading):
        return set(re.findall(r"`(\w+)`", text.split(heading)[1].split("\n\n")[1]))

    assert listed("Read as operators:") >= {op for op, kinds in by_kind.items() if "operators" in kinds}
    assert listed("Refused:") >= {op for op, kinds in by_kind.items() if kinds == {"refused"}}
    assert not listed("Refused:") & {op for op, kinds in by_kind.items() if "operators" in kinds}
