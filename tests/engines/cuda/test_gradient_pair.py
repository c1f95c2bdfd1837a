"""The gradient of a batch normalization and a Relu as a pair of our kernels, against the array kernels in float64."""

import math
from itertools import product

import numpy as np
import pytest

from netbuilder.engines.cuda.gradient_pair import gradient_pair
from netbuilder.engines.cuda.shifted_sums import normalize_by_statistics_step, normalize_step
from netbuilder.engines.cuda.steps import prepared
from netbuilder.engines.gpu import gpu
from netbuilder.engines.references import In, Out
from netbuilder.ops.core.extensions import Capturable, FurtherBytes
from netbuilder.ops.core.operator import TensorSpec
from on_gpu import launched
from stored_images import SHAPES, Case, got, put, reference, rounded

STORED = ["float32", "float32 last", "float16", "float16 last", "bfloat16 last"]
ALL = pytest.mark.parametrize("shape, stored", [*product(SHAPES, STORED)])
FORMS = {"alone": (False, False), "read by others": (False, True), "of a sum": (True, True)}


def run(case, made, inputs, *, shifted=False, kernels=2):
    """What some kernels compute, with the same bits twice; ``shifted``: from images at odd addresses."""
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
            assert len(launches) == kernels
            found.append([got(out.get(), spec) for out, spec in zip(outs, made.outputs)])
    assert all(a.tobytes() == b.tobytes() for a, b in zip(*found))
    return found[0]


def check(case, add, shared, *, shifted=False, limit=math.inf):
    x, dy, y, addend = case.images(4)
    x = rounded(3 * x + 1, case.elements)
    y[(y < 0.2) & (y > -0.5)] = 0  # the Relu's result is 0 where it has no gradient; -0 and negative values are none
    scale, mean, inverse = case.numbers(), case.numbers(), case.numbers(0.2, 0.5)
    op = case.op("SpatialBNGradient", 5, 3)
    made = gradient_pair(
        op, case.image, TensorSpec(scale.shape, np.dtype(np.float32)), add=add, shared=shared, limit=limit
    )
    results = run(case, made, [x, scale, dy, mean, inverse, y, *([addend] if add else [])], shifted=shifted)
    dz = (dy + addend if add else dy) * ((y > 0) & (y < limit))
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


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_of_a_relu_with_a_limit(form):
    check(Case(SHAPES["vectors"], "float16 last"), *FORMS[form], limit=0.75)


def stored_result(case, forward, limit, x, scale, bias, mean, square):
    """The result of a normalization and a Relu as a kernel of ours stores it, and the statistics that it has used."""
    channels, image = TensorSpec(scale.shape, np.dtype(np.float32)), case.image
    count = x.size // scale.size
    op = case.op("SpatialBN", 5, 5)
    memory = {"x": In(0), "scale": In(1), "bias": In(2), "y": Out(0)}
    if forward == "statistics":
        statistics = [mean, 1 / np.sqrt(square - mean**2)]
        step = normalize_by_statistics_step(op, image, {**memory, "mean": In(3), "inverse": In(4)}, limit=limit)
        outputs = [image]
    else:
        statistics, outputs = [np.zeros_like(mean), count * mean, count * square], [image, channels, channels]
        memory |= {"shift": In(3), "sums": In(4), "sumsq": In(5), "mean": Out(1), "inverse": Out(2)}
        step = normalize_step(op, image, memory, add=False, limit=limit)
    statistics = [each.astype(np.float32) for each in statistics]
    made = prepared([image, *[channels] * (len(statistics) + 2)], outputs, [step])
    y, *found = run(case, made, [x, scale, bias, *statistics], kernels=1)
    shape = [1, -1, *[1] * (x.ndim - 2)]
    mean, inverse, scale, bias = (
        each.astype(np.float64).reshape(shape) for each in (*(found or statistics), scale, bias)
    )
    with np.errstate(invalid="ignore"):
        exact = np.clip((x - mean) * inverse * scale + bias, 0, limit)
        np.testing.assert_allclose(y, exact, atol=4 * case.tolerance, rtol=4 * case.tolerance)
    return y, [each.reshape(-1) for each in (mean, inverse)]


@pytest.mark.one_in(3)
@pytest.mark.gpu
@pytest.mark.parametrize("forward, limit", [("statistics", math.inf), ("statistics", 0.7), ("sums", math.inf)])
@pytest.mark.parametrize("stored", STORED)
def test_what_a_kernel_of_ours_has_stored_is_computed_again_to_the_bit(stored, forward, limit):
    """Near 0 and the limit, too, and of numbers that are none; so all results have the same bits."""
    case = Case(SHAPES["odd" if stored == "float32" else "vectors"], stored)
    x, dy, addend = case.images(3)
    scale, bias, *_ = numbers = case.numbers(), case.numbers(-0.5, 0.5), case.numbers(0.2, 0.5), case.numbers(2, 3)
    for part, border in ((x[::2], 0), (x[1::2], 0.7)):
        _, (mean, inverse) = stored_result(case, forward, limit, x, *numbers)
        near = (mean + (border - bias) / (inverse * scale)).reshape(-1, *[1] * (x.ndim - 2))
        spread = 1 + np.linspace(-1, 1, part.size).reshape(part.shape) * 1e-6
        part[...] = rounded(near * spread, case.elements)
    x[0, 0].flat[:4] = np.nan, np.inf, -np.inf, 3e38 if case.elements != "float16" else 6e4
    y, (mean, inverse) = stored_result(case, forward, limit, x, *numbers)
    assert (y == 0).any() and (np.abs(y[y > 0]) < 1e-3).any()
    op, channels = case.op("SpatialBNGradient", 5, 3), TensorSpec(scale.shape, np.dtype(np.float32))
    for (add, shared), shifted in (*((each, False) for each in FORMS.values()), (FORMS["alone"], True)):
        results = []
        for last in (y, bias):
            made = gradient_pair(
                op, case.image, channels, add=add, shared=shared, limit=limit, computes=last is bias
            )  # fmt: skip
            inputs = [x, scale, dy, mean, inverse, last, *([addend] if add else [])]
            results.append(run(case, made, inputs, shifted=shifted))
        assert np.isfinite(results[0][0]).sum() > x.size // 2
        for of_stored, again in zip(*results):
            np.testing.assert_array_equal(of_stored, again)


@pytest.mark.parametrize("stored", ["bfloat16 last", "float32 last"])
def test_bytes(stored):
    """Sums from X, dY and Y; then dX from X, dY and a byte for each 16 that were read, or from X and dZ."""
    case = Case((4, 64, 8, 8), stored)
    image, channels = case.image.nbytes, TensorSpec((64,), np.dtype(np.float32))
    op = case.op("SpatialBNGradient", 5, 3)
    for (add, shared), further in zip(FORMS.values(), (2 * image + 2 * image // 16, 2 * image, 2 * image)):
        made = gradient_pair(op, case.image, channels, add=add, shared=shared)
        assert made.get(FurtherBytes).count == further + 2 * channels.nbytes
        again = gradient_pair(op, case.image, channels, add=add, shared=shared, computes=True)
        assert again.get(FurtherBytes).count == 2 * image + 2 * channels.nbytes
        assert sum(spec.nbytes for spec in (*made.inputs, *again.outputs)) == sum(
            spec.nbytes for spec in (*again.inputs, *made.outputs)
        ) + (image - channels.nbytes), "Y is not read, but the bias"


@pytest.mark.parametrize("stored", ["bfloat16 last"])
def test_without_a_mask_the_result_of_the_relu_is_read_again(stored):
    case = Case((4, 5, 8, 8), stored)
    op, channels = case.op("SpatialBNGradient", 5, 3), TensorSpec((5,), np.dtype(np.float32))
    made = gradient_pair(op, case.image, channels, add=False, shared=False)
    assert made.get(FurtherBytes).count == 3 * case.image.nbytes + 2 * channels.nbytes
