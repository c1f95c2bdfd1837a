"""Convolutions through copies with channels last, against float64: forward, joined with what follows, backward."""

import numpy as np
import pytest

from checks import interpret
from kernel_cases import random
from kernel_checks import B16, PLAIN, close, has_instructions, needs_bfloat16, padding_is_zero, value_of
from netbuilder.engines import onednn
from netbuilder.engines.onednn import kernels_conv
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import find
from netbuilder.proto.arguments import make_op
from prepared import Value, bind

if not onednn.available():
    pytest.skip("needs oneDNN", allow_module_level=True)

from netbuilder.engines.onednn import autotune as choices
from netbuilder.engines.onednn import channels_last, convolutions, kernels_conv_gradient

CASES = {
    "3x3": ((6, 32, 9, 8), (48, 32, 3, 3), {"kernel": 3, "pad": 1}),
    "strides": ((4, 16, 11, 11), (32, 16, 3, 3), {"kernel": 3, "pad": 1, "stride": 2}),
    "channels that fill no block": ((4, 24, 9, 9), (40, 24, 3, 3), {"kernel": 3, "pad": 1}),
    "1-D": ((4, 16, 20), (32, 16, 3), {"kernels": [3], "pads": [1, 1]}),
    "3-D": ((2, 16, 5, 5, 5), (16, 16, 3, 3, 3), {"kernels": [3, 3, 3]}),
    "one image": ((1, 64, 7, 7), (64, 64, 3, 3), {"kernel": 3, "pad": 1}),
}


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    """Let these kernels serve wherever they can, two images at a time; count how often they do."""
    count = []

    def fastest(key, candidates, n, *, flops):
        if any(len(list(make())) > 0 for name, make in candidates.items() if name == "channels last"):
            count.append(key)
            return "channels last"
        return next(iter(candidates))

    for module in (kernels_conv, kernels_conv_gradient):
        monkeypatch.setattr(module, "fastest", fastest)
    monkeypatch.setattr(convolutions, "WORTH_MEASURING", 0)
    monkeypatch.setattr(channels_last, "CHUNK_BYTES", 1)
    monkeypatch.setenv("NETBUILDER_MEASURE", "1")
    return count


def arrays_of(shape, weights):
    return {"x": random(*shape), "w": random(*weights, seed=1), "b": random(weights[0], seed=2)}


def exact(op_defs, arrays):
    return interpret(op_defs, {name: array.astype(np.float64) for name, array in arrays.items()})


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("block", [PLAIN, B16])
@pytest.mark.parametrize("case", CASES)
def test_forward(case, block, threads, chosen):
    shape, weights, given = CASES[case]
    arrays = arrays_of(shape, weights)
    op_def = make_op("Conv", list(arrays), ["y"], **given)
    values = [value_of(array, block if name == "x" else 0) for name, array in arrays.items()]
    bound = bind(kernels_conv.conv, decode(find("Conv"), op_def), values, threads=threads)
    bound.call()
    assert chosen
    assert "brg" in bound.prepared.name
    close(bound.outputs[0].plain(), exact([op_def], arrays)["y"], case)
    assert padding_is_zero(bound.outputs[0])


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("case", ["3x3", "channels that fill no block"])
def test_forward_joined_with_a_sum(case, relu, inplace, chosen):
    shape, weights, given = CASES[case]
    arrays = arrays_of(shape, weights)
    op_def = make_op("Conv", list(arrays), ["y"], **given)
    want = exact([op_def], arrays)["y"]
    addend = random(*want.shape, seed=3)

    def make(op, ctx, x, w, b, add):
        return kernels_conv.fused_conv(op, ctx, [x, w, b], relu=relu, add=add)

    values = [value_of(arrays["x"], B16), Value.of(arrays["w"]), Value.of(arrays["b"]), value_of(addend, B16)]
    bound = bind(make, decode(find("Conv"), op_def), values, inplace=inplace, threads=2)
    bound.call()
    assert chosen
    want = want + addend
    close(bound.outputs[0].plain(), np.maximum(want, 0) if relu else want, case)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_gradient(case, threads, chosen):
    shape, weights, given = CASES[case]
    arrays = arrays_of(shape, weights)
    forward = make_op("Conv", list(arrays), ["y"], **given)
    arrays["dy"] = random(*exact([forward], arrays)["y"].shape, seed=4)
    op_def = make_op("ConvGradient", ["x", "w", "dy"], ["dw", "db", "dx"], **given)
    values = [value_of(arrays[name], B16 if name != "w" else 0) for name in op_def.input]
    make = kernels_conv_gradient.conv_gradient
    bound = bind(make, decode(find("ConvGradient"), op_def), values, threads=threads)
    bound.call()
    assert chosen or case == "strides"  # there dX is in an order with channels last anyway
    want = exact([op_def], arrays)
    for name, value in zip(op_def.output, bound.outputs):
        close(value.plain(), want[name], f"{case} {name}")
        assert padding_is_zero(value)


@needs_bfloat16
def test_bfloat16(chosen):
    shape, weights, given = CASES["3x3"]
    arrays = arrays_of(shape, weights)
    op_def = make_op("Conv", list(arrays), ["y"], **given)
    values = [Value.of(array) for array in arrays.values()]
    bound = bind(kernels_conv.conv, decode(find("Conv"), op_def), values, precision="bfloat16", threads=2)
    bound.call()
    assert chosen or has_instructions("amx")  # there the library prefers channels last for the operator's images, too
    assert bound.outputs[0].spec.rounds
    want = exact([op_def], arrays)["y"]
    assert np.abs(bound.outputs[0].plain() - want).max() < 0.02 * np.abs(want).max()


@pytest.mark.parametrize(
    ("shape", "weights", "given"),
    [
        ((2, 8, 8, 16), (16, 3, 3, 16), {"kernel": 3, "order": "NHWC"}),
        ((2, 16, 8, 8), (16, 16, 1, 1), {"kernel": 1}),
    ],
    ids=["channels last already", "1x1"],
)
def test_others_are_left_alone(shape, weights, given, chosen):
    arrays = arrays_of(shape, weights)
    op_def = make_op("Conv", list(arrays), ["y"], **given)
    values = [Value.of(array) for array in arrays.values()]
    bound = bind(kernels_conv.conv, decode(find("Conv"), op_def), values)
    bound.call()
    assert not chosen
    close(bound.outputs[0].plain(), exact([op_def], arrays)["y"], "y")


def test_small_ones_are_not_measured(monkeypatch):
    monkeypatch.setattr(convolutions, "WORTH_MEASURING", 10**9)
    monkeypatch.setattr(kernels_conv, "fastest", None)
    choices.take_open()
    shape, weights, given = CASES["3x3"]
    arrays = arrays_of(shape, weights)
    op_def = make_op("Conv", list(arrays), ["y"], **given)
    spec = TensorSpec((6, 48, 9, 8), np.dtype(np.float32))
    bound = bind(kernels_conv.conv, decode(find("Conv"), op_def), [Value.of(array) for array in arrays.values()])
    assert bound.prepared.outputs[0].shape == spec.shape
    assert choices.take_open() == []
