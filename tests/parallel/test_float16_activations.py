"""Activations stored as float16 on GPUs: training follows float32, gradients are scaled, overflowing steps skipped."""

from collections import Counter

import numpy as np
import pytest

from cudnn_double import cudnn_double
from netbuilder import optimizers, parallel
from netbuilder.graph import DeviceScope, Net
from netbuilder.model import ModelHelper, brew
from netbuilder.parallel import GradientScaling
from netbuilder.proto import NetError
from netbuilder.proto.arguments import arguments
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, gpus, with_cudnn
from parallel_models import OPTIMIZERS, Task, no_input
from switches import single
from toy_models import convnet, mlp, scaled_loss

ENGINES = ("CUDNN", "CUDA")


def residual(small=1.0):
    """A builder of two convolutions with a normalization and a sum, whose loss is multiplied by a number."""

    def forward(model, loss_scale):
        x = brew.relu(model, brew.conv(model, "data", "conv1", 3, 8, kernel=3, pad=1), "conv1")
        y = brew.spatial_bn(model, brew.conv(model, x, "conv2", 8, 8, kernel=3, pad=1), "bn", 8, is_test=False)
        x = brew.relu(model, brew.sum(model, [y, x], "block"), "block")
        x = brew.average_pool(model, x, "pooled", kernel=8)
        return scaled_loss(model, brew.fc(model, x, "fc", 8, 4), small * loss_scale)

    return forward


def build(devices=(0,), forward=None, optimizer="momentum", **options):
    model = ModelHelper("net")
    builder = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    record = parallel.Parallelize_GPU(
        model, no_input, forward or residual(), optimizer_builder_fun=builder, devices=list(devices), **options
    )
    return model, record


TASK = Task(shape=(8, 3, 8, 8), steps=6)


def feed(workspace, record, batch):
    for name, whole in batch.items():
        for blob, part, place in zip(record.devices.copies(name), np.split(whole, len(record)), record.devices.options):
            workspace.feed(blob, part, place)


def train(model, record, task=TASK, *, start=None, after=lambda workspace: None, without=()):
    """Train, perhaps from given parameters; return the workspace."""
    workspace = Workspace(engines=ENGINES, without=without)
    for number, batch in enumerate(task.batches()):
        feed(workspace, record, batch)
        if number == 0:
            parallel.RunInitNet(model, workspace=workspace)
            for name, value in (start or {}).items():
                for blob, place in zip(record.devices.copies(name), record.devices.options):
                    workspace.feed(blob, value, place)
        parallel.RunNet(model, workspace=workspace)
        after(workspace)
    return workspace


def parameters(record, workspace):
    return {name: workspace.fetch(record.blobs(name)[0]) for name in record.parameters}


def first_parameters(**options):
    """Parameters before the first step."""
    model, record = build(**options)
    workspace = Workspace()
    parallel.RunInitNet(model, workspace=workspace)
    return parameters(record, workspace)


def distance(got, want, start):
    """How far parameters are from others, in units of the way that these have moved."""
    names = want.keys() - {"conv2_b"}  # before a normalization a bias has no gradient, but rounding, by which Adam goes
    apart, moved = ([a[name] - b[name] for name in names] for a, b in ((got, want), (want, start)))
    return np.sqrt(sum(float(np.square(x).sum()) for x in apart) / sum(float(np.square(x).sum()) for x in moved))


def follows(devices, optimizer):
    """Train with each type; float16 is near to float32, and nearer than bfloat16 is."""
    found, start = {}, first_parameters()
    for dtype in ("float32", "float16", "bfloat16"):
        model, record = build(devices, optimizer=optimizer, dtype=dtype)
        found[dtype] = parameters(record, train(model, record, start=start))
    apart = {dtype: distance(found[dtype], found["float32"], start) for dtype in ("float16", "bfloat16")}
    most, nearer = (0.2, 1.0) if optimizer == "adam" else (0.02, 0.5)  # Adam divides small gradients by themselves
    assert 0 < apart["float16"] < most and apart["float16"] < nearer * apart["bfloat16"]


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("devices", [(0,), (0, 1)], ids=str)
def test_training_follows_float32(devices, optimizer):
    with with_cudnn(len(devices)):
        follows(devices, optimizer)


class SameBatch(Task):
    """A task whose batches are all the first one."""

    def batches(self, dtype=np.float32):
        return [next(super().batches(dtype))] * self.steps


def losses_of(dtype, start):
    found = []
    model, record = build(dtype=dtype)
    task = SameBatch(shape=(8, 3, 8, 8), steps=40)
    train(model, record, task, start=start, after=lambda workspace: found.append(workspace.fetch("gpu_0/loss").item()))
    return found


@pytest.mark.gpu
def test_losses_fall_as_in_float32():
    """Forty steps on the same samples: the net learns them, by the same losses."""
    with with_cudnn():
        start = first_parameters()
        losses = {dtype: losses_of(dtype, start) for dtype in ("float32", "float16")}
    assert losses["float32"][-1] < 0.2 * losses["float32"][0]
    np.testing.assert_allclose(losses["float16"], losses["float32"], rtol=0.02, atol=0.005)


@pytest.mark.emulated
def test_values_are_stored_in_16_bits_and_fetched_as_float32():
    with cudnn_double() as cudnn:
        model, record = build(dtype="float16")
        workspace = train(model, record)
        block = workspace.fetch("gpu_0/block")
        assert block.dtype == np.float32
        np.testing.assert_array_equal(block, block.astype(np.float16))
        for name, value in parameters(record, workspace).items():
            assert value.dtype == np.float32
            assert (value != value.astype(np.float16)).any() or not value.any(), name
        types = Counter(tensor.type.name for graph in cudnn.graphs for tensor in graph.tensors if tensor.in_memory)
        assert types["BFLOAT16"] == 0 and types["HALF"] > 20


def scale_of(workspace):
    return workspace.fetch("gpu_0/gradient_scale").item()


@pytest.mark.gpu
def test_gradients_that_would_vanish_are_scaled():
    """Losses of 1e-6 with steps 1e6 times as large: float16 has nothing below 6e-8, so gradients must be scaled."""
    rate, small, task = 0.05, 1e-6, Task(shape=(8, 3, 8, 8), steps=4)

    def sgd(rate):
        return lambda model: optimizers.build_sgd(model, rate, policy="fixed")

    with with_cudnn():
        start = first_parameters()
        model, record = build(optimizer=sgd(rate))
        want = parameters(record, train(model, record, task, start=start))
        model, record = build(optimizer=sgd(rate / small), forward=residual(small), dtype="float16")
        assert distance(parameters(record, train(model, record, task, start=start)), want, start) < 0.02
        one = GradientScaling(initial=1.0, growth=1.0)
        model, record = build(
            optimizer=sgd(rate / small), forward=residual(small), dtype="float16", gradient_scaling=one
        )
        assert distance(parameters(record, train(model, record, task, start=start)), want, start) > 0.2


def overflows(devices):
    """Train with a scale that is too large: steps whose gradients overflow change nothing, and halve the scale."""
    scaling, states, scales = GradientScaling(initial=2.0**24, interval=3), [], []

    def note(workspace):
        names = [n for n in workspace.blobs() if n.endswith("_momentum")]
        states.append({**parameters(record, workspace), **{name: workspace.fetch(name) for name in names}})
        scales.append((scale_of(workspace), bool(workspace.fetch("gpu_0/gradients_finite").item())))

    start = first_parameters()
    model, record = build(devices, dtype="float16", gradient_scaling=scaling)
    train(model, record, Task(shape=(8, 3, 8, 8), steps=14), start=start, after=note)
    skipped = [not finite for _, finite in scales]
    count = skipped.index(False)
    assert 3 <= count <= 10 and not all(skipped) and scales[count - 1][0] == 2.0 ** (24 - count)
    for before, after, missed in zip(states, states[1:], skipped[1:]):
        same = all(np.array_equal(before[name], after[name]) for name in before)
        assert same == missed
    assert all(np.isfinite(value).all() for state in states for value in state.values())
    assert scales[count + 2][0] == 2 * scales[count + 1][0]  # the third step without overflow


@pytest.mark.multi_gpu
def test_a_scale_that_is_too_large_is_halved_until_gradients_fit():
    with with_cudnn(2):
        overflows((0, 1))


@pytest.mark.emulated
def test_a_step_waits_for_nothing_and_updates_once():
    """One kernel divides gradients, updates, and restores; the host reads no flag; a graph holds the whole step."""

    def counted(dtype, without=()):
        """Return the counts of a step, and the titles of netbuilder's kernels in it."""
        model, record = build(dtype=dtype)
        net = train(model, record, Task(shape=(8, 3, 8, 8), steps=4), without=without).net(model.net.Proto().name)
        before = machine.counts
        machine.launches.clear()
        net.run()
        net.finish()
        names = Counter(launch.name for launch in machine.launches)
        return machine.counts - before, Counter(name.split("_")[1] for name in names.elements() if name[:3] == "nb_")

    with gpus(1) as machine, cudnn_double():
        plain, _ = counted("float32", without=single("cuda_graphs"))
        scaled, own = counted("float16", without=single("cuda_graphs"))
        replayed, _ = counted("float16")
    for what in ("reads", "synchronizations", "allocations", "copies", "sets"):
        assert replayed[what] == scaled[what] == plain[what] <= 2, what
    assert own["updates"] == own["all"] == own["set"] == 1 and own["divide"] == own["restore"] == own["save"] == 0, own
    assert scaled["launches"] == plain["launches"] + 2 and (replayed["replays"], replayed["launches"]) == (1, 0)


@pytest.mark.emulated
def test_what_a_net_that_trains_without_a_scale_says():
    model = ModelHelper("net", dtype="float16")
    with DeviceScope(ON_GPU):
        (loss,) = mlp(model, 1.0)
        model.AddGradientOperators([loss])
    with gpus(2), cudnn_double():
        workspace = Workspace(engines=ENGINES)
        for name, value in next(iter(Task().batches())).items():
            workspace.feed(name, value)
        workspace.run_net_once(model.param_init_net)
        with pytest.warns(UserWarning, match=r"stored as float16 without a scale.*Parallelize\(dtype='float16'\)"):
            workspace.create_net(model.net)


def test_on_the_cpu_it_is_an_error():
    net = Net("net")
    net.Relu("x", "y")
    net.set_activation_dtype("float16")
    workspace = Workspace()
    workspace.feed("x", np.ones(3, np.float32))
    with pytest.raises(NetError, match="stored as float16 on GPUs only.*let dtype be float32 or bfloat16"):
        workspace.create_net(net)
    workspace.create_net(net, dtype="bfloat16", overwrite=True)
    outer = Net("outer")
    outer.If("condition", [], then_net=net.Proto())
    workspace.feed("condition", np.array(True))
    with pytest.raises(NetError, match="net 'outer': activations are stored as float16 on GPUs only"):
        workspace.create_net(outer, dtype="float16")


@pytest.mark.emulated
def test_nets_within_nets_on_gpus():
    inner, outer, workspace = Net("inner"), Net("outer"), Workspace()
    inner.Relu("x", "y")
    inner.Proto().device_option.CopyFrom(ON_GPU)
    outer.If("condition", [], then_net=inner.Proto())
    workspace.feed("x", np.ones(3, np.float32))
    workspace.feed("condition", np.array(True))
    workspace.create_net(outer, dtype="float16")
    workspace.run_net(outer)
    assert workspace.fetch("y").tolist() == [1] * 3


@pytest.mark.emulated
def test_what_scales_by_default():
    with gpus(2), cudnn_double():
        model, _ = build(dtype="float16", forward=convnet)
        assert "UpdateGradientScale" in {op.type for op in model.net.Proto().op}
        model = ModelHelper("net", dtype="float16")
        parallel.Parallelize_GPU(
            model, no_input, convnet, optimizer_builder_fun=OPTIMIZERS["sgd"], devices=[0], gradient_scaling=None
        )
        assert "UpdateGradientScale" in {op.type for op in model.net.Proto().op}
        for dtype in ("float32", "bfloat16"):
            model, _ = build(dtype=dtype, forward=convnet)
            assert "UpdateGradientScale" not in {op.type for op in model.net.Proto().op}
        model = ModelHelper("test", init_params=False)
        parallel.Parallelize_GPU(model, no_input, convnet, devices=[0], dtype="float16")
        assert arguments(model.net.Proto())["activation_dtype"] == b"float16"
        with pytest.raises(NetError, match="float16', which scales gradients, cannot be combined with reduce_up"):
            build((0, 1), dtype="float16", reduce_update_broadcast=True)
        with pytest.raises(NetError, match="Parallelize_BMUF does not scale gradients, as dtype='float16' needs"):
            parallel.Parallelize_BMUF(
                ModelHelper("net"), no_input, mlp, lambda model: None, devices=[0, 1], dtype="float16"
            )
