"""Folding of batch normalization: results compared with unfolded nets; cases that are not folded."""

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.passes import fold_batch_norm
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace

CHANNELS = 6


def statistics(rng, prefix, channels=CHANNELS):
    values = {
        "s": rng.uniform(0.5, 2, channels),
        "b": rng.normal(size=channels),
        "m": rng.normal(size=channels),
        "v": rng.uniform(0.2, 3, channels),
    }
    return {f"{prefix}_{name}": value.astype(np.float32) for name, value in values.items()}


def norm(net, source, target, prefix, **kwargs):
    net.SpatialBN([source, *(f"{prefix}_{x}" for x in "sbmv")], target, **{"is_test": 1, **kwargs})


def run(net, values, outputs=("y",)):
    workspace = Workspace(threads=1)
    for name, value in values.items():
        workspace.feed(name, value)
    workspace.run_net_once(net)
    return [workspace.fetch(name) for name in outputs]


def random(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


LAYERS = {
    "Conv": ((2, 4, 7, 7), (CHANNELS, 4, 3, 3), {"kernel": 3, "pad": 1}),
    "Conv in groups": ((2, 4, 7, 7), (CHANNELS, 2, 3, 3), {"kernel": 3, "group": 2}),
    "Conv NHWC": ((2, 7, 7, 4), (CHANNELS, 3, 3, 4), {"kernel": 3, "order": "NHWC"}),
    "ConvTranspose": ((2, 4, 5, 5), (4, CHANNELS, 2, 2), {"kernel": 2, "stride": 2}),
    "FC": ((5, 4), (CHANNELS, 4), {}),
    "FCTransposed": ((5, 4), (4, CHANNELS), {}),
}


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("inplace", [True, False])
def test_numbers_stay(case, with_bias, inplace):
    op_type = case.split()[0]
    if op_type.startswith("FC") and not with_bias:
        pytest.skip("FC always has a bias")
    x_shape, w_shape, args = LAYERS[case]
    rng = np.random.default_rng(0)
    values = {"w": random(rng, *w_shape), **statistics(rng, "bn")}
    if with_bias:
        values["c"] = random(rng, CHANNELS)
    net = Net("layer")
    middle = "y" if inplace else "between"
    getattr(net, op_type)(["x", "w", "c"][: 2 + with_bias], middle, **args)
    norm(net, middle, "y", "bn", epsilon=1e-3, **{k: v for k, v in args.items() if k == "order"})
    net.AddExternalOutput("y")
    before, x = net.Proto().SerializeToString(), random(rng, *x_shape)
    folded, parameters = fold_batch_norm(net, values)
    assert net.Proto().SerializeToString() == before
    assert [op.type for op in folded.op] == [op_type] and len(folded.op[0].input) == 3
    assert sorted(parameters) == sorted(folded.op[0].input[1:])
    assert set(parameters) <= set(folded.external_input) and not {"w", "bn_s"} & set(folded.external_input)
    assert all(a.dtype == np.float32 for a in parameters.values())
    (want,), (got,) = run(net, {**values, "x": x}), run(folded, {**parameters, "x": x})
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_what_cannot_be_folded_becomes_affine(order, dtype):
    rng = np.random.default_rng(3)
    values = {
        **statistics(rng, "bn"),
        "x": random(rng, *((2, CHANNELS, 3, 3) if order == "NCHW" else (2, 3, 3, CHANNELS))),
    }
    values["x"] = values["x"].astype(dtype)
    if dtype == np.float64:
        values = {name: value.astype(dtype) for name, value in values.items()}
    net = Net("alone")
    norm(net, "x", "y", "bn", epsilon=1e-3, order=order)
    net.AddExternalOutput("y")
    given = {name: value for name, value in values.items() if name != "x"}
    same, _ = fold_batch_norm(net, given)
    assert [op.type for op in same.op] == ["SpatialBN"]
    folded, parameters = fold_batch_norm(net, given, affine=True)
    assert [op.type for op in folded.op] == ["AffineChannel"] and len(parameters) == 2
    assert set(folded.external_input) == {"x", *parameters}
    (want,), (got,) = run(net, values), run(folded, {**parameters, "x": values["x"]})
    assert got.dtype == dtype
    rtol = {np.float64: 1e-12, np.float32: 1e-5, np.float16: 2e-3}[dtype]
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("wrong", ["v", "m"])
def test_what_would_not_be_finite_stays(wrong):
    values = statistics(np.random.default_rng(4), "bn")
    values[f"bn_{wrong}"][2] = np.inf if wrong == "m" else -1e-5
    net = Net("alone")
    norm(net, "x", "y", "bn", epsilon=1e-5)
    net.AddExternalOutput("y")
    folded, parameters = fold_batch_norm(net, values, affine=True)
    assert [op.type for op in folded.op] == ["SpatialBN"] and parameters.keys() == values.keys()


def test_arithmetic_is_done_in_double_precision():
    rng = np.random.default_rng(1)
    values = {"w": random(rng, CHANNELS, 4, 1, 1), **statistics(rng, "bn")}
    net = Net("layer")
    net.Conv(["x", "w"], "y", kernel=1, no_bias=1)
    norm(net, "y", "y", "bn")
    folded, parameters = fold_batch_norm(net, values)
    s, b, m, v = (values[f"bn_{x}"].astype(np.float64) for x in "sbmv")
    factor = s / np.sqrt(v + 1e-5)
    w, c = (parameters[name] for name in folded.op[0].input[1:])
    assert np.array_equal(w, (values["w"] * factor[:, None, None, None]).astype(np.float32))
    assert np.array_equal(c, (b - m * factor).astype(np.float32))
    assert "no_bias" not in [argument.name for argument in folded.op[0].arg]


def two_towers():
    rng = np.random.default_rng(2)
    net = Net("towers")
    for i in (0, 1):
        net.Conv(["x", "w"], f"y{i}", kernel=1)
        norm(net, f"y{i}", f"y{i}", f"bn{i}")
    values = {"w": random(rng, CHANNELS, 3, 1, 1), **statistics(rng, "bn0"), **statistics(rng, "bn1")}
    return net, values, {"x": random(rng, 2, 3, 4, 4)}


def test_weights_that_two_layers_share_are_folded_apart():
    net, values, x = two_towers()
    values["w_folded"] = np.zeros(3, np.float32)  # a name that is in use
    folded, parameters = fold_batch_norm(net, values)
    names = [list(op.input[1:]) for op in folded.op]
    assert names == [["w_folded_1", "y0_b_folded"], ["w_folded_2", "y1_b_folded"]]
    assert "w" not in parameters and "w_folded" in parameters
    for got, want in zip(run(folded, {**parameters, **x}, ("y0", "y1")), run(net, {**values, **x}, ("y0", "y1"))):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_parameter_that_others_read_stays():
    net, values, _ = two_towers()
    net.Copy("w", "copy")
    _, parameters = fold_batch_norm(net, values)
    assert parameters["w"] is values["w"]


def _read_twice(net, values):
    net.Relu("conv", "other")


def _an_output(net, values):
    net.AddExternalOutput("conv")


def _no_value(net, values):
    del values["bn_m"]


def _written(net, values):
    net.Copy("bn_b", "bn_v")


def _infinite(net, values):
    values["bn_v"] = np.full(CHANNELS, -1, np.float32)


def _half(net, values):
    values["w"] = values["w"].astype(np.float16)


def _read_before(net, values):
    conv, bn = net.Proto().op
    other = type(conv)(type="Relu", input=["y"], output=["z"])
    del net.Proto().op[:]
    net.Proto().op.extend([conv, other, bn])


def _other_device(net, values):
    net.Proto().op[1].device_option.device_id = 1


@pytest.mark.parametrize(
    "change", [_read_twice, _an_output, _no_value, _written, _infinite, _half, _read_before, _other_device]
)
def test_left_as_it_is(change):
    rng = np.random.default_rng(3)
    net = Net("net")
    net.Conv(["x", "w"], "conv", kernel=1)
    norm(net, "conv", "y", "bn")
    values = {"w": random(rng, CHANNELS, 3, 1, 1), **statistics(rng, "bn")}
    change(net, values)
    folded, parameters = fold_batch_norm(net, values)
    assert folded == net.Proto() and parameters.keys() == values.keys()


def test_training_mode_is_refused():
    net = Net("net")
    net.Conv(["x", "w"], "conv", kernel=1)
    net.SpatialBN(["conv", "s", "b", "m", "v"], ["y", "m", "v", "sm", "sv"], is_test=0)
    with pytest.raises(NetError, match=r"net 'net.*', operator 1 SpatialBN .*training mode \(is_test=0\).*is_test=1"):
        fold_batch_norm(net, {})
