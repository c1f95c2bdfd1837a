"""NaN and infinities through every kernel: nothing that is not finite with the kernels over arrays becomes finite."""

import numpy as np
import pytest

import golden_data
from checks import interpret
from golden_cases import failures
from kernel_cases import CONVOLUTIONS, random
from kernel_checks import has_instructions
from netbuilder.engines import onednn
from netbuilder.engines.engine import find_engine
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.model import ModelHelper, brew
from netbuilder.ops.core.operator import Exchange, TensorSpec, decode
from netbuilder.ops.core.registry import CPU, find, operator_types, prepared_kernels
from netbuilder.proto import GradientError, NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.run_context import KernelContext
from prepared import Value, bind

if not onednn.available():
    pytest.skip("needs oneDNN", allow_module_level=True)

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.blocked_layout import channel_blocked, image_view, rounded
from netbuilder.engines.onednn.registration import register_kernels
from netbuilder.ops.core.contexts import NOT_NEGATIVE

register_kernels()
KERNELS = {
    (op_type, rank): kernel
    for op_type in operator_types()
    for rank, kernel in enumerate(row for row in prepared_kernels(op_type, CPU) if row.engine != "LLVM")
}
MOST = 4  # cases of an operator
KINDS = ("plain", "blocked", "bfloat16")

# Kernels that need other inputs than golden cases have; by operator, which may be the first of a chain.
MORE = {
    "LRN": [(make_op("LRN", ["x"], ["y"], size=5, alpha=0.1, beta=0.75, bias=2.0), {"x": random(2, 16, 5, 5)})],
    "Concat": [
        (make_op("Concat", ["a", "b"], ["y", "i"]), {"a": random(2, 16, 3, 3), "b": random(2, 32, 3, 3, seed=1)})
    ],
    "Split": [(make_op("Split", ["x"], ["y", "z"], split=[16, 33]), {"x": random(2, 49, 3, 3)})],
    "MaxPool": [
        (make_op("MaxPool", ["x"], ["y"], kernel=3, stride=2, pad=1), {"x": random(2, 17, 8, 9, low=0)}),
        (make_op("MaxPool", ["x"], ["y"], kernel=2), {"x": random(1, 16, 20, 20, low=0)}),
        (make_op("MaxPool", ["x"], ["y"], kernel=2), {"x": random(1, 16, 64, 64, low=0)}),  # summed by the library
    ],
    "SoftmaxWithLoss": [
        (
            make_op("SoftmaxWithLoss", ["x", "label"], ["p", "loss"]),
            {"x": random(3, columns), "label": np.zeros(3, np.int32)},
        )
        for columns in (1, 15, 16, 17, 1003)
    ],
    "ReduceMean": [
        (make_op("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=keepdims), {"x": random(2, 16, 3, 3)})
        for keepdims in (0, 1)
    ],
    "SparseLengthsPositionalWeightedSum": [
        (
            make_op("SparseLengthsPositionalWeightedSum", ["x", "w", "i", "n"], ["y"]),
            {"x": random(5, 16), "w": random(5), "i": np.array([0, 4, 2, 1]), "n": np.int32([3, 1])},
        )
    ],
    "ConvRelu": [
        (make_op("ConvRelu", ["x", "w"], ["y"], kernel=3), {"x": random(2, 17, 6, 6), "w": random(17, 17, 3, 3)})
    ],
    "Conv": [
        (make_op("Conv", ["x", "w"], ["y"], **args), {"x": random(*x), "w": random(*w, seed=1)})
        for x, w, args in (CONVOLUTIONS[name] for name in ("3 channels", "stride", "groups", "asymmetric"))
    ],
}  # fmt: skip

# Operators whose kernels over arrays multiply padding by the weights, so that a weight that is NaN reaches results that
# it does not enter. Here it does not.
PADDED = {"Conv", "ConvGradient", "ConvTranspose", "ConvTransposeGradient"}

# Operators whose array kernels multiply a gradient by 0 where it has no effect: NaN if it is not finite.
# Here only the maximum of a window gets it.
SPREAD = {"MaxPoolGradient", "MaxPool1DGradient", "MaxPool2DGradient", "MaxPool3DGradient"}

# Operators with a kernel that no case here reaches, and why.
NOT_REACHED = (
    {
        "AtomicIter": "it counts",
        "Iter": "it counts",
        "RecurrentNetwork": "it runs the kernels of its step net",
        "RecurrentNetworkGradient": "it runs the kernels of its step net",
    }
    | dict.fromkeys(
        (
            "Float16SparseNormalize RowWiseCounter RowWiseSparseAdagrad "
            "RowWiseSparseAdam ScatterAssign ScatterWeightedSum SmartDecaySparseAdam SparseAdadelta SparseAdagrad "
            "SparseAdam SparseFtrl SparseLpRegularizer SparseMomentumSGDUpdate SparseNormalize SparseStorm SparseWngrad"
        ).split()
        + [op_type for op_type in operator_types() if "AdagradFusedWith" in op_type],
        "it is NumPy and overwrites what it reads, so nothing is left to compare with",
    )
    | dict.fromkeys(
        [op_type for op_type, _ in KERNELS if find(op_type).exchanges is Exchange.BETWEEN_PROCESSES],
        "it exchanges what other operators have computed, and has no golden cases: tests/ops/collectives",
    )
)
if not has_instructions("avx512"):
    NOT_REACHED["LRNGradient"] = "the library has only its reference for this CPU"

# Operators, by the number of their inputs, that know the shape of their result only when they run.
BY_VALUES = {("Split", 2), ("Reshape", 2)}

# The output that a gradient belongs to, if it is not the first.
LOSS = {"SoftmaxWithLoss": 1}


def cases(op_type):
    found = list(MORE.get(op_type, ()))
    if op_type in golden_data.operators():
        found += [(case.operator, case.inputs) for case in golden_data.cases(op_type)]
    return found


def stored(array, kind, last):
    value = Value.of(array)
    value.notes[NOT_NEGATIVE] = array.dtype == np.float32 and array.min(initial=0) >= 0  # as if it came from a Relu
    if kind == "plain" or array.dtype != np.float32:
        return value
    image = 3 <= array.ndim <= 5
    if kind == "blocked":
        layout = channel_blocked(image_view(array.shape, last), c.F32, 16) if image else None
        return value.to(TensorSpec(array.shape, array.dtype, layout))
    layout = channel_blocked(image_view(array.shape, last), c.BF16, 16) if image else rounded(array.size)
    return value.to(TensorSpec(array.shape, array.dtype, layout))


def run(op_def, values, kind, rank):
    """Run an operator's kernel of a rank on the blobs ``values``; False if it does not serve."""
    kernel = KERNELS.get((op_def.type, rank))
    if kernel is None or (kernel.engine != "ONEDNN" and kind != "plain"):
        return False
    if (op_def.type, len(op_def.input)) in BY_VALUES:
        return False
    inputs = [values[name] for name in op_def.input]
    op = decode(find(op_def.type), op_def)
    precision = "bfloat16" if kind == "bfloat16" else "float32"
    context = KernelContext(op_def, None)
    bound = bind(kernel.make, op, inputs, precision=precision, op_def=op_def, context=context)
    if bound is None:
        return False
    bound.call()
    values.update(zip(op_def.output, bound.outputs))
    return True


def reached(op_def, arrays):
    """Return which results depend on inputs that are not finite, without padding."""
    marks = {name: (~np.isfinite(x)).astype(np.float64) for name, x in arrays.items()}
    poisoned = {name for name, mark in marks.items() if mark.any()}
    found = []
    for scale in (0, 1):
        found.append(
            interpret([op_def], {n: mark * scale if n in poisoned else np.ones_like(mark) for n, mark in marks.items()})
        )
    return {name: found[0][name] != found[1][name] for name in op_def.output}


def check(op_def, values, before):
    arrays = {name: before[name].plain() for name in op_def.input}
    want = interpret([op_def], arrays)
    entered = reached(op_def, arrays) if op_def.type in PADDED else {}
    for name in op_def.output:
        if np.asarray(want[name]).dtype.kind != "f":
            continue
        if op_def.type in SPREAD:
            assert np.isfinite(want[name]).all() or not np.isfinite(values[name].plain()).all()
            continue
        lost = ~np.isfinite(want[name]) & np.isfinite(values[name].plain()) & entered.get(name, True)
        assert not lost.any(), f"{op_def.type}: {name} is finite at {np.argwhere(lost)[:3]}"


def poisoned(array):
    """Copies of an array with one element or all of them NaN or infinite."""
    for bad, at in ((np.nan, array.size // 2), (np.nan, slice(None)), (np.inf, 0), (-np.inf, slice(None))):
        copy = array.copy()
        copy.reshape(-1)[at] = bad
        yield copy


def served(op_type, rank, kind):
    """Return the operators that the kernel serves, and their blobs."""
    found = []
    for op_def, inputs in cases(op_type):
        last = any(a.name == "order" and a.s == b"NHWC" for a in op_def.arg)
        blobs = {name: stored(array, kind, last) for name, array in inputs.items()}
        overwrites = not op_def.output or op_def.output[0] in op_def.input
        if len(found) < MOST and not overwrites and run(op_def, dict(blobs), kind, rank):
            found.append((op_def, blobs))
    return found


def gradients(op_def):
    """Return the gradient operators, or none where the operator has no gradient or needs a forward net."""
    try:
        return operator_gradient(op_def, {LOSS.get(op_def.type, 0): "slope"})[0]
    except GradientError:
        return []


def slope_of(op_def, blobs):
    return np.ones_like(blobs[op_def.output[LOSS.get(op_def.type, 0)]].plain())


def run_gradient(op_def, blobs, slope, kind, rank):
    """Run the gradient operators that are served; yield each with the blobs before and after it ran."""
    blobs = blobs | {"slope": Value.of(slope)}
    for gradient_op in gradients(op_def):
        before = dict(blobs)
        if not set(gradient_op.input) <= blobs.keys() or not run(gradient_op, blobs, kind, rank):
            return
        yield gradient_op, before, blobs


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the kernels over arrays, that there is NaN
@pytest.mark.parametrize("op_type, rank", sorted(KERNELS))
@pytest.mark.one_in(8)
def test_what_is_not_finite_stays_so(op_type, rank):
    assert failures(check_kernel, {kind: (op_type, rank, kind) for kind in KINDS}) == {}


def check_kernel(op_type, rank, kind):
    for op_def, clean in served(op_type, rank, kind):
        for name, value in clean.items():
            if value.spec.dtype != np.float32 or value.spec.size == 0:
                continue
            for bad in poisoned(value.plain()):
                held = Value.of(bad)
                held.notes.update(value.notes)
                before = clean | {name: held.to(value.spec)}
                blobs = dict(before)
                assert run(op_def, blobs, kind, rank)
                check(op_def, blobs, before)
                for done in run_gradient(op_def, blobs, slope_of(op_def, blobs), kind, rank):
                    check(done[0], done[2], done[1])
        blobs = dict(clean)
        run(op_def, blobs, kind, rank)
        ones = slope_of(op_def, blobs)
        for slope in poisoned(ones) if ones.dtype.kind == "f" else ():
            for gradient_op, before, after in run_gradient(op_def, blobs, slope, kind, rank):
                check(gradient_op, after, before)


def test_every_kernel_is_reached():
    seen = set()
    for (op_type, rank), kernel in KERNELS.items():
        for kind in ("plain", "blocked"):
            for op_def, blobs in served(op_type, rank, kind):
                run(op_def, blobs, kind, rank)
                seen.add(kernel.make)
                for done in run_gradient(op_def, blobs, slope_of(op_def, blobs), kind, rank):
                    seen.add(KERNELS[done[0].type, rank].make)
    assert {op_type for (op_type, _), kernel in KERNELS.items() if kernel.make not in seen} == NOT_REACHED.keys()


def bn(is_test, x="x"):
    names = [x, "s", "b", "m", "v"]
    return make_op("SpatialBN", names, ["y"] if is_test else ["y", "m", "v", "sm", "si"], is_test=is_test)


CHANNELS = {
    "s": random(17, low=0.5),
    "b": random(17, seed=1),
    "m": random(17, seed=2),
    "v": random(17, low=0.5, seed=3),
}
IMAGES = {"x": random(2, 17, 6, 6), "w": random(17, 17, 3, 3, seed=4), "b": random(17, seed=5)}
CONV = make_op("Conv", ["x", "w", "b"], ["y"], kernel=3)

# The operators fused with a Relu -> these operators and their inputs.
FUSED = {
    "SpatialBN": [
        (ops, {"x": random(2, 17, 6, 6), **weights, **CHANNELS})
        for is_test in (0, 1)
        for ops, weights in (
            ([bn(is_test)], {}),
            ([make_op("Conv", ["x", "w"], ["c"], kernel=3), bn(is_test, "c")], {"w": IMAGES["w"]}),
        )
    ],
    "Sum": [([make_op("Sum", ["x", "b"], ["y"])], {"x": random(3, 5), "b": random(3, 5, seed=1)})],
    "FC": [
        ([make_op("FC", ["x", "w", "b"], ["y"])], {"x": random(*x), "w": random(*w, seed=1), "b": random(w[0], seed=2)})
        for x, w in (((3, 5), (4, 5)), ((64, 128), (96, 128)))
    ],
    "Conv": [([CONV], IMAGES)],
    **{
        f"Conv {added}": [
            (
                [make_op("Copy", ["a"], ["z"]), CONV, make_op(added, ["y", "z"], ["y"])],
                {**IMAGES, "a": random(2, 17, 4, 4, seed=6)},
            )
        ]
        for added in ("Sum", "Add")
    },
}


def fused(ops, inputs, kind, **options):
    net = NetDef(name="net", external_input=list(inputs), external_output=["r"])
    net.op.extend([*ops, make_op("Relu", ["y"], ["r"])])
    workspace = Workspace(threads=1, **options)
    for name, value in inputs.items():
        workspace.feed(name, value)
    workspace.create_net(net, observable="outputs", dtype="bfloat16" if kind == "bfloat16" else "float32")
    workspace.run_net("net")
    (plan,) = workspace.net("net").plans
    return workspace.fetch("r"), [" ".join(part.op_def.type for part in step.node.parts) for step in plan.steps]


@pytest.mark.one_in(6)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name",
    [
        " ".join(fusion.types[:-1]).replace("+", " ")
        for fusion in find_engine("ONEDNN").fusions()
        if fusion.types[-1] == "Relu" and len(fusion.types) > 1
    ],
)
def test_what_is_fused_with_a_relu_keeps_what_is_not_finite(name, kind):
    for ops, inputs in FUSED[name]:
        clean, steps = fused(ops, inputs, kind)
        assert f"{name} Relu" in steps
        assert clean.min() == 0 < clean.max()
        for given in inputs:
            for bad in poisoned(inputs[given]):
                if given == "s" and np.isinf(bad).any():
                    continue  # the kernel over arrays multiplies the mean by it too, which gives NaN for infinities
                values = inputs | {given: bad}
                want = interpret([*ops, make_op("Relu", ["y"], ["r"])], values)["r"]
                got, _ = fused(ops, values, kind)
                assert not (~np.isfinite(want) & np.isfinite(got)).any(), f"{given} {bad.reshape(-1)[:1]}"


def trained_net(dtype):
    model = ModelHelper(name="net", dtype=dtype)
    brew.conv(model, "data", "conv", 3, 16, kernel=3, pad=1)
    brew.relu(model, brew.spatial_bn(model, "conv", "bn", 16), "bn")
    brew.conv(model, "bn", "branch", 16, 16, kernel=3, pad=1)
    brew.relu(model, brew.sum(model, ["branch", "bn"], "total"), "total")
    brew.max_pool(model, "total", "pool", kernel=2, stride=2)
    brew.relu(model, brew.fc(model, "pool", "hidden", 16 * 16, 64), "hidden")
    brew.relu(model, brew.conv(model, "pool", "side", 16, 16, kernel=1), "side")
    brew.fc(model, brew.concat(model, ["hidden", model.net.Flatten("side", "flat")], "both"), "scores", 320, 10)
    model.net.SoftmaxWithLoss(["scores", "label"], ["softmax", "loss"])
    return model


def step(model, poison, bad, *, training, without, engines=None):
    if training:
        model.AddGradientOperators(["loss"])
    workspace = Workspace(threads=1, without=without, engines=engines)
    workspace.run_net_once(model.param_init_net)
    workspace.feed("data", random(8, 3, 8, 8))
    workspace.feed("label", np.arange(8, dtype=np.int32))
    if poison:
        value = workspace.fetch(poison).copy()
        value.reshape(-1)[bad] = np.nan
        workspace.feed(poison, value)
    workspace.run_net(
        workspace.create_net(model.net, observable=["loss", "softmax", *map(str, model.param_to_grad.values())])
    )
    return workspace


@pytest.mark.one_in(4)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "dtype, training, fuse",
    [
        pytest.param(dtype, training, fuse, marks=[pytest.mark.slow] * ((dtype == "bfloat16") ^ training ^ fuse))
        for dtype in ("float32", "bfloat16")
        for training in (True, False)
        for fuse in (True, False)
    ],
)
def test_a_step_with_nan_reports_no_finite_loss(dtype, training, fuse):
    assert np.isfinite(
        step(trained_net(dtype), "", 0, training=training, without=() if fuse else "fusion").fetch("loss")
    )
    for poison in ("data", *map(str, trained_net(dtype).params)):
        for bad in (0, slice(None)):
            model = trained_net(dtype)
            workspace = step(model, poison, bad, training=training, without=() if fuse else "fusion")
            assert np.isnan(workspace.fetch("loss")), f"{poison} {bad}"
            assert np.isnan(workspace.fetch("softmax")).any()
            if training and poison == "data":
                gradients = [workspace.fetch(str(grad)) for grad in model.param_to_grad.values()]
                assert sum(np.isnan(grad).any() for grad in gradients) > len(gradients) / 2
