"""Prepared updates by machine code: of any size, in a layout with padding, in place or not."""

from dataclasses import dataclass

import numpy as np
import pytest

from checks import run_plain
from machine_code import alone
from netbuilder.engines.arrays import aligned_empty, as_flat
from netbuilder.engines.llvm.elementwise import elementwise
from netbuilder.ops.core.operator import spec_of
from netbuilder.ops.updates.adagrad import Adagrad
from netbuilder.ops.updates.adam import Adam
from netbuilder.ops.updates.rmsprop import RmsProp
from netbuilder.ops.updates.sgd import MomentumSGD, MomentumSGDUpdate

LR, COUNTER = np.float32([0.1]), np.int64([3])
TENSORS = {MomentumSGD: 2, MomentumSGDUpdate: 3, RmsProp: 3, Adam: 4, Adagrad: 3}
UPDATES = [
    MomentumSGD(momentum=0.9),
    MomentumSGD(momentum=0.9, nesterov=True),
    MomentumSGDUpdate(momentum=0.9),
    MomentumSGDUpdate(momentum=0.9, nesterov=True),
    RmsProp(momentum=0.5),
    Adam(),
    Adagrad(decay=0.9),
    Adagrad(weight_decay=0.1),
]


@dataclass(frozen=True)
class Padded:
    """A layout that appends zeroes, eight floats in all."""

    size: int
    engine: str = "TEST"
    itemsize: int = 4

    @property
    def nbytes(self):
        return 4 * (self.size + 8)

    def loops(self, shape):
        return ((0, self.size + 8),)


def _inputs(op, size):
    rng = np.random.default_rng(size)
    tensors = iter([rng.uniform(0.1, 1, size).astype(np.float32) for _ in range(TENSORS[type(op)])])
    return [{"lr": LR, "iter": COUNTER}.get(n) if n in ("lr", "iter") else next(tensors) for n in type(op).inputs]


def _run(op, values, specs, inplace):
    """Run the prepared kernel on buffers of the specs that it requires; return it and the outputs' buffers."""
    op.with_arity(len(values), max(op.n_out, type(op).n_out))
    prepared = elementwise(op, alone(), *specs)
    inputs = []
    for value, spec in zip(values, prepared.inputs):
        buffer = aligned_empty(spec.nbytes)
        buffer[:] = 0
        as_flat(buffer, spec.dtype)[: value.size] = value.reshape(-1)
        inputs.append(buffer if spec.layout is not None else as_flat(buffer, spec.dtype).reshape(spec.shape))
    outputs, free = [], [*range(len(inputs))]
    for j in range(len(prepared.outputs)):
        over = [i for i, k in prepared.inplace if k == j and i in free] if inplace else []
        free = [i for i in free if i not in over[:1]]
        outputs.append(inputs[over[0]] if over else np.full_like(inputs[0], 7))
    prepared.bind(inputs, outputs, aligned_empty(prepared.scratch) if prepared.scratch else None)()
    return prepared, [as_flat(out, np.float32) for out in outputs]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("op", UPDATES, ids=repr)
@pytest.mark.parametrize("size", [3, 16, 1029])
def test_of_any_size(op, size, inplace):
    values = _inputs(op, size)
    _, got = _run(op, values, [spec_of(v) for v in values], inplace)
    for y, want in zip(got, run_plain(op, values)):
        np.testing.assert_allclose(y, want, 1e-5, 1e-6)


NOT_ZERO = [RmsProp(epsilon=0.0), Adagrad(epsilon=0.0)]  # at zeros


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("op", [*UPDATES, *NOT_ZERO], ids=repr)
def test_in_a_layout_whose_padding_stays_zero(op, inplace):
    values = _inputs(op, 6)
    specs = [spec_of(v) for v in values]
    specs[0] = specs[0].with_layout(Padded(6))
    prepared, got = _run(op, values, specs, inplace)
    for name, spec in zip(type(op).inputs, prepared.inputs):
        assert spec.layout == (None if name in ("lr", "iter") else Padded(6)), name
    for y, spec, want in zip(got, prepared.outputs, run_plain(op, values)):
        assert spec.layout == Padded(6)
        np.testing.assert_allclose(y[:6], want, 1e-5, 1e-6)
        np.testing.assert_array_equal(y[6:], 0)
