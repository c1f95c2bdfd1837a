"""LSTMUnit and GRUUnit as machine code against the plain kernels in float64: widths, lengths, threads, NaN."""

import numpy as np
import pytest

from checks import run_plain
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.recurrent_units import RECURRENT_UNITS
from netbuilder.ops.recurrent.units import GRUUnit, GRUUnitGradient, LSTMUnit, LSTMUnitGradient
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")

OPERATORS = {"LSTMUnit": LSTMUnit, "LSTMUnitGradient": LSTMUnitGradient, "GRUUnit": GRUUnit,
             "GRUUnitGradient": GRUUnitGradient}  # fmt: skip


def inputs_of(op_type, samples, width, lengths, seed=0):
    rng = np.random.default_rng(seed)
    states, gates = (2, 4) if op_type.startswith("LSTM") else (1, 3)

    def random(n):
        return rng.normal(0, 2, (1, samples, n)).astype(np.float32)

    given = [random(width) for _ in range(states)] + [random(gates * width)]
    given += [] if lengths is None else [rng.integers(0, 5, samples).astype(lengths)]
    given.append(np.array([2], np.int32))
    return given + ([random(width) for _ in range(2 * states)] if op_type.endswith("Gradient") else [])


def check(op_type, given, lengths, drop=False, threads=1):
    bias = {"forget_bias": 1.5} if op_type.startswith("LSTM") else {}
    op = OPERATORS[op_type](drop_states=drop, sequence_lengths=lengths is not None, **bias)
    outputs = {"LSTMUnit": 2, "LSTMUnitGradient": 3, "GRUUnit": 1, "GRUUnitGradient": 2}[op_type]
    op = op.with_arity(len(given), outputs)
    wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in given]
    if op_type.startswith("LSTM") and op_type.endswith("Gradient"):  # the states that the unit has made
        forward = LSTMUnit(drop_states=drop, sequence_lengths=lengths is not None, **bias)
        wide[-4:-2] = run_plain(forward.with_arity(len(given) - 4, 2), wide[:-4])
        given = [*given[:-4], *(x.astype(np.float32) for x in wide[-4:-2]), *given[-2:]]
    found = bind(RECURRENT_UNITS[op_type], op, [Value.of(x) for x in given], threads=threads)
    found.call()
    with np.errstate(all="ignore"):
        wanted = run_plain(op, wide)
    for got, want in zip(found.outputs, wanted):
        np.testing.assert_allclose(got.plain(), want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("lengths", [None, np.int32, np.int64])
@pytest.mark.parametrize("width", [1, 16, 21, 96])
@pytest.mark.parametrize("op_type", OPERATORS)
def test_against_the_plain_kernel(op_type, width, lengths):
    for drop in (False, True):
        check(op_type, inputs_of(op_type, 5, width, lengths), lengths, drop)


@pytest.mark.parametrize("op_type", OPERATORS)
def test_samples_are_divided_among_threads(op_type):
    check(op_type, inputs_of(op_type, 701, 100, np.int32), np.int32, threads=3)


@pytest.mark.parametrize("op_type", OPERATORS)
def test_what_is_not_finite(op_type):
    given = inputs_of(op_type, 6, 19, np.int32)
    gates = given[2 if op_type.startswith("LSTM") else 1]
    gates.ravel()[::7] = np.nan
    gates.ravel()[1::7] = np.inf
    gates.ravel()[2::7] = -np.inf
    check(op_type, given, np.int32)


@pytest.mark.parametrize("op_type", OPERATORS)
def test_other_types_have_other_kernels(op_type):
    given = [x.astype(np.float64) if x.dtype == np.float32 else x for x in inputs_of(op_type, 2, 3, None)]
    op = OPERATORS[op_type](sequence_lengths=False).with_arity(len(given), 1)
    assert bind(RECURRENT_UNITS[op_type], op, [Value.of(x) for x in given]) is None
