"""Scaled gradients: the same parameters as without where nothing underflows, skipped steps, float16."""

import numpy as np
import pytest

from cudnn_double import cudnn_double
from netbuilder import optimizers, parallel
from netbuilder.distributed import Rendezvous, require_equal_blobs
from netbuilder.exchange import load_checkpoint, take_checkpoint
from netbuilder.graph import BlobReference
from netbuilder.graph.net_names import reset_names
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.model.initializers import PseudoFP16Initializer
from netbuilder.parallel import GradientScaling
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, Task, no_input
from thread_ranks import on_ranks, use_thread_worlds
from toy_models import looked_up, mlp, scaled_loss, softmax_loss

SCALING = GradientScaling(initial=1024.0, interval=2)


def build(optimizer="momentum", devices=(0, 1), forward=mlp, make=parallel.Parallelize_CPU, **options):
    model = ModelHelper("net")
    builder = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    record = make(model, no_input, forward, optimizer_builder_fun=builder, devices=list(devices), **options)
    return model, record


def train(model, record, task=None):
    """Train; return the workspace."""
    workspace = Workspace(threads=2)
    for number, batch in enumerate((task or Task()).batches()):
        for name, whole in batch.items():
            for blob, part, place in zip(
                record.devices.copies(name), np.split(whole, len(record)), record.devices.options
            ):
                workspace.feed(blob, part, place)
        if number == 0:
            parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
    return workspace


def parameters(record, workspace):
    return [workspace.fetch(blob) for name in record.parameters for blob in record.blobs(name)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_power_of_two_changes_no_bit(optimizer):
    model, record = build(optimizer)
    want = parameters(record, train(model, record))
    scaled, record = build(optimizer, gradient_scaling=SCALING)
    workspace = train(scaled, record)
    for got, expected in zip(parameters(record, workspace), want):
        np.testing.assert_array_equal(got, expected)
    assert workspace.fetch("cpu_0/gradient_scale").tolist() == [4096]  # after 2 and 4 steps


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [{"weighted_shares": True}, {"accumulate_steps": 2}], ids=str)
def test_with_weights_and_micro_batches(options):
    found = []
    for scaling in (None, SCALING):
        model, record = build(gradient_scaling=scaling, **options)
        task = Task(steps=2)
        workspace = Workspace()
        for number, batch in enumerate(task.batches()):
            for name, whole in batch.items():
                for blob, part in zip(record.devices.copies(name), np.split(whole, len(record))):
                    workspace.feed(blob, part)
            if number == 0:
                parallel.RunInitNet(model, workspace=workspace)
            parallel.RunNet(model, record.accumulate_steps, workspace=workspace)
        found.append(parameters(record, workspace))
    assert all(np.array_equal(a, b) for a, b in zip(*found))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_step_whose_gradients_overflow_changes_nothing_but_the_scale(optimizer, bad):
    model, record = build(optimizer, gradient_scaling=SCALING)
    workspace = train(model, record, Task(steps=2))
    before = {name: workspace.fetch(name) for name in workspace.blobs() if name.startswith("cpu_") and state(name)}
    for name, whole in next(iter(Task(steps=1).batches())).items():
        whole = whole.copy()
        if name == "data":
            whole[0, 0] = bad  # on one replica; the sums reach both
        for blob, part in zip(record.devices.copies(name), np.split(whole, 2)):
            workspace.feed(blob, part)
    parallel.RunNet(model, workspace=workspace)
    assert before
    for name, value in before.items():
        np.testing.assert_array_equal(workspace.fetch(name), value, err_msg=name)
    for scope in ("cpu_0/", "cpu_1/"):
        assert workspace.fetch(scope + "gradient_scale").tolist() == [1024]  # 2048 after two steps, and half of it
        assert workspace.fetch(scope + "gradients_finite").tolist() == [False]
        assert workspace.fetch(scope + "gradient_scale_steps").tolist() == [0]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("bucket_bytes", [0, 4 << 20])
def test_all_processes_skip_a_step_whose_gradients_overflow_on_one(devices, bucket_bytes, monkeypatch):
    use_thread_worlds(monkeypatch, 2)
    models = []
    for rank in range(2):
        reset_names()
        optimizers.reset_optimizer_instance_count()
        options = {"rendezvous": Rendezvous(2, rank), "bucket_bytes": bucket_bytes, "gradient_scaling": SCALING}
        models.append(build("adam", range(devices), **options))

    def run(rank):
        (model, record), workspace = models[rank], Workspace(threads=1)
        rng, found = np.random.default_rng(5), []
        for step in range(4):
            data = rng.normal(size=(2, devices, 3, 6)).astype(np.float32)
            label = rng.integers(0, 4, (2, devices, 3)).astype(np.int32)
            if step == 2:
                data[1, -1, 0, 0] = np.inf  # on the last replica of all
            for replica, scope in enumerate(record.devices.scopes):
                workspace.feed(scope + "data", data[rank, replica])
                workspace.feed(scope + "label", label[rank, replica])
            if step == 0:
                parallel.RunInitNet(model, workspace=workspace)
            parallel.RunNet(model, workspace=workspace)
            require_equal_blobs(model, workspace=workspace)
            names = [name for name in workspace.blobs() if name.startswith("cpu_") and state(name)]
            kept = {name: workspace.fetch(name).copy() for name in names}
            scales = {float(workspace.fetch(scope + "gradient_scale")[0]) for scope in record.devices.scopes}
            found.append((kept, scales))
        return found

    for found in on_ranks(2, run):
        assert not isinstance(found, Exception), found
        assert [scales for _, scales in found] == [{1024}, {2048}, {1024}, {1024}]
        values = [kept for kept, _ in found]
        assert any("first_moment" in name for name in values[0])
        for name in values[0]:
            np.testing.assert_array_equal(values[2][name], values[1][name], err_msg=name)
        assert any(not np.array_equal(values[3][name], values[2][name]) for name in values[0])


def state(name):
    """Whether a blob is a parameter or the state of an optimizer."""
    short = name.split("/", 1)[1]
    return short in ("fc1_w", "fc1_b", "fc2_w", "fc2_b") or any(
        short.endswith(end) for end in ("momentum", "_first_moment", "_second_moment", "_squared_sum")
    )


def half(small):
    """Two layers in float16, whose loss is multiplied by a small number so that gradients underflow."""
    given = {"WeightInitializer": PseudoFP16Initializer, "BiasInitializer": PseudoFP16Initializer}

    def forward(model, loss_scale):
        x = model.net.FloatToHalf("data", "data_half")
        x = brew.relu(model, brew.fc(model, x, "fc1", 6, 8, **given), "fc1")
        x = model.net.HalfToFloat(brew.fc(model, x, "fc2", 8, 4, **given), "scores")
        return scaled_loss(model, x, small * loss_scale)

    return forward


NAMES = ["fc1_w", "fc1_b", "fc2_w", "fc2_b"]


def run(model, record, start, steps):
    """Run steps that change something, from given parameters; return how far the first replica's have moved."""
    made = {blob for op in model.param_init_net.Proto().op for blob in op.output}
    masters = "_fp32" if "cpu_0/fc1_w_fp32" in made else ""
    workspace = Workspace()
    for name, whole in next(iter(Task(steps=1).batches())).items():
        for blob, part in zip(record.devices.copies(name), np.split(whole, 2)):
            workspace.feed(blob, part)
    parallel.RunInitNet(model, workspace=workspace)
    for name, value in start.items():
        for scope in record.devices.scopes:
            workspace.feed(scope + name, value.astype(np.float16) if masters else value)
            workspace.feed(scope + name + masters, value)
    for _ in range(100):
        parallel.RunNet(model, workspace=workspace)
        finite = "cpu_0/gradients_finite"
        steps -= int(workspace.fetch(finite)[0]) if workspace.has(finite) else 1
        if not steps:
            break
    return np.concatenate([(workspace.fetch(f"cpu_0/{name}{masters}") - start[name]).ravel() for name in NAMES])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("initial, follows", [(None, False), (2.0**16, True), (2.0**60, True)])
def test_float16_gradients_that_would_underflow(initial, follows):
    """With steps of 1e7 times as large, losses of 1e-7 train as losses of 1 do, if their gradients are scaled."""
    small, rate = 1e-7, 0.05 / 1e-7
    model, record = build(
        lambda model: optimizers.build_sgd(model, rate, policy="fixed"),
        forward=lambda model, scale: mlp(model, small * scale),
    )
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    start = {name: workspace.fetch("cpu_0/" + name).astype(np.float16).astype(np.float32) for name in NAMES}
    want = run(model, record, start, 30)
    scaling = None if initial is None else GradientScaling(initial=initial)
    model, record = build(
        lambda model: optimizers.build_multi_precision_sgd(model, rate, momentum=0.0, policy="fixed"),
        forward=half(small), gradient_scaling=scaling,
    )  # fmt: skip
    off = np.linalg.norm(run(model, record, start, 30) - want) / np.linalg.norm(want)
    assert off < 0.05 if follows else off > 0.5


def test_on_gpus_by_nccl(two_gpus):
    found = []
    for scaling in (None, SCALING):
        model, record = build(make=parallel.Parallelize_GPU, gradient_scaling=scaling, use_nccl=True)
        found.append(parameters(record, train(model, record)))
    assert all(np.array_equal(a, b) for a, b in zip(*found))


@pytest.mark.gpu
def test_in_graphs():
    """Train on one device of each kind; the fourth batch overflows, when the steps of the GPU are a CUDA graph."""
    found = []
    for make in (parallel.Parallelize_CPU, parallel.Parallelize_GPU):
        model, record = build("adam", devices=[0], make=make, gradient_scaling=SCALING)
        workspace = Workspace(engines=() if make is parallel.Parallelize_CPU else ("CUDA",))
        (scope,), (place,), scales = record.devices.scopes, record.devices.options, []
        for number, batch in enumerate(Task(steps=6).batches()):
            if number == 3:
                batch["data"][0, 0] = np.inf
            for name, whole in batch.items():
                workspace.feed(scope + name, whole, place)
            if number == 0:
                parallel.RunInitNet(model, workspace=workspace)
                rng = np.random.default_rng(5)
                for name in NAMES:
                    value = rng.standard_normal(workspace.fetch(scope + name).shape, np.float32)
                    workspace.feed(scope + name, value, place)
            parallel.RunNet(model, workspace=workspace)
            scales.append(workspace.fetch(scope + "gradient_scale").item())
        found.append(parameters(record, workspace))
        (plan,) = workspace.net(model.net.Name()).plan_ahead()
        graphs = {each.graph for each in plan.captured()}
        assert 0 in graphs or make is parallel.Parallelize_CPU
        assert scales == [1024, 2048, 2048, 1024, 1024, 2048]
    for got, expected in zip(*found):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_what_it_cannot_be_combined_with():
    for options in ({"shared_model": True}, {"reduce_update_broadcast": True}, {"strategy": "topk:0.1"}):
        with pytest.raises(NetError, match=f"gradient_scaling cannot be combined with {next(iter(options))}"):
            build(gradient_scaling=SCALING, **options)
    with pytest.raises(TypeError, match="gradient_scaling must be a GradientScaling or None, got 1024"):
        build(gradient_scaling=1024)
    with pytest.raises(NetError, match="gradient_scaling is for training"):
        parallel.Parallelize_CPU(ModelHelper("eval"), no_input, mlp, devices=[0], gradient_scaling=SCALING)

    with pytest.raises(NetError, match=r"the parameters \['table'\] have sparse gradients; omit it"):
        build("sgd", forward=looked_up, gradient_scaling=SCALING)
    model = ModelHelper("net")
    model.create_param("common", [4, 6], Initializer("XavierFill"))

    def forward(model, loss_scale):
        return scaled_loss(model, model.net.MatMul(["data", BlobReference("common")], "scores", trans_b=1), loss_scale)

    with pytest.raises(NetError, match=r"the parameters \['common'\] are outside the replicas"):
        parallel.Parallelize_CPU(
            model, no_input, forward, optimizer_builder_fun=OPTIMIZERS["sgd"], devices=[0], gradient_scaling=SCALING
        )


@pytest.mark.parametrize(
    "wrong", [{"initial": 0}, {"initial": "big"}, {"growth": 0.5}, {"backoff": 0}, {"backoff": 2}, {"interval": 0.5}]
)
def test_values_out_of_range(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(NetError, match=f"GradientScaling: {name} must be .*, got {value!r}"):
        GradientScaling(**wrong)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("first, then", [(None, SCALING), (SCALING, None), (SCALING, SCALING)], ids=str)
def test_training_goes_on_with_another_type_of_activations(first, then):
    """A scale of powers of 2 changes no bit, so that it is the same whether steps are scaled."""
    want = parameters(build()[1], train(*build(), Task(steps=6)))
    model, record = build(gradient_scaling=first)
    checkpoint = take_checkpoint(model, workspace=train(model, record, Task(steps=3)))
    model, record = build(gradient_scaling=then)
    workspace = train(model, record, Task(steps=1))
    for scope in record.devices.scopes:
        workspace.feed(scope + "gradient_scale", np.float32([256]))
    load_checkpoint(checkpoint, model, workspace=workspace)
    if then:
        assert workspace.fetch("cpu_0/gradient_scale").tolist() == [2048 if first else 256]
    for batch in [*Task(steps=6).batches()][3:]:
        for name, whole in batch.items():
            for blob, part in zip(record.devices.copies(name), np.split(whole, 2)):
                workspace.feed(blob, part)
        parallel.RunNet(model, workspace=workspace)
    for got, expected in zip(parameters(record, workspace), want):
        np.testing.assert_array_equal(got, expected)


def test_checkpoints_have_the_scale():
    model, record = build(gradient_scaling=SCALING)
    train(model, record)
    names = {str(name).rpartition("/")[2] for name in parallel.GetCheckpointParams(model)}
    assert {"gradient_scale", "gradient_scale_steps"} <= names


def wrapped(steps=4, bad=None, between=None, **options):
    """Train a wrapper; return it with its parameters after each step."""

    def scores(helper, data):
        return brew.fc(helper, brew.relu(helper, brew.fc(helper, data, "fc1", 6, 8), "fc1"), "fc2", 8, 4)

    def loss(helper, scores, label):
        return softmax_loss(helper, scores, label)

    net = parallel.DataParallel(
        scores, [0, 1], loss=loss, optimizer=OPTIMIZERS["momentum"], workspace=Workspace(threads=2, seed=5), **options
    )
    found = []
    for number, batch in enumerate(Task(steps=steps).batches()):
        if number == bad:
            batch["data"][0, 0] = np.inf
        outputs = net(batch["data"])
        net.loss(batch["label"])
        if between is not None:
            between(outputs)
        net.backward()
        net.step()
        found.append(net.parameters())
    return net, found


@pytest.mark.parametrize("between", [None, lambda outputs: outputs[0][0].numpy()], ids=["whole", "in parts"])
def test_a_wrapper_scales_gradients(between):
    _, want = wrapped(cpu_device=True, between=between)
    net, got = wrapped(cpu_device=True, between=between, gradient_scaling=SCALING)
    for one, other in zip(got, want):
        assert all(np.array_equal(one[name], value) for name, value in other.items())
    assert net.workspace.fetch("cpu_1/gradient_scale").tolist() == [4096]
    assert np.isfinite(net.eval()(np.ones((4, 6), np.float32))[1][0]).all()


def test_a_wrapper_skips_a_step_whose_gradients_overflow():
    net, found = wrapped(cpu_device=True, bad=2, gradient_scaling=SCALING)
    same = [all(np.array_equal(a[name], b[name]) for name in a) for a, b in zip(found, found[1:])]
    assert same == [False, True, False]
    assert net.workspace.fetch("cpu_0/gradient_scale").tolist() == [1024]


@pytest.mark.emulated
def test_a_wrapper_scales_float16_by_default():
    with cudnn_double():
        net, found = wrapped(dtype="float16")
        assert net.workspace.fetch("gpu_1/gradient_scale").tolist() == [65536]
        net, scaled = wrapped(dtype="float16", gradient_scaling=GradientScaling(initial=64.0, interval=2))
        assert net.workspace.fetch("gpu_1/gradient_scale").tolist() == [256]
        _, single = wrapped()
    for got in (found, scaled):
        apart = [np.abs(got[-1][name] - value).max() for name, value in single[-1].items()]
        assert 0 < max(apart) < 2e-3


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_scaling": SCALING, "cpu_device": True},
        pytest.param({"dtype": "float16"}, marks=pytest.mark.emulated),
    ],
    ids=["scaling", "float16"],
)
def test_a_wrapper_that_scales_does_not_update_on_one_device(options):
    with pytest.raises(NetError, match="cannot be combined with reduce_update_broadcast"):
        wrapped(reduce_update_broadcast=True, **options)


def test_what_a_wrapper_cannot_combine_with_it():
    with pytest.raises(NetError, match="gradient_scaling is for training: without a function that appends the update"):
        parallel.DataParallel(lambda helper, x: x, [0], cpu_device=True, gradient_scaling=SCALING)
    with pytest.raises(TypeError, match="gradient_scaling must be a GradientScaling or None, got 1024"):
        wrapped(cpu_device=True, gradient_scaling=1024)
