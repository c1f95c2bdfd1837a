"""Joined updates on a GPU: one kernel for all parameters, equal to NumPy in float64, for every rule and odd sizes."""

import numpy as np
import pytest

from netbuilder.engines.cuda.many_tensors import CHUNK
from netbuilder.engines.traced import UPDATES, update_form
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import find
from netbuilder.proto.arguments import make_op
from on_gpu import launched, run_net
from switches import single

RNG = np.random.default_rng(3)
SHAPES = [(1,), (3, 5), (CHUNK - 1,), (CHUNK + 1,), (2, 3 * CHUNK // 4), (1, 1, 7)]
RATE = np.float32([-0.05])


def momentum(op, p, m, g, lr, nesterov):
    new = 0.9 * m + lr * g
    return p - ((1.9 * new - 0.9 * m) if nesterov else new), new


def rms(p, s, m, g, lr):
    s = s + 0.1 * (g * g - s)
    m = 0.5 * m + lr * g / np.sqrt(s + 1e-3)
    return p, s, m


# rule: operator, its blobs (p: parameter, m and v: moments, g: gradient), arguments, and the rule in float64
RULES = {
    "momentum": (
        ["MomentumSGDUpdate", "gm", "p", ["g", "m", "p"], {"momentum": 0.9}],
        lambda p, m, v, g: (*momentum(None, p, m, g, -0.05, False), v),
    ),
    "nesterov": (
        ["MomentumSGDUpdate", "gm", "p", ["g", "m", "p"], {"momentum": 0.9, "nesterov": 1}],
        lambda p, m, v, g: (*momentum(None, p, m, g, -0.05, True), v),
    ),
    "sgd": (["WeightedSum", "", "", ["p"], {}], lambda p, m, v, g: (p - 0.05 * g, m, v)),
    "adagrad": (
        ["Adagrad", "pmg", "", ["p", "m"], {"epsilon": 1e-3, "decay": 0.95, "weight_decay": 0.01}],
        lambda p, m, v, g: (
            p - 0.05 * (g + 0.01 * p) / (np.sqrt(0.95 * m + (g + 0.01 * p) ** 2) + 1e-3),
            0.95 * m + (g + 0.01 * p) ** 2,
            v,
        ),
    ),
    "rmsprop": (
        ["RmsProp", "gvm", "", ["g", "v", "m"], {"decay": 0.9, "momentum": 0.5, "epsilon": 1e-3}],
        lambda p, m, v, g: (p, *rms(p, v, m, g, -0.05)[:0:-1]),
    ),
}


def operators(rule, count, decay):
    (op_type, first, after, outs, arguments), _ = RULES[rule]
    ops = []
    for k in range(count):
        if decay and k % 2:
            ops.append(make_op("WeightedSum", [f"g{k}", "one", f"p{k}", "decay"], [f"g{k}"]))
    for k in range(count):
        inputs = [f"{name}{k}" for name in first] + ["lr"] + [f"{name}{k}" for name in after]
        if op_type == "WeightedSum":
            inputs = [f"p{k}", "one", f"g{k}", "lr"]
        ops.append(make_op(op_type, inputs, [f"{name}{k}" for name in outs], **arguments))
    return ops


@pytest.mark.gpu
@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_all_parameters_are_updated_by_one_kernel(rule, decay):
    feeds = {"lr": RATE, "one": np.float32([1]), "decay": np.float32([0.02])}
    for k, shape in enumerate(SHAPES):
        for name in "pmg":
            feeds[f"{name}{k}"] = RNG.standard_normal(shape).astype(np.float32)
        feeds[f"v{k}"] = RNG.random(shape, np.float32)
        feeds[f"m{k}"] = abs(feeds[f"m{k}"])
    fetched = [f"{name}{k}" for name in "pmv" for k in range(len(SHAPES))]
    with launched() as launches:
        found = run_net(operators(rule, len(SHAPES), decay), feeds, fetched)
    assert launches == ["updates"]
    for k in range(len(SHAPES)):
        p, m, v, g = (feeds[f"{name}{k}"].astype(np.float64) for name in "pmvg")
        if decay and k % 2:
            g = g + 0.02 * p
        for name, wanted in zip("pmv", RULES[rule][1](p, m, v, g)):
            np.testing.assert_allclose(found[f"{name}{k}"], wanted, rtol=2e-5, atol=2e-6, err_msg=f"{name}{k}")


@pytest.mark.gpu
def test_two_updates_that_read_one_tensor():
    """Of two shapes: a gradient with its decay, and what a parameter was; nothing is written in place of another."""
    ops, feeds = [], {"one": np.float32([1]), "decay": np.float32([0.5])}
    for k, shape in enumerate([(3, 5), (70, 30), (4,)]):
        ops += [make_op("WeightedSum", [f"g{k}", "one", f"{name}{k}", "decay"], [f"g{k}"]) for name in "ph"]
        ops.append(make_op("SaveBlobs", [f"p{k}"], [f"s{k}"]))
        feeds |= {f"{name}{k}": RNG.standard_normal(shape).astype(np.float32) for name in "pgh"}
    ops += [make_op("Copy", [f"s{k}"], [f"c{k}"]) for k in range(3)]
    found = run_net(ops, feeds, [f"{name}{k}" for name in "gcp" for k in range(3)])
    for k in range(3):
        np.testing.assert_array_equal(found[f"c{k}"], feeds[f"p{k}"])
        np.testing.assert_array_equal(found[f"p{k}"], feeds[f"p{k}"])
        wanted = feeds[f"g{k}"] + 0.5 * feeds[f"p{k}"] + 0.5 * feeds[f"h{k}"]
        np.testing.assert_allclose(found[f"g{k}"], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("scaled", [False, True])
def test_masters_of_float16_are_updated_by_one_kernel(scaled):
    """The gradient is widened and divided, the master updated and rounded; a step that is skipped changes neither."""
    ops, feeds = [], {"lr": RATE, "scale": np.float32([8]), "finite": np.array([False])}
    for k, shape in enumerate(SHAPES):
        feeds |= {f"{name}{k}": RNG.standard_normal(shape).astype(np.float32) for name in "pmgh"}
        feeds[f"g{k}"], feeds[f"h{k}"] = (feeds[f"{name}{k}"].astype(np.float16) for name in "gh")
    count = range(len(SHAPES))
    skipped = [f"{name}{k}" for name in "mph" for k in count] if scaled else []
    ops += [make_op("SaveBlobs", [name], [name + "_before"]) for name in skipped]
    for k in count:
        ops.append(make_op("HalfToFloat", [f"g{k}"], [f"w{k}"]))
        ops += [make_op("DivideBlobs", ["scale", f"w{k}"], [f"w{k}"])] if scaled else []
        names = [f"w{k}", f"m{k}", f"p{k}"]
        ops.append(make_op("MomentumSGDUpdate", [*names[:2], "lr", names[2]], names, momentum=0.9))
        ops.append(make_op("FloatToHalf", [f"p{k}"], [f"h{k}"]))
    ops += [make_op("RestoreBlobs", ["finite", name, name + "_before"], [name]) for name in skipped]
    with launched() as launches:
        found = run_net(ops, feeds, [f"{name}{k}" for name in "wmph" for k in count])
    assert len(launches) == 1
    for k in count:
        g = feeds[f"g{k}"].astype(np.float64) / (8 if scaled else 1)
        step = 0.9 * feeds[f"m{k}"] + RATE * g
        np.testing.assert_allclose(found[f"w{k}"], step, rtol=2e-5, atol=2e-6)
        wanted = {"m": feeds[f"m{k}"], "p": feeds[f"p{k}"], "h": feeds[f"h{k}"]}
        if not scaled:
            wanted = {"m": step, "p": feeds[f"p{k}"] - step, "h": found[f"p{k}"].astype(np.float16)}
        for name, value in wanted.items():
            exact = {"rtol": 2e-5, "atol": 2e-6} if name != "h" and not scaled else {"rtol": 0}
            np.testing.assert_allclose(found[f"{name}{k}"], value, **exact, err_msg=f"{name}{k}")
        assert found[f"h{k}"].dtype == np.float16


@pytest.mark.gpu
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_states_of_two_values_for_each_weight(given, dtype):
    ops, feeds, alpha = [], {"alpha": np.float32([0.125])}, 0.125 if given else 0.25
    for k, shape in enumerate(SHAPES):
        feeds |= {f"{name}{k}": RNG.standard_normal(shape).astype(dtype) for name in "pg"}
        feeds[f"s{k}"] = np.stack([RNG.random(shape), RNG.standard_normal(shape)], axis=-1).astype(dtype)
        names = [f"p{k}", f"s{k}"]
        arguments = {"alpha": 0.25, "lambda1": 0.5}
        ops.append(make_op("Ftrl", [*names, f"g{k}", *["alpha"] * given], names, **arguments))
    fetched = [f"{name}{k}" for name in "ps" for k in range(len(SHAPES))]
    with launched() as launches:
        found = run_net(ops, feeds, fetched)
    assert launches == ["updates"]
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-10, "atol": 1e-12}
    for k in range(len(SHAPES)):
        p, g, (n, z) = *(feeds[f"{name}{k}"].astype(np.float64) for name in "pg"), np.moveaxis(feeds[f"s{k}"], -1, 0)
        root, before = np.sqrt(n.astype(np.float64) + g * g), np.sqrt(n.astype(np.float64))
        z = z + g - (root - before) / alpha * p
        new = np.where(abs(z) > 0.5, (np.sign(z) * 0.5 - z) / ((1 + root) / alpha + 0.001), 0)
        np.testing.assert_allclose(found[f"p{k}"], new, **tolerance)
        np.testing.assert_allclose(found[f"s{k}"], np.stack([root * root, z], axis=-1), **tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("runs", [1, 3])
def test_adam_counts_on_the_host(runs):
    """The correction of Adam depends on the counter, which the host has: it is an argument of each launch."""
    shapes = SHAPES[:4]
    feeds = {"lr": RATE, "iter": np.int64([0])}
    ops = [make_op("Iter", ["iter"], ["iter"])]
    for k, shape in enumerate(shapes):
        feeds |= {f"{name}{k}": RNG.standard_normal(shape).astype(np.float32) for name in "pmg"}
        feeds[f"v{k}"] = RNG.random(shape, np.float32)
        names = [f"p{k}", f"m{k}", f"v{k}"]
        ops.append(make_op("Adam", [*names, f"g{k}", "lr", "iter"], names, beta1=0.8, beta2=0.9, epsilon=1e-4))
    fetched = [f"{name}{k}" for name in "pmv" for k in range(len(shapes))]
    with launched() as launches:
        found = run_net(ops, feeds, fetched, runs=runs, host=["Iter"])
    assert launches.count("updates") == runs
    for k in range(len(shapes)):
        p, m, v, g = (feeds[f"{name}{k}"].astype(np.float64) for name in "pmvg")
        for t in range(2, runs + 2):
            m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
            p = p - 0.05 * (1 - 0.9**t) ** 0.5 / (1 - 0.8**t) * m / (np.sqrt(v) + 1e-4)
        for name, wanted in zip("pmv", (p, m, v)):
            np.testing.assert_allclose(found[f"{name}{k}"], wanted, rtol=3e-5, atol=3e-6, err_msg=f"{name}{k}")


@pytest.mark.gpu
@pytest.mark.parametrize("corrected", [0, 1])
def test_decay_adagrad_counts_on_the_host(corrected):
    shapes, runs = SHAPES[:4], 3
    feeds = {"lr": RATE, "iter": np.int64([0])}
    ops = [make_op("Iter", ["iter"], ["iter"])]
    arguments = {"beta1": 0.8, "epsilon": 1e-3, "weight_decay": 0.1, "bias_correction_first": corrected}
    for k, shape in enumerate(shapes):
        feeds |= {f"{name}{k}": RNG.standard_normal(shape).astype(np.float32) for name in "pmg"}
        feeds[f"v{k}"] = RNG.random(shape, np.float32)
        names = [f"p{k}", f"m{k}", f"v{k}"]
        ops.append(make_op("DecayAdagrad", [*names, f"g{k}", "lr", "iter"], names, **arguments))
    fetched = [f"{name}{k}" for name in "pmv" for k in range(len(shapes))]
    with launched() as launches:
        found = run_net(ops, feeds, fetched, runs=runs, host=["Iter"])
    assert launches.count("updates") == runs
    for k in range(len(shapes)):
        p, m, v, g = (feeds[f"{name}{k}"].astype(np.float64) for name in "pmvg")
        for t in range(2, runs + 2):
            m, v = 0.8 * m + 0.2 * g, v + g * g
            correction = 1 - 0.8**t if corrected else 1
            p = p - 0.05 * (m / correction / (np.sqrt(v) + 1e-3) + 0.1 * p)
        for name, wanted in zip("pmv", (p, m, v)):
            np.testing.assert_allclose(found[f"{name}{k}"], wanted, rtol=3e-5, atol=3e-6, err_msg=f"{name}{k}")


@pytest.mark.gpu
def test_joined_updates_change_no_bit():
    feeds = {"lr": RATE, "one": np.float32([1]), "decay": np.float32([0.02])}
    for k, shape in enumerate(SHAPES):
        feeds |= {f"{name}{k}": RNG.standard_normal(shape).astype(np.float32) for name in "pmg"}
    fetched = [f"{name}{k}" for name in "pmg" for k in range(len(SHAPES))]
    ops = operators("nesterov", len(SHAPES), True)
    joined = run_net(ops, feeds, fetched, runs=2)
    alone = run_net(ops, feeds, fetched, runs=2, without=single("joined_updates"))
    for name in fetched:
        np.testing.assert_array_equal(joined[name], alone[name], err_msg=name)


OF_SCALING = {
    "DivideBlobs": make_op("DivideBlobs", ["scale", "x"], ["x"]),
    "RestoreBlobs": make_op("RestoreBlobs", ["condition", "x", "before"], ["x"]),
    "SaveBlobs": make_op("SaveBlobs", ["x"], ["y"]),
}


@pytest.mark.parametrize("op_type", sorted(OF_SCALING))
def test_the_form_of_what_scaling_adds_to_updates(op_type):
    op_def = OF_SCALING[op_type]
    kinds = {"scale": np.float32, "condition": np.bool_}
    specs = [TensorSpec((1,) if n in kinds else (2, 3), np.dtype(kinds.get(n, np.float32))) for n in op_def.input]
    form = update_form(decode(find(op_type), op_def), specs, is_gpu=True)
    assert form is not None and form.numbers == {i for i, name in enumerate(op_def.input) if name in kinds}


@pytest.mark.parametrize("op_type", sorted(UPDATES - OF_SCALING.keys()))
def test_the_form_of_each_update(op_type):
    cls = find(op_type)
    required = [name for name in cls.inputs if not name.endswith(("*", "?"))]
    outputs = [name for name in cls.outputs if not name.endswith("?")]
    inputs = [f"in_{name}" for name in required]
    for i, j in cls.must_inplace:
        outputs[j] = inputs[i]
    op = decode(cls, make_op(op_type, inputs, outputs))
    dtype = np.dtype(np.float16 if op_type in ("FP16MomentumSGDUpdate", "HalfToFloat") else np.float32)
    specs = [TensorSpec((2, 3), dtype)] * len(required)
    numbers = {i for i, name in enumerate(required) if name in ("lr", "iter", "w0")}
    for i in numbers:
        specs[i] = TensorSpec((1,), np.dtype(np.int64 if required[i] == "iter" else np.float32))
    if op_type == "Ftrl":
        specs[required.index("n_z")] = TensorSpec((2, 3, 2), dtype)
    if op_type == "FP32MomentumSGDUpdate":
        specs[required.index("grad")] = specs[0]
    form = update_form(op, specs, is_gpu=True)
    assert form is not None and form.numbers == numbers
    one = [spec.with_shape(spec.shape[2:]) for spec in specs]
    assert update_form(op, one, is_gpu=True) is None or op_type == "WeightedSum"
    assert update_form(decode(find("Relu"), make_op("Relu", ["x"], ["y"])), specs[:1], is_gpu=True) is None
