"""The golden data are complete, and their reader detects differences."""

import doctest
import re

import numpy as np
import pytest

import golden_data
from golden_data import cases, export, exports, index, mismatch, net, nets


def test_every_case_of_the_index_is_there():
    rows = index()["ops"]
    found = [case for name, row in rows.items() for case in cases(name)[: row["cases"]]]  # later ones follow
    assert len(found) == sum(row["cases"] for row in rows.values()) == 823
    assert sum(case.has_gradient for case in found) == 489
    assert len(cases()) > len(found)
    assert len(nets()) == 49 and len(exports()) == 10


def test_cases_hold_what_their_operator_names():
    for case in cases():
        assert set(case.meta.get("inputs", case.operator.input)) == set(case.inputs), case
        assert set(case.meta.get("outputs", case.operator.output)) == set(case.outputs), case
        assert set(case.operator.output) >= set(case.outputs), case
        if "grad_op_types" in case.meta:
            assert [op.type for op in case.gradient_ops] == case.meta["grad_op_types"], case
        else:  # stored later, without this list
            assert bool(case.gradient_ops) == case.has_gradient, case
        if case.has_gradient:
            assert set(case.meta["grad_of_outputs"].values()) == set(case.output_grads), case


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", nets())
def test_nets_load(name):
    loaded = net(name)
    assert loaded.protos and all(proto.op for proto in loaded.protos.values())
    if loaded.runnable:
        assert loaded.iterations() == [1, 2, 3, 4, 5]
        assert loaded.expected(1).keys() >= loaded.start_values().keys()
        assert all(loaded.inputs(k) for k in loaded.iterations())


@pytest.mark.parametrize("name", exports())
def test_exports_load(name):
    loaded = export(name)
    assert loaded.meta["name"] == name
    if "predict_net" in loaded.protos:
        assert loaded.net().op


def test_unknown_names_are_refused():
    with pytest.raises(KeyError, match="no golden cases for operator 'Convolution'"):
        cases("Convolution")
    with pytest.raises(KeyError, match="no golden net 'nothing'"):
        net("nothing")


@pytest.mark.parametrize(
    "got, want, check, text",
    [
        (np.float32([1, 2]), np.float32([1, 2]), "exact", None),
        (np.float32([1, 2]), np.float32([[1, 2]]), "close", r"shape \(2,\), expected \(1, 2\)"),
        (np.float64([1]), np.float32([1]), "distribution", "type float64, expected float32"),
        (np.float32([1, 2]), np.float32([9, 9]), "distribution", None),
        (np.float32([1, 2.0001]), np.float32([1, 2]), "close", None),
        (np.float32([1, 2.0001]), np.float32([1, 2]), "exact", "1 of 2 values differ"),
        (np.float32([1, 3]), np.float32([1, 2]), "close", r"at \(1,\): got 3.0, expected 2.0"),
        (np.int32([1, 3]), np.int32([1, 2]), "close", r"1 of 2 values differ.*got 3, expected 2"),
        (np.array([True]), np.array([False]), "exact", "1 of 1"),
        (np.float32(np.inf), np.float32(np.inf), "close", None),
        (np.float32(7), np.float32(np.inf), "close", "got 7.0, expected inf"),
        (np.float32(np.nan), np.float32(1), "close", "got nan"),
    ],
)
def test_mismatch(got, want, check, text):
    found = mismatch(got, np.asarray(want), check, rtol=1e-3, atol=1e-6)
    if text is None:
        assert found is None
    else:
        assert found is not None and re.search(text, found), found


def test_examples():
    assert doctest.testmod(golden_data).failed == 0
