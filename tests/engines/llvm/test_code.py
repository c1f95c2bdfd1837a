"""Programs of the same form share their code: it is what would be written for each of them."""

import numpy as np
import pytest

from netbuilder.engines.llvm.code import Function, generate
from netbuilder.engines.tracing import Tracer
from netbuilder.ops.core.operator import TensorSpec

FORMULAS = {
    "shifted": lambda x, y: x * 2.5 + y,
    "shifted by another number": lambda x, y: x * 3.5 + y,
    "with a number that is part of the code": lambda x, y: x * 2.0 + y,
    "with the negative zero": lambda x, y: (x + y) * -0.0,
    "with zero": lambda x, y: (x + y) * 0.0,
    "the operands exchanged": lambda x, y: y * 2.5 + x,
    "subtracted": lambda x, y: x * 2.5 - y,
    "used twice": lambda x, y: (x + y) * (x + y),
    "made twice": lambda x, y: (x + y) * (y + x),
}


def _program(formula, shape, other, dtypes, result):
    tracer = Tracer(is_gpu=False)
    inputs = [tracer.input(i, TensorSpec(s, np.dtype(t))) for i, (s, t) in enumerate(zip((shape, other), dtypes))]
    made = FORMULAS[formula](*inputs)
    return tracer.program([tracer.as_stored(made, TensorSpec(made.shape, np.dtype(result)))])


@pytest.mark.parametrize("dtypes", [("f4", "f4", "f4"), ("f8", "f4", "f8"), ("f4", "f8", "f8")], ids="-".join)
def test_the_code_is_that_of_the_program(dtypes):
    *given, result = dtypes
    texts = set()
    for formula in FORMULAS:
        for shape in ((2, 4, 3, 3), (1, 4, 5, 7), (6, 2), (1, 1)):
            for other in (shape, (1, *shape[1:]), (*shape[:-1], 1), (1,) * len(shape)):
                program = _program(formula, shape, other, given, result)
                found, own = generate(program, halves=lambda: False), Function(program).code()
                for name in ("text", "read", "constants", "extents", "work"):
                    assert getattr(found, name) == getattr(own, name), (formula, shape, other, name)
                texts.add(id(found.text))
    assert len(texts) < 8 * len(FORMULAS)  # of 16 programs of each


def test_programs_that_differ_in_extents_share_their_text():
    codes = [
        generate(_program("shifted", (n, 4, n, n), (1, 4, 1, 1), ("f4", "f4"), "f4"), halves=lambda: False)
        for n in (2, 3)
    ]
    assert codes[0].text is codes[1].text
    assert [code.extents for code in codes] == [(2, 4, 4), (3, 4, 9)]
