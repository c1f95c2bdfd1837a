"""Convolutions by minimal filtering, against float64: forward, with a Relu, backward; where they do not serve."""

import numpy as np
import pytest

from checks import interpret
from kernel_cases import random
from kernel_checks import B16, PLAIN, has_instructions, value_of
from netbuilder.engines import onednn
from netbuilder.engines.onednn import kernels_conv
from netbuilder.ops.core.contexts import CHANNELS_LAST
from netbuilder.ops.core.extensions import SavedFlops
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.profile.profiling import profile
from netbuilder.runtime.profile.roofline import Limits
from netbuilder.runtime.profile.table import profile_table
from prepared import Value, bind
from switches import single

if not onednn.available():
    pytest.skip("needs oneDNN", allow_module_level=True)

from netbuilder.engines.onednn import (
    convolutions,
    kernels_conv_gradient,
    winograd_matrices,
    winograd_tiles,
)

CASES = {
    "whole tiles": ((4, 16, 8, 12), (32, 16, 3, 3), {"kernel": 3, "pad": 1}),
    "odd numbers of tiles, with rests": ((6, 32, 9, 11), (48, 32, 3, 3), {"kernel": 3, "pad": 1}),
    "no padding": ((2, 16, 7, 6), (16, 16, 3, 3), {"kernel": 3}),
    "uneven padding": ((2, 16, 7, 6), (16, 16, 3, 3), {"kernel": 3, "pad_t": 2, "pad_l": 0, "pad_b": 1, "pad_r": 2}),
    "less than a tile": ((3, 16, 2, 3), (16, 16, 3, 3), {"kernel": 3, "pad": 1}),
    "one image": ((1, 64, 7, 7), (64, 64, 3, 3), {"kernel": 3, "pad": 1}),
}


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    """Let these kernels serve wherever they can, few images at a time; what they were chosen for."""
    keys = []

    def fastest(key, candidates, n, *, flops):
        if "winograd" in candidates and list(candidates["winograd"]()):
            keys.append(key)
            return "winograd"
        return next(iter(candidates))

    for module in (kernels_conv, kernels_conv_gradient):
        monkeypatch.setattr(module, "fastest", fastest)
    monkeypatch.setattr(convolutions, "WORTH_MEASURING", 0)
    monkeypatch.setattr(winograd_tiles, "CHUNK_BYTES", 1 << 17)
    monkeypatch.setenv("NETBUILDER_MEASURE", "1")
    return keys


def arrays_of(shape, weights):
    return {"x": random(*shape), "w": random(*weights, seed=1), "b": random(weights[0], seed=2)}


def exact(op_defs, arrays):
    return interpret(op_defs, {name: array.astype(np.float64) for name, array in arrays.items()})


def near(value, want):
    assert value.shape == want.shape
    assert np.abs(value - want).max() <= 5e-6 * max(np.abs(want).max(), 1)


def test_the_matrices_compute_correlations():
    b, g, a = winograd_matrices.matrices()
    rng = np.random.default_rng(0)
    data, window = rng.normal(size=6), rng.normal(size=3)
    assert np.allclose(a @ ((g @ window) * (b @ data)), np.correlate(data, window), rtol=0, atol=1e-14)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("block", [PLAIN, B16])
@pytest.mark.parametrize("case", CASES)
def test_forward(case, block, threads, bias, chosen):
    shape, weights, given = CASES[case]
    arrays = arrays_of(shape, weights)
    if not bias:
        del arrays["b"]
    op_def = make_op("Conv", list(arrays), ["y"], **given)
    values = [value_of(array, block if name == "x" else 0) for name, array in arrays.items()]
    bound = bind(kernels_conv.conv, decode(find("Conv"), op_def), values, threads=threads)
    for _ in range(2):  # the second run must not use what the first left in scratch memory
        bound.call()
    assert chosen
    near(bound.outputs[0].plain(), exact([op_def], arrays)["y"])


@pytest.mark.parametrize("case", CASES)
def test_constant_weights_are_stored_as_products_read_them(case, chosen):
    shape, weights, given = CASES[case]
    arrays = arrays_of(shape, weights)
    op_def = make_op("Conv", list(arrays), ["y"], **given)
    values = [value_of(array, B16 if name == "x" else 0) for name, array in arrays.items()]
    bound = bind(kernels_conv.conv, decode(find("Conv"), op_def), values, threads=2, constants=[1, 2])
    bound.call()
    assert chosen
    if has_instructions("avx512"):
        assert (bound.prepared.inputs[1].layout.order is None) == (
            weights[0] == 64
        )  # blocks of 64 are in row-major order
        assert "gemm" not in bound.prepared.name  # the library's slower products
    near(bound.outputs[0].plain(), exact([op_def], arrays)["y"])


@pytest.mark.parametrize("case", CASES)
def test_images_with_channels_last(case, chosen):
    shape, weights, given = CASES[case]
    arrays = arrays_of(shape, weights)
    op_def = make_op("Conv", list(arrays), ["y"], **given)
    values = [Value.of(array) for array in arrays.values()]
    bound = bind(kernels_conv.conv, decode(find("Conv"), op_def), values, image_order=CHANNELS_LAST, threads=2)
    bound.call()
    assert any("channels last" in key for key in chosen)
    near(bound.outputs[0].plain(), exact([op_def], arrays)["y"])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("add", [False, True])
def test_joined_with_what_follows(add, chosen):
    shape, weights, given = CASES["odd numbers of tiles, with rests"]
    arrays = arrays_of(shape, weights)
    op_def = make_op("Conv", list(arrays), ["y"], **given)
    want = exact([op_def], arrays)["y"]
    addend = random(*want.shape, seed=3)

    def make(op, ctx, x, w, b, *more):
        return kernels_conv.fused_conv(op, ctx, [x, w, b], relu=True, add=more[0] if more else None)

    values = [value_of(arrays["x"], B16), Value.of(arrays["w"]), Value.of(arrays["b"])]
    values += [value_of(addend, B16)] if add else []
    bound = bind(make, decode(find("Conv"), op_def), values, threads=2)
    bound.call()
    # Fusions with a sum use the library's own kernels; narrower CPUs have no product with a Relu.
    assert bool(chosen) != add or not has_instructions("avx512")
    near(bound.outputs[0].plain(), np.maximum(want + addend if add else want, 0))


@pytest.mark.parametrize("outputs", [["dw", "db", "dx"], ["dw", "dx"]])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_gradient(case, threads, outputs, chosen):
    shape, weights, given = CASES[case]
    arrays = arrays_of(shape, weights)
    forward = make_op("Conv", list(arrays), ["y"], **given)
    arrays["dy"] = random(*exact([forward], arrays)["y"].shape, seed=4)
    given = given if "db" in outputs else {**given, "no_bias": 1}
    op_def = make_op("ConvGradient", ["x", "w", "dy"], outputs, **given)
    values = [value_of(arrays[name], B16 if name != "w" else 0) for name in op_def.input]
    make = kernels_conv_gradient.conv_gradient
    bound = bind(make, decode(find("ConvGradient"), op_def), values, threads=threads)
    for _ in range(2):
        bound.call()
    assert len(chosen) == 2
    want = exact([op_def], arrays)
    for name, value in zip(op_def.output, bound.outputs):
        near(value.plain(), want[name])


@pytest.mark.parametrize(
    ("shape", "weights", "given"),
    [
        ((2, 16, 8, 8), (16, 16, 3, 3), {"kernel": 3, "stride": 2}),
        ((2, 16, 8, 8), (16, 16, 3, 3), {"kernel": 3, "dilation": 2}),
        ((2, 32, 8, 8), (32, 16, 3, 3), {"kernel": 3, "group": 2}),
        ((2, 16, 8, 8), (16, 16, 5, 5), {"kernel": 5}),
        ((2, 3, 8, 8), (16, 3, 3, 3), {"kernel": 3}),
        ((2, 16, 8), (16, 16, 3), {"kernels": [3]}),
    ],
    ids=["strides", "dilation", "groups", "5x5", "channels that fill no block", "1-D"],
)
def test_others_are_left_alone(shape, weights, given, chosen):
    arrays = arrays_of(shape, weights)
    op_def = make_op("Conv", list(arrays), ["y"], **given)
    bound = bind(kernels_conv.conv, decode(find("Conv"), op_def), [Value.of(array) for array in arrays.values()])
    bound.call()
    assert not chosen
    near(bound.outputs[0].plain(), exact([op_def], arrays)["y"])


def filtered_flops(images, channels, filters, *, of_filters=False):
    """Return the operations of the matrix products for images with 2x2 tiles each, by Lavin and Gray's counts."""
    tiles = 4 * images
    images_at_points = 36 * 36 * tiles * channels
    products = 36 * tiles * channels * filters
    results = 16 * 36 * tiles * filters  # of tiles; for the gradient of filters, evaluated at the points
    return 2 * (images_at_points + products + results + (9 * 36 * channels * filters if of_filters else 0))


def test_what_is_saved(chosen):
    """The kernels say how many operations fewer they do than the direct convolution."""
    n, o, i = 6, 64, 128
    arrays = arrays_of((n, i, 7, 7), (o, i, 3, 3))
    op_def = make_op("Conv", list(arrays), ["y"], kernel=3, pad=1)
    values = [value_of(arrays["x"], B16), Value.of(arrays["w"]), Value.of(arrays["b"])]
    made = bind(kernels_conv.conv, decode(find("Conv"), op_def), values).prepared
    direct = 2 * n * 7 * 7 * 9 * o * i
    assert made.get(SavedFlops).count == direct - filtered_flops(n, i, o) > 0.4 * direct

    arrays["dy"] = random(n, o, 7, 7, seed=4)
    gradient = make_op("ConvGradient", ["x", "w", "dy"], ["dw", "dx"], kernel=3, pad=1, no_bias=1)
    values = [value_of(arrays[name], B16 if name != "w" else 0) for name in gradient.input]
    made = bind(kernels_conv_gradient.conv_gradient, decode(find("ConvGradient"), gradient), values).prepared
    done = filtered_flops(n, i, o, of_filters=True) + filtered_flops(n, o, i)
    assert made.get(SavedFlops).count == 2 * direct - done


def test_a_direct_convolution_saves_nothing():
    arrays = arrays_of((2, 16, 8, 8), (16, 16, 5, 5))
    op_def = make_op("Conv", list(arrays), ["y"], kernel=5)
    values = [Value.of(array) for array in arrays.values()]
    assert bind(kernels_conv.conv, decode(find("Conv"), op_def), values).prepared.get(SavedFlops) is None


def test_the_profile_states_the_limit_both_ways(chosen, monkeypatch):
    net = NetDef(name="net", external_input=["x", "w", "b"])
    net.op.append(make_op("Conv", ["x", "w", "b"], ["y"], kernel=3, pad=1))
    arrays, limits = arrays_of((6, 128, 7, 7), (64, 128, 3, 3)), {"CPU": Limits(1e6, "a slow machine", 1e15, 1)}
    fractions = []
    for without in ([], single("winograd")):
        workspace = Workspace(threads=1, without=without)
        for name, array in arrays.items():
            workspace.feed(name, array)
        found = profile(workspace, workspace.create_net(net), runs=1, warmup=1, limits=limits)
        (call,) = (call for call in found.calls if call.kind == "Conv")
        done = filtered_flops(6, 128, 64) + 6 * 64 * 7 * 7 if not without else call.flops  # and the additions of b
        assert call.kernel_flops == done
        assert found.kernel_limit_seconds == pytest.approx(done / 1e6)
        assert found.limit_seconds == pytest.approx(call.flops / 1e6)
        fractions.append(found.to_dict()["fraction_of_kernel_limit"] / found.to_dict()["fraction_of_limit"])
        lines = [line for line in profile_table(found).splitlines() if line.startswith("limit ")]
        assert lines[-1].startswith(f"limit {1e3 * done / 1e6:.3f} ms, {found.kernel_fraction:.2f} of the step")
        assert len(lines) == (1 if without else 2), "one line says it where both limits are equal"
    assert fractions[0] < 0.6 and fractions[1] == 1
