"""Batch normalization over the parts of a batch on a GPU: one launch each, against the array kernels in float64."""

from itertools import product

import numpy as np
import pytest

from checks import interpret
from netbuilder.engines.cuda import channels
from netbuilder.engines.cuda.gpu_layout import BFLOAT16
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.arguments import make_op
from on_gpu import launched, run_net
from prepared import FakePlan
from stored_images import SHAPES, Case, reference, rounded

STORED = ["float32", "float32 last", "float16", "float16 last", "bfloat16 last", "float64"]


ALL = pytest.mark.parametrize("shape, stored", [*product(SHAPES, STORED)])


def case_of(shape, stored):
    return Case(SHAPES[shape], stored)


@pytest.mark.one_in(3)
@pytest.mark.gpu
@ALL
def test_sums(shape, stored):
    case = case_of(shape, stored)
    (x,) = case.images()
    for weight in ([], [np.ones(1)], [np.zeros(1)]):
        op = case.op("ChannelStats", 1 + len(weight), 3)
        found, wanted = (
            f(op, [x, *weight]) for f in (lambda op, ins: case.run(channels.channel_stats, op, ins), reference)
        )
        absolute = reference(case.op("ChannelStats", 1, 2), [np.abs(x)])
        for name, result, want, scale in zip(("sum", "sumsq", "count"), found, wanted, [*absolute, 1.0]):
            case.compare(name, result, want, np.max(scale), min(case.tolerance, 1e-5))


@pytest.mark.gpu
@ALL
def test_sums_for_the_gradient(shape, stored):
    """Alone, after a ReluGradient, and after the Sum of two gradients and a ReluGradient."""
    case = case_of(shape, stored)
    x, dy, y, addend = case.images(4)
    mean, inverse = case.numbers(-0.5, 0.5), case.numbers()
    op = case.op("ChannelBackpropStats", 4, 2)
    for more, dz in (
        ([], dy),
        ([y], dy * (y > 0)),
        ([y, addend], rounded(dy + addend, case.dtype if case.elements == BFLOAT16 else case.elements) * (y > 0)),
    ):
        make = channels.fused_relu_gradient_stats if more else channels.channel_backprop_stats
        *first, dscale, dbias = case.run(make, op, [x, mean, inverse, dy, *more])
        if more:
            case.compare("dz", first[0], dz)
            dz = first[0].astype(np.float64)  # sums are those of the values as they are stored
        terms = np.abs(reference(op, [np.abs(x) + 1, mean, inverse, np.abs(dz)])[0]).max()
        wanted = reference(op, [x, mean, inverse, dz])
        case.compare("dscale", dscale, wanted[0], terms, min(case.tolerance, 2e-5))
        case.compare("dbias", dbias, wanted[1], np.abs(dz).sum() / case.channels + 1, min(case.tolerance, 1e-5))


@pytest.mark.gpu
def test_the_gradient_of_the_relu_may_overwrite_its_input():
    case = case_of("vectors", "bfloat16 last")
    x, dy, y = case.images(3)
    op, numbers = case.op("ChannelBackpropStats", 4, 2), [case.numbers(), case.numbers()]
    inputs = [x, *numbers, dy, y]
    apart, same = (case.run(channels.fused_relu_gradient_stats, op, inputs, overwrite=o) for o in (None, (3, 0)))
    assert all(np.array_equal(a, b) for a, b in zip(apart, same))


@pytest.mark.gpu
@ALL
def test_normalization(shape, stored):
    """From sums of two parts, of which this one is the first; alone and with Relu, Sum, and both."""
    case = case_of(shape, stored)
    x, other, addend = case.images(3)
    sums = [a + b for a, b in zip(*(reference(case.op("ChannelStats", 1, 2), [part]) for part in (x, other)))]
    sums = [each.astype(case.wide).astype(np.float64) for each in sums]
    numbers = [case.numbers() for _ in range(4)]
    for count in ([], [np.array([2.0 * x.size / case.channels])]):
        op = case.op("SpatialBN", 7 + len(count), 5, num_batches=2, epsilon=1e-3, momentum=0.8)
        inputs = [x, *numbers, *sums, *count]
        y, *statistics = reference(op, inputs)
        for make, more, want in (
            (channels.spatial_bn, [], y),
            (channels.fused_bn_relu, [], np.maximum(y, 0)),
            (channels.fused_bn_sum, [addend], y + addend),
            (channels.fused_bn_sum_relu, [addend], np.maximum(y + addend, 0)),
        ):
            result, *found = case.run(make, op, [*inputs, *more])
            case.compare("y", result, want)
            for name, a, b in zip(op.outputs[1:], found, statistics):
                case.compare(name, a, b, tolerance=1e-5)


@pytest.mark.gpu
def test_sums_over_nothing_change_no_running_statistics():
    case = case_of("vectors", "float32 last")
    (x,) = case.images()
    zeros = np.zeros(case.channels)
    op = case.op("SpatialBN", 8, 5, num_batches=2)
    inputs = [x, *(case.numbers() for _ in range(4)), zeros, zeros, np.zeros(1)]
    _, mean, variance, saved, _ = case.run(channels.spatial_bn, op, inputs)
    np.testing.assert_array_equal(mean, inputs[3])
    np.testing.assert_array_equal(variance, inputs[4])
    assert not saved.any()


@pytest.mark.gpu
@ALL
def test_gradient(shape, stored):
    case = case_of(shape, stored)
    x, dy = case.images(2)
    numbers = [case.numbers() for _ in range(5)]
    count = np.array([3.0 * x.size / case.channels])
    for more in ([], [count], [count, np.ones(1)], [count, np.zeros(1)]):
        op = case.op("SpatialBNGradient", 7 + len(more), 3, num_batches=3)
        inputs = [x, numbers[0], dy, *numbers[1:], *more]
        for name, result, want in zip(
            op.outputs, case.run(channels.spatial_bn_gradient, op, inputs), reference(op, inputs)
        ):
            case.compare(name, result, want, tolerance=None if name == "dX" else 1e-5)


@pytest.mark.gpu
def test_channels_last_by_the_argument():
    """Images of a net in the order NHWC are in plain order."""
    case = Case((3, 4, 5, 6), "float32", "NHWC")
    (x,) = case.images()
    op = case.op("ChannelStats", 1, 2)
    for result, want in zip(case.run(channels.channel_stats, op, [x]), reference(op, [x])):
        case.compare("sum", result, want, np.square(x).sum())


@pytest.mark.gpu
def test_arrays_that_begin_anywhere():
    """Images in the middle of another array are read element by element."""
    case = case_of("vectors", "float32")
    (x,) = case.images()
    op = case.op("ChannelStats", 1, 2)
    made = channels.channel_stats(op, FakePlan(), case.image)
    with gpu(0) as here:
        whole = here.xp.asarray(np.concatenate([[7], x.ravel()]).astype(np.float32))
        outs = [here.xp.empty(case.channels, np.float32) for _ in range(2)]
        made.bind([whole[1:].reshape(x.shape)], outs, here.xp.empty(made.scratch, np.uint8))()
        found = [out.get() for out in outs]
    for result, want in zip(found, reference(op, [x])):
        case.compare("sum", result, want, np.square(x).sum())


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_two_parts_are_one_batch(order):
    """A net over two parts on one GPU gives what a normalization of the whole batch gives, forward and backward."""
    rng, shape = np.random.default_rng(0), (4, 6, 5, 3)
    whole = {name: rng.standard_normal(shape) for name in ("x", "dy")}
    numbers = {name: rng.uniform(0.5, 1, shape[1 if order == "NCHW" else -1]) for name in "sbmv"}
    names = ["x", "s", "b", "m", "v"]
    full = [
        make_op("SpatialBN", names, ["y", "m", "v", "sm", "si"], order=order),
        make_op("SpatialBNGradient", ["x", "s", "dy", "sm", "si"], ["dx", "ds", "db"], order=order),
    ]
    want = interpret(full, {**whole, **numbers})
    ops, feeds = [], {name: value.astype(np.float32) for name, value in numbers.items()}
    for k in "01":
        feeds |= {
            f"{name}{k}": part.astype(np.float32) for name in whole for part in [np.split(whole[name], 2)[int(k)]]
        }
        feeds |= {f"{name}{k}": feeds[name] for name in "mv"}
        ops.append(make_op("ChannelStats", [f"x{k}"], [f"sum{k}", f"sumsq{k}"], order=order))
    ops += [make_op("Sum", [f"{name}0", f"{name}1"], [name]) for name in ("sum", "sumsq")]
    for k in "01":
        given, outs = (
            [f"x{k}", "s", "b", f"m{k}", f"v{k}", "sum", "sumsq"],
            [f"{n}{k}" for n in ("y", "m", "v", "sm", "si")],
        )
        ops.append(make_op("SpatialBN", given, outs, order=order, num_batches=2))
    for k in "01":
        given = [f"x{k}", f"sm{k}", f"si{k}", f"dy{k}"]
        ops.append(make_op("ChannelBackpropStats", given, [f"ds{k}", f"db{k}"], order=order))
    ops += [make_op("Sum", [f"{name}0", f"{name}1"], [name]) for name in ("ds", "db")]
    for k in "01":
        given = [f"x{k}", "s", f"dy{k}", f"sm{k}", f"si{k}", "ds", "db"]
        ops.append(make_op("SpatialBNGradient", given, [f"dx{k}", f"dS{k}", f"dB{k}"], order=order, num_batches=2))
    with launched() as launches:
        found = run_net(ops, feeds, [name for op in ops for name in op.output])
        assert sum("channel" in title or "normalize_part" in title for title in launches) == 8
    for name, parts in {"y": "y", "dx": "dx"}.items():
        both = np.concatenate([found[f"{parts}0"], found[f"{parts}1"]])
        np.testing.assert_allclose(both, want[name], atol=2e-5)
    for name in ("m", "v", "sm", "si"):
        for k in "01":
            np.testing.assert_allclose(found[f"{name}{k}"], want[name], rtol=1e-5, atol=1e-6)
    for name, part in (("ds", "dS"), ("db", "dB")):
        np.testing.assert_allclose(found[f"{part}0"] + found[f"{part}1"], want[name], rtol=1e-4, atol=1e-4)


def test_other_types_are_left_to_the_array_kernels():
    op = Case((2, 3, 4, 4), "float32").op("ChannelStats", 1, 2)
    assert channels.channel_stats(op, FakePlan(), TensorSpec((2, 3, 0, 4), np.dtype(np.float32))) is None
    bn = Case((2, 3, 4, 4), "float32").op("SpatialBN", 5, 5)
    specs = [TensorSpec((2, 3, 4, 4), np.dtype(np.float32)), *[TensorSpec((3,), np.dtype(np.float32))] * 4]
    assert channels.spatial_bn(bn, FakePlan(), *specs) is None
