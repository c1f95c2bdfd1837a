"""Integers beyond 2**53, which doubles cannot hold: every operator gives on a GPU what it gives on the CPU."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from all_suites import all_suites
from checks import CPU, GPU, run_plain
from netbuilder.ops.core.registry import operator_types
from suite import QUICK, OperatorSuite

STEP = 2**53 + 1
OF_THE_HOST = {"AtomicFetchAdd64", "Checkpoint", "Save", "Snapshot"}  # a number that threads share, and files


def with_large_numbers(inputs):
    """Yield the inputs with one of int64 moved by 2**53, or stretched by it, where that does not overflow."""
    for place, x in enumerate(inputs):
        if not isinstance(x, np.ndarray) or x.dtype != np.int64 or not x.size:
            continue
        for large in (x + STEP, x * STEP) if np.abs(x).max() < 1000 else ():
            yield [*inputs[:place], large, *inputs[place + 1 :]]


@pytest.mark.gpu
@pytest.mark.parametrize("op_type", operator_types())
def test_large_integers(op_type):
    suite = all_suites().get(op_type)
    if suite is None or suite.draw is OperatorSuite.draw or op_type in OF_THE_HOST:
        pytest.skip("its tests draw no arrays")

    @settings(QUICK, max_examples=6, database=None)
    @given(data=st.data())
    def run(data):
        op, inputs = suite().draw(data)
        op.with_arity(len(inputs), op.n_out)
        for large in with_large_numbers(inputs):
            try:
                want = run_plain(op, large, CPU)
            except Exception:  # they are indices, sizes or the like
                continue
            for of_gpu, of_cpu in zip(run_plain(op, large, GPU), want):
                if np.asarray(of_cpu).dtype.kind in "iu":
                    np.testing.assert_array_equal(of_gpu, of_cpu)

    run()
