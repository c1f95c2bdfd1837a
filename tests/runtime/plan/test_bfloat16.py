"""Nets with activations in bfloat16: their errors, which values are float32, and the number of conversions."""

import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

import golden_data
from kernel_checks import needs_bfloat16
from netbuilder import ModelHelper
from netbuilder.engines import onednn
from netbuilder.engines.layouts import convert
from netbuilder.ops.core.registry import plain_kernel
from netbuilder.optimizers import build_sgd
from netbuilder.passes import fold_batch_norm
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import make_argument, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.run_context import KernelContext
from netbuilder.runtime.values.blob import EdgeContext
from netbuilder.zoo import create_resnet_cifar
from switches import single

if not onednn.available():
    pytest.skip("needs oneDNN", allow_module_level=True)

from waiting import HANG

NETS = ["convnet", "dp_convnet_2", "inception_like", "lenet"]


def golden_workspace(name, threads=1, **options):
    """A workspace with a golden net in it, as it starts."""
    golden = golden_data.net(name)
    workspace = Workspace(threads=threads)
    for blob, value in golden.inputs(1).items():
        workspace.feed(blob, value)
    workspace.run_net_once(golden.protos["param_init_net"])
    for blob, value in golden.start_values().items():
        workspace.feed(blob, value)
    workspace.create_net(golden.protos["net"], **options)
    return workspace, golden


def steps_of(workspace, name):
    """The plan of a net that has run, and its steps with their calls."""
    plan = workspace.net(name).plans[-1]
    return zip(plan.steps, plan.step_calls)


def plain(value):
    buffer = value.buffer if value.buffer is not None else value.blob.buffer
    if value.spec.layout is None:
        return np.array(buffer)
    return convert(buffer, value.spec, value.spec.plain, EdgeContext())


def relative(got, want):
    return np.linalg.norm((got - want).ravel()) / max(np.linalg.norm(want.ravel()), 1e-6 * want.size**0.5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", NETS)
def test_trajectories_stay_near_those_in_float32(name):
    """Rounding of the input alone moves parameters of these nets by a few hundredths in as many steps."""
    workspace, golden = golden_workspace(name, dtype="bfloat16")
    parameters = [blob for blob in golden.start_values() if blob.endswith(("_w", "_b", "_s"))]
    for iteration in golden.iterations():
        for blob, value in golden.inputs(iteration).items():
            workspace.feed(blob, value)
        workspace.run_net(golden.protos["net"].name)
        for blob, want in golden.expected(iteration).items():
            got = workspace.fetch(blob)
            assert np.shape(got) == want.shape and np.asarray(got).dtype == want.dtype, blob
            if blob.endswith("loss"):
                np.testing.assert_allclose(got, want, rtol=0.02)
            if blob in parameters:
                assert relative(got, want) < 0.1, (iteration, blob)


# What a kernel may differ by from a reference for the same inputs, as a share of the greatest value.
ONE_ROUNDING = 2.0**-8
IN_FLOAT32 = 2e-5


def differences(step, call, workspace):
    """Run a step; yield its outputs: value, array, and what kernels in float64 give for what it was given."""
    nodes = step.node.originals or [step.node]
    values = {}
    for node in nodes:
        for value in node.inputs:
            if value.buffer is not None or value.blob is not None:
                values.setdefault(id(value), plain(value))
    for value, given in zip(step.node.inputs, step.inputs):  # what the kernel reads may be a rounded copy
        if given is not None:
            values[id(value)] = plain(given)
    for node in nodes:
        inputs = [values[id(value)] for value in node.inputs]
        inputs = [x.astype(np.float64) if x.dtype == np.float32 else x for x in inputs]
        context = KernelContext(node.first.op_def, workspace)
        outputs = plain_kernel(node.first.op_def.type, 0)(node.first.op, context, *inputs)
        values.update((id(value), np.asarray(x)) for value, x in zip(node.outputs, outputs))
    call()
    for value in step.outputs:
        if value is not None and value.spec.dtype == np.float32:
            yield value, plain(value), values[id(value)]


@needs_bfloat16
@pytest.mark.parametrize("name", NETS)
def test_every_step_is_right_for_what_it_is_given(name):
    # Else the output of a Relu is not there any more for the reference of its gradient; the kernel reads a mask.
    workspace, golden = golden_workspace(name, dtype="bfloat16", without=single("cheap_recomputation"))
    workspace.run_net(golden.protos["net"].name)
    rounds, checked = Counter(), 0
    for step, call in steps_of(workspace, golden.protos["net"].name):
        kind = step.node.first.op_def.type
        if step.moves or kind in ("AtomicIter", "LearningRate"):
            call()
            continue
        for value, got, want in differences(step, call, workspace):
            checked += 1
            rounds[kind] += value.spec.rounds
            scale = np.abs(want).max()
            if kind == "MaxPoolGradient":  # equal maxima, of which rounding makes more, take the gradient one by one
                assert np.mean(np.abs(got - want) > ONE_ROUNDING * scale) < 0.05
                continue
            times = {"AveragePoolGradient": 4, "LRNGradient": 2}.get(kind, 1)  # that round sums, or denominators, too
            allowed = times * ONE_ROUNDING if value.spec.rounds else IN_FLOAT32
            np.testing.assert_allclose(got, want, rtol=0, atol=allowed * scale, err_msg=f"{kind}: {value.name}")
    assert checked > 30
    assert rounds["Conv"] and rounds["ConvGradient"] and not rounds["MomentumSGDUpdate"]
    assert not rounds["SoftmaxWithLoss"] and not rounds["WeightedSum"]


def residual_net(dtype=None):
    """A small residual net with its update, and a workspace with its parameters and a batch."""
    model = ModelHelper("residual", arg_scope={"order": "NCHW"}, dtype=dtype)
    _, loss = create_resnet_cifar(model, "data", 3, 10, 8, label="label")
    model.AddGradientOperators([loss])
    build_sgd(model, 0.05, momentum=0.9, nesterov=1)
    workspace = Workspace(threads=1)
    rng = np.random.default_rng(0)
    workspace.feed("data", rng.standard_normal((8, 3, 16, 16)).astype(np.float32))
    workspace.feed("label", rng.integers(0, 10, 8).astype(np.int32))
    workspace.run_net_once(model.param_init_net)
    return model, workspace


@needs_bfloat16
def test_between_convolutions_nothing_is_converted():
    model, workspace = residual_net("bfloat16")
    workspace.create_net(model.net)
    for _ in range(2):
        workspace.run_net(model.net)
    moved, kinds = Counter(), Counter()
    for step, _ in steps_of(workspace, "residual"):
        if step.moves:
            moved[step.inputs[0].name] += 1
        else:
            kinds[step.node.first.op_def.type] += any(v is not None and v.spec.rounds for v in step.outputs)
    weights = {str(p) for p in model.GetParams() if len(workspace.fetch(str(p)).shape) == 4}
    small = {"final_avg", "final_avg_grad"}  # the last layer is so small that it is computed in float32
    assert moved.keys() - weights == {"data"} | small
    assert all(moved[w] <= 2 for w in weights), "one copy of the weights forward, one backward"
    for kind in ("Conv", "SpatialBN", "Sum", "AveragePool", "SpatialBNGradient", "ReluGradient"):
        assert kinds[kind] > 0, kind


@needs_bfloat16
def test_parameters_and_what_belongs_to_them_are_not_rounded():
    model, workspace = residual_net("bfloat16")
    workspace.create_net(model.net)
    for _ in range(3):
        workspace.run_net(model.net)
    gradients = [str(model.param_to_grad[p]) for p in model.GetParams()]
    parameters = [str(p) for p in (*model.GetParams(), *model.GetComputedParams())]
    momentum = [blob for blob in workspace.blobs() if blob.endswith("momentum")]
    assert len(momentum) == len(gradients)
    for blob in (*parameters, *gradients, *momentum, "loss", "softmax"):
        assert not workspace.find(blob).spec.rounds, blob
        value = workspace.fetch(blob)
        assert value.dtype == np.float32
        if value.size >= 16 and np.ptp(value):
            assert np.mean(value.view(np.uint32) & 0xFFFF != 0) > 0.9, f"{blob} looks rounded"
    activation = workspace.fetch(model.net.Proto().op[0].output[0])
    assert activation.dtype == np.float32 and not (activation.view(np.uint32) & 0xFFFF).any()


def test_a_test_net_in_float32_shares_the_parameters_of_a_training_net_in_bfloat16():
    model, workspace = residual_net("bfloat16")
    workspace.create_net(model.net)
    tested = ModelHelper("tested", arg_scope={"order": "NCHW"}, init_params=False)
    create_resnet_cifar(tested, "data", 3, 10, 8, is_test=True)
    workspace.create_net(tested.net)
    other = Workspace(threads=1)
    other.feed("data", workspace.fetch("data"))
    for _ in range(3):
        workspace.run_net(model.net)
        workspace.run_net(tested.net)
        got = workspace.fetch("softmax")
        for blob in (*model.GetParams(), *model.GetComputedParams()):
            other.feed(str(blob), workspace.fetch(str(blob)))
        other.run_net_once(tested.net)
        np.testing.assert_allclose(got, other.fetch("softmax"), rtol=1e-4, atol=1e-6)
    assert not any(v is not None and v.spec.rounds for step, _ in steps_of(workspace, "tested") for v in step.outputs)


def test_runs_are_repeatable_and_may_change_the_batch():
    found = []
    for _ in range(2):
        model, workspace = residual_net("bfloat16")
        workspace.create_net(model.net)
        data, label = workspace.fetch("data"), workspace.fetch("label")
        losses = []
        for n in (8, 4, 8, 4):
            workspace.feed("data", data[:n])
            workspace.feed("label", label[:n])
            workspace.run_net(model.net)
            losses.append(workspace.fetch("loss"))
        assert losses[3] < losses[1] and losses[2] < losses[0]
        found.append(workspace.fetch("softmax"))
    np.testing.assert_array_equal(*found)


def test_sharing_memory_of_unobservable_values_keeps_the_numbers():
    found = []
    for options in ({}, {"observable": "outputs"}):
        model, workspace = residual_net("bfloat16")
        workspace.create_net(model.net, **options)
        for _ in range(3):
            workspace.run_net(model.net)
        found.append([workspace.fetch(str(p)) for p in (*model.GetParams(), *model.GetComputedParams())])
    for kept, shared in zip(*found):
        np.testing.assert_allclose(shared, kept, rtol=1e-4, atol=1e-5)


@needs_bfloat16
def test_a_predictor_with_its_normalizations_folded():
    model = ModelHelper("predictor", arg_scope={"order": "NCHW"})
    create_resnet_cifar(model, "data", 3, 10, 8, is_test=True)
    workspace = Workspace(threads=1)
    rng = np.random.default_rng(0)
    workspace.feed("data", rng.standard_normal((8, 3, 16, 16)).astype(np.float32))
    workspace.run_net_once(model.param_init_net)
    names = [str(p) for p in (*model.GetParams(), *model.GetComputedParams())]
    net, parameters = fold_batch_norm(model.net, {name: workspace.fetch(name) for name in names})
    net.external_output.append("softmax")
    for name, value in parameters.items():
        workspace.feed(name, value)
    found = []
    for dtype in ("float32", "bfloat16"):
        constants = [name for name in parameters if name in net.external_input]
        workspace.create_net(net, overwrite=True, dtype=dtype, observable="outputs", constants=constants)
        workspace.run_net(net.name)
        found.append(workspace.fetch("softmax"))
    moved = [step.inputs[0].name for step, _ in steps_of(workspace, net.name) if step.moves]
    assert set(moved) <= {"data", "final_avg"}, "weights are rounded once, when the plan is made"
    assert found[1].dtype == np.float32
    assert 0 < np.abs(found[1] - found[0]).max() < 0.03


def conv_net(*ops, **arguments):
    net = NetDef(name="net")
    net.op.extend([make_op("Conv", ["x", "w"], ["y"], kernel=3), *ops])
    net.external_input.extend(["x", "w"])
    net.arg.extend(make_argument(name, value) for name, value in arguments.items())
    return net


def fed(**options):
    workspace = Workspace(threads=1, **options)
    rng = np.random.default_rng(0)
    workspace.feed("x", rng.standard_normal((2, 16, 6, 6)).astype(np.float32))
    workspace.feed("w", rng.standard_normal((32, 16, 3, 3)).astype(np.float32))
    return workspace


@needs_bfloat16
def test_the_net_says_it_in_an_argument_and_create_net_may_overrule_it():
    workspace = fed()
    workspace.create_net(conv_net(activation_dtype="bfloat16"))
    workspace.run_net("net")
    assert workspace.find("y").spec.rounds
    workspace.create_net(conv_net(activation_dtype="bfloat16"), overwrite=True, dtype="float32")
    workspace.run_net("net")
    assert not workspace.find("y").spec.rounds
    workspace.run_net_once(conv_net(activation_dtype="bfloat16"))
    assert workspace.find("y").spec.rounds
    assert workspace.fetch("y").dtype == np.float32
    assert workspace.spec("y").layout is None


@pytest.mark.parametrize("value", ["int8", "half", 3])
def test_other_types_are_refused(value):
    with pytest.raises(NetError, match=r"net 'net': .* stored as one of float32, bfloat16, float16; got"):
        fed().create_net(conv_net(activation_dtype=value))
    with pytest.raises(NetError, match="one of float32, bfloat16"):
        fed().create_net(conv_net(), dtype=value)


@needs_bfloat16
def test_what_is_fed_is_kept_to_the_bit():
    workspace = fed()
    workspace.create_net(conv_net(), dtype="bfloat16")
    workspace.run_net("net")
    assert workspace.find("y").spec.rounds
    exact = np.random.default_rng(1).standard_normal((2, 32, 4, 4)).astype(np.float32)
    workspace.feed("y", exact)
    np.testing.assert_array_equal(workspace.fetch("y"), exact)
    workspace.run_net("net")
    assert workspace.find("y").spec.rounds


@needs_bfloat16
def test_a_fed_blob_that_is_overwritten_in_place_keeps_float32():
    ops = [make_op("Sum", ["y", "z"], ["y"]), make_op("Conv", ["y", "v"], ["x"], kernel=3, pad=2)]
    net = conv_net(*ops)
    workspace = fed()
    workspace.feed("z", np.zeros((2, 32, 4, 4), np.float32))
    workspace.feed("v", np.random.default_rng(2).standard_normal((16, 32, 3, 3)).astype(np.float32) / 99)
    workspace.create_net(net, dtype="bfloat16")
    fine = workspace.fetch("x")
    for _ in range(2):
        workspace.run_net("net")
        assert not workspace.find("x").spec.rounds
        workspace.feed("x", fine)
        np.testing.assert_array_equal(workspace.fetch("x"), fine)


@needs_bfloat16
def test_nets_held_by_operators_are_computed_likewise():
    inner = NetDef(name="inner")
    inner.op.add().CopyFrom(make_op("Conv", ["x", "w"], ["y"], kernel=3))
    net = NetDef(name="net")
    net.external_input.extend(["x", "w", "yes"])
    net.op.add().CopyFrom(make_op("If", ["yes", "x", "w"], ["y"], then_net=inner))
    workspace = fed()
    workspace.feed("yes", np.array(True))
    workspace.create_net(net, dtype="bfloat16")
    workspace.run_net("net")
    value = workspace.fetch("y")
    assert not (value.view(np.uint32) & 0xFFFF).any()


def test_without_a_library_nets_are_computed_in_float32():
    found = []
    for dtype in ("float32", "bfloat16"):
        workspace = fed(engines=())
        workspace.create_net(conv_net(), dtype=dtype)
        workspace.run_net("net")
        found.append(workspace.fetch("y"))
    np.testing.assert_array_equal(*found)


SCRIPT = """
import warnings
import numpy as np
import golden_data
from netbuilder.runtime import Workspace
golden = golden_data.net("convnet")
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    for _ in range(2):
        workspace = Workspace(threads=1)
        for blob, value in golden.inputs(1).items():
            workspace.feed(blob, value)
        workspace.run_net_once(golden.protos["param_init_net"])
        for blob, value in golden.start_values().items():
            workspace.feed(blob, value)
        workspace.create_net(golden.protos["net"], dtype="bfloat16")
        workspace.run_net("convnet")
np.testing.assert_allclose(workspace.fetch("loss"), golden.expected(1)["loss"], rtol=0.01)
print([str(w.message) for w in found])
"""


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["AVX2", "AVX512_CORE"])
def test_a_cpu_without_the_instructions_warns_once_and_computes(instructions):
    """oneDNN can be held back to older instructions: without AVX-512 it has no fast code, with it, it emulates."""
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("bfloat16 activations were requested") == 1
    assert "AVX512_BF16" in done.stdout
