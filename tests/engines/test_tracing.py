"""Functions of NumPy that kernels may call while they are traced."""

import numpy as np
import pytest

from netbuilder.engines.programs import NotTraced
from netbuilder.engines.tracing import Tracer
from netbuilder.ops.core.operator import TensorSpec

TRACED = {
    np.float32: """absolute add cbrt ceil cos cosh divide exp expm1 floor log log10 log1p log2 maximum
        minimum multiply negative positive power reciprocal rint sign sin sinh sqrt square subtract tan tanh trunc
        arccos arcsin arctan equal greater greater_equal isfinite isinf isnan less less_equal not_equal signbit""",
    np.int32: """absolute add maximum minimum multiply negative square subtract
        bitwise_and bitwise_or bitwise_xor invert""",
    np.bool_: "bitwise_and bitwise_or bitwise_xor invert logical_and logical_not logical_or logical_xor",
}


def traced(name, count, dtype):
    tracer = Tracer()
    operands = [tracer.input(number, TensorSpec((3,), np.dtype(dtype))) for number in range(count)]
    return getattr(tracer.xp, name)(*operands)


@pytest.mark.parametrize("dtype", TRACED, ids=lambda dtype: dtype.__name__)
def test_functions_take_as_many_operands_as_numpys_and_have_its_type(dtype):
    for name in TRACED[dtype].split():
        function = getattr(np, name)
        assert traced(name, function.nin, dtype).dtype == function(*[np.ones(1, dtype)] * function.nin).dtype, name
        with pytest.raises(NotTraced, match=name):
            traced(name, function.nin + 1, dtype)
