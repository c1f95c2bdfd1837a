"""The gradient of a batch normalization and a Relu as a pair of our kernels, against the array kernels in float64."""

from itertools import product

import numpy as np
import pytest

from netbuilder.engines.cuda.gradient_pair import gradient_pair
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.extensions import Capturable, FurtherBytes
from netbuilder.ops.core.operator import TensorSpec
from on_gpu import launched
from stored_images import SHAPES, Case, got, put, reference, rounded

STORED = ["float32", "float32 last", "float16", "float16 last", "bfloat16 last"]
ALL = pytest.mark.parametrize("shape, stored", [*product(SHAPES, STORED)])
FORMS = {"alone": (False, False), "read by others": (False, True), "of a sum": (True, True)}


def run(case, made, inputs, *, shifted=False):
    """What the pair computes, with the same bits twice; ``shifted``: from images at odd addresses."""
    assert made.get(Capturable)
    found = []
    for _ in range(2):
        with launched() as launches, gpu(0) as here:

            def placed(array, spec):
                flat = array.reshape(-1).view(np.uint8)
                skip = 4 if shifted and spec.shape == case.image.shape else 0
                memory = here.xp.empty(flat.size + skip, np.uint8)
                memory[skip:].set(flat)
                return memory[skip:]

            ins = [placed(put(array, spec), spec) for array, spec in zip(inputs, made.inputs)]
            outs = [placed(np.full_like(put(np.zeros(s.shape), s), 3), s) for s in made.outputs]
            scratch = here.xp.full(made.scratch, 7, np.uint8)
            made.bind(ins, outs, scratch)()
            assert len(launches) == 2
            found.append([got(out.get(), spec) for out, spec in zip(outs, made.outputs)])
    assert all(a.tobytes() == b.tobytes() for a, b in zip(*found))
    return found[0]


def check(case, add, shared, *, shifted=False):
    x, dy, y, addend = case.images(4)
    x = rounded(3 * x + 1, case.elements)
    y[(y < 0.2) & (y > -0.5)] = 0  # the Relu's result is 0 where it has no gradient; -0 and negative values are none
    scale, mean, inverse = case.numbers(), case.numbers(), case.numbers(0.2, 0.5)
    op = case.op("SpatialBNGradient", 5, 3)
    made = gradient_pair(op, case.image, TensorSpec(scale.shape, np.dtype(np.float32)), add=add, shared=shared)
    results = run(case, made, [x, scale, dy, mean, inverse, y, *([addend] if add else [])], shifted=shifted)
    dz = (dy + addend if add else dy) * (y > 0)
    if shared:
        case.compare("dz", results[0], dz)
        dz, results = results[0].astype(np.float64), results[1:]  # the rest is that of the values as they are stored
    wanted = reference(op, [x, scale, dz, mean, inverse])
    terms = reference(op, [np.abs(x) + 1, scale, np.abs(dz), -np.abs(mean), inverse])
    case.compare("dx", results[0], wanted[0])
    for name, result, want, absolute in zip(("dscale", "dbias"), results[1:], wanted[1:], terms[1:]):
        case.compare(name, result, want, np.abs(absolute).max() + 1e-3, 1e-5)


@pytest.mark.one_in(3)
@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
@ALL
def test_pair(shape, stored, form):
    check(Case(SHAPES[shape], stored), *FORMS[form])


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_channels_are_the_last_axis(form):
    check(Case((3, 7, 8, 24), "bfloat16", "NHWC"), *FORMS[form])


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stored", ["bfloat16 last", "float32 last"])
def test_images_that_begin_anywhere(stored, form):
    """Elements are read one by one, and Y twice."""
    check(Case(SHAPES["vectors"], stored), *FORMS[form], shifted=True)


@pytest.mark.parametrize("stored", ["bfloat16 last", "float32 last"])
def test_bytes(stored):
    """Sums from X, dY and Y; then dX from X, dY and a byte for each 16 that were read, or from X and dZ."""
    case = Case((4, 64, 8, 8), stored)
    image, channels = case.image.nbytes, TensorSpec((64,), np.dtype(np.float32))
    op = case.op("SpatialBNGradient", 5, 3)
    for (add, shared), further in zip(FORMS.values(), (2 * image + 2 * image // 16, 2 * image, 2 * image)):
        made = gradient_pair(op, case.image, channels, add=add, shared=shared)
        assert made.get(FurtherBytes).count == further + 2 * channels.nbytes


@pytest.mark.parametrize("stored", ["bfloat16 last"])
def test_without_a_mask_the_result_of_the_relu_is_read_again(stored):
    case = Case((4, 5, 8, 8), stored)
    op, channels = case.op("SpatialBNGradient", 5, 3), TensorSpec((5,), np.dtype(np.float32))
    made = gradient_pair(op, case.image, channels, add=False, shared=False)
    assert made.get(FurtherBytes).count == 3 * case.image.nbytes + 2 * channels.nbytes
