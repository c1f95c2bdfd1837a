"""Nets of the zoo where only outputs are observable: fused, folded, in shared memory, numbers as in plain runs."""

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.graph.gradient_shares import gradient_blobs
from netbuilder.model import ModelHelper
from netbuilder.optimizers import build_sgd
from netbuilder.passes import extract_predictor, fold_batch_norm
from netbuilder.passes.share_memory import share_gradients
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.values import StepKind
from netbuilder.runtime.profile.memory import planned_memory
from netbuilder.zoo.alexnet import create_alexnet
from netbuilder.zoo.inception import create_inception_v1
from netbuilder.zoo.lenet import create_lenet
from netbuilder.zoo.resnet import create_resnet
from netbuilder.zoo.resnet_cifar import create_resnet_cifar
from netbuilder.zoo.resnext import create_resnext
from netbuilder.zoo.vgg import create_vgg
from switches import single
from zoo_models import create_small_inception, create_small_resnext

# Name -> the builder, its arguments after the data, and channels and pixels of an image. The small nets have a block
# of each kind that the large ones repeat.
NETS = {
    "lenet": (create_lenet, (1, 7), {}, (1, 28)),
    "alexnet": (create_alexnet, (3, 7), {"hidden": 16, "image_size": 67}, (3, 67)),
    "alexnet_one_tower": (create_alexnet, (3, 7), {"hidden": 16, "image_size": 67, "towers": 1}, (3, 67)),
    "resnet8": (create_resnet_cifar, (3, 7, 8), {}, (3, 16)),
    "small_inception": (create_small_inception, (3, 7), {}, (3, 64)),
    "small_inception_bn": (create_small_inception, (3, 7), {"batch_norm": True}, (3, 64)),
    "small_resnext": (create_small_resnext, (3, 7, 50, 8, 4), {}, (3, 32)),
    "vgg11": (create_vgg, (3, 7, 11), {"hidden": 16, "image_size": 32, "batch_norm": True}, (3, 32)),
    "inception_v1": (create_inception_v1, (3, 7), {"image_size": 64}, (3, 64)),
    "inception_bn": (create_inception_v1, (3, 7), {"image_size": 64, "batch_norm": True, "lrn": False}, (3, 64)),
    "resnet18": (create_resnet, (3, 7, 18), {}, (3, 32)),
    "resnet50": (create_resnet, (3, 7, 50), {}, (3, 32)),
    "resnext50": (create_resnext, (3, 7, 50, 8, 4), {}, (3, 32)),
}
LARGE = ("alexnet_one_tower", "vgg11", "inception_v1", "inception_bn", "resnet18", "resnet50", "resnext50")


def nets(*names):
    """Return these nets as parameters, all if none is named; large ones are slow."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in names or NETS]


def model_of(name, label=None, **options):
    create, args, kwargs, (channels, size) = NETS[name]
    model = ModelHelper(name, arg_scope={"order": "NCHW"})
    if create is create_lenet:
        options.pop("is_test", None)
    out = create(model, "data", *args, label=label, **kwargs, **options)
    return model, out, np.random.default_rng(0).normal(size=(2, channels, size, size)).astype(np.float32)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", nets())
def test_in_test_mode(name):
    model, scores, x = model_of(name, is_test=True, no_loss=True)
    net, parameters = extract_predictor(model.net, ["data"], [str(scores)])
    start, rng = Workspace(threads=1, seed=1), np.random.default_rng(1)
    start.run_net_once(model.param_init_net)
    values = {p: start.fetch(p) for p in parameters}
    for p, value in values.items():
        if value.ndim == 1:
            positive = p.endswith(("_s", "_riv"))
            values[p] = (rng.uniform(0.5, 1.5, value.shape) if positive else rng.normal(0, 0.1, value.shape)).astype(
                "f"
            )

    def run(net, values, **options):
        workspace = Workspace(threads=1)
        for blob, value in {**values, "data": x}.items():
            workspace.feed(blob, value)
        workspace.create_net(net, **options)
        for _ in range(2):
            workspace.run_net(net.name)
        return workspace.fetch(str(scores))

    want = run(net, values, without="fusion")
    folded, fewer = fold_batch_norm(net, values)
    assert not any(op.type == "SpatialBN" for op in folded.op)
    for this, its in ((net, values), (folded, fewer)):
        apart = run(this, its, observable="outputs", without=single("reuse"))
        assert np.array_equal(run(this, its, observable="outputs"), apart)
        # Weights known to be constant may get other kernels, which add in another order.
        constant = run(this, its, observable="outputs", constants=its)
        assert np.abs(constant - apart).max() <= 1e-5 * np.abs(apart).max()
        assert np.abs(apart - want).max() <= 1e-4 * np.abs(want).max()


def with_dead_memory_filled(plan):
    """Return a plan that fills with NaN what nothing needs any more, after each of its steps, and all of it before."""
    memory = plan.arena.memory(plan.memory.nbytes)
    memory[:] = 255
    ends = {}
    for placed in plan.memory.placed:
        ends.setdefault(placed.end, []).append(memory[placed.offset : placed.offset + placed.nbytes])

    def then_fill(index, call):
        def run():
            call()
            for dead in ends.get(index, ()):
                dead[:] = 255

        return run

    return plan.with_calls(then_fill)


@pytest.mark.one_in(12)
@pytest.mark.parametrize(
    "name, kind",
    [pytest.param(*name.values, "dag", marks=name.marks) for name in nets()]
    + [(name, "simple") for name in ("lenet", "resnet8", "alexnet")],
)
def test_no_step_reads_dead_memory(name, kind):
    model, (_, loss), x = model_of(name, label="label")
    model.AddGradientOperators([loss])
    build_sgd(model, 0.01, momentum=0.9)
    model.net.Proto().type = kind
    found = []
    for fill in (False, True):
        workspace = Workspace(threads=2, seed=1)
        workspace.feed("data", x)
        workspace.feed("label", np.int32([1, 5]))
        workspace.run_net_once(model.param_init_net)
        net = workspace.net(workspace.create_net(model.net, observable="outputs"))
        for _ in range(2):
            net.run_by(lambda plan: (with_dead_memory_filled(plan) if fill else plan).run(), net.run_alone)  # noqa: B023
        plans = net.plans
        assert plans[-1].memory.nbytes <= 1.01 * plans[-1].memory.live
        found.append({str(p): workspace.fetch(str(p)) for p in model.params})
    for p, value in found[0].items():
        assert np.array_equal(found[1][p], value), p


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", nets())
def test_in_training(name):
    model, (_, loss), x = model_of(name, label="label")
    model.AddGradientOperators([loss])
    build_sgd(model, 0.01, momentum=0.9)
    found = []
    for options in (
        {"observable": "all"},
        {"observable": "outputs", "without": single("reuse")},
        {"observable": "outputs"},
        {"observable": "activations"},
    ):
        workspace = Workspace(threads=1, seed=1)
        workspace.feed("data", x)
        workspace.feed("label", np.int32([1, 5]))
        workspace.run_net_once(model.param_init_net)
        workspace.create_net(model.net, **options)
        workspace.run_net(model.net.Name(), 2)
        assert workspace.fetch(str(loss)).shape == ()
        found.append({str(p): workspace.fetch(str(p)) for p in model.params})
    for p, value in found[1].items():
        assert np.array_equal(found[3][p], found[0][p]), p
        assert np.array_equal(found[2][p], value), p
        # Fusion adds in another order, so a step may differ by rounding.
        assert np.abs(found[0][p] - value).max() <= 1e-3 * max(np.abs(value).max(), 1e-3), p


@pytest.mark.one_in(4)
@pytest.mark.skipif(not onednn.available(), reason="the kernels that can do so are oneDNN's")
@pytest.mark.parametrize(
    "name, dtype", [("resnet8", "float32"), ("resnet8", "bfloat16"), ("small_inception_bn", "float32")]
)
def test_normalizations_are_computed_when_they_are_fetched(name, dtype):
    """With their Relus, and also if the backward pass has read them."""
    model, (_, loss), x = model_of(name, label="label")
    model.AddGradientOperators([loss])
    build_sgd(model, 0.01, momentum=0.9)
    found, planned, later = [], [], []
    for without in (single("cheap_recomputation"), []):
        workspace = Workspace(threads=1, seed=1)
        workspace.feed("data", x)
        workspace.feed("label", np.int32([1, 5]))
        workspace.run_net_once(model.param_init_net)
        net = workspace.create_net(model.net, dtype=dtype, without=without)
        planned.append(planned_memory(workspace, net).total)
        workspace.run_net(net, 2)
        blobs = [blob for blob in workspace.blobs() if workspace.get(blob).spec is not None]
        later.append([blob for blob in blobs if workspace.get(blob).lazy is not None])
        values = {blob: workspace.fetch(blob) for blob in blobs[::2]}
        workspace.feed("data", 2 * x)  # what is computed later is still of the last run
        values.update((blob, workspace.fetch(blob)) for blob in blobs[1::2] if blob != "data")
        found.append(values)
    assert len(later[1]) > len(later[0]) and planned[1] < planned[0]
    for blob, value in found[0].items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found[1][blob], value, err_msg=blob)


@pytest.mark.parametrize("name", ["lenet", "alexnet", "resnet8"])
def test_gradients_that_share_names_make_no_plan_larger(name):
    """Also the gradient of the images, which nobody reads, is computed only when it is fetched."""
    planned = []
    for renamed in (False, True):
        model, (_, loss), x = model_of(name, label="label")
        model.AddGradientOperators([loss])
        keep = {str(gradient) for gradient in model.param_to_grad.values()}
        build_sgd(model, 0.01, momentum=0.9)
        net = model.net.Proto()
        if renamed:
            net, names = share_gradients(net, [""], gradient_blobs(net.op), keep=keep)
            assert names
        workspace = Workspace(threads=2, seed=1)
        workspace.feed("data", x)
        workspace.feed("label", np.int32([1, 5]))
        workspace.run_net_once(model.param_init_net)
        made = workspace.create_net(net, observable="all")
        planned.append((planned_memory(workspace, made), workspace.net(made).plan_ahead()))
        workspace.run_net(made)
    (plain, (plan,)), (shared, (plan_shared,)) = planned
    steps, steps_shared = (
        sum(step.kind is not StepKind.RECOMPUTE for step in each.steps) for each in (plan, plan_shared)
    )
    assert shared.total <= plain.total
    assert steps_shared <= steps


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "name, observable",
    [("resnet8", "all")]
    + [
        pytest.param(*name.values, "activations", marks=name.marks)
        for name in nets("lenet", "small_inception_bn", "resnet8", "vgg11", "inception_bn", "resnet18")
    ],
)
def test_activations_that_share_names_make_no_plan_larger(name, observable):
    """What is not needed any more is not kept for the sake of the name that it shares."""
    planned = []
    for activations in (None, False, True):
        net, model, x = with_shared_names(name, activations)
        workspace, made = created(net, model, x, observable=observable)
        planned.append(planned_memory(workspace, made).total)
    assert planned[1] <= planned[0] and planned[2] <= planned[0]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["lenet", "small_inception_bn", "resnet8"])
def test_blobs_that_share_names_have_their_last_values(name):
    """Also those that a plan computes when they are fetched, and after their inputs have been overwritten."""
    net, model, x = with_shared_names(name, True)
    found, later = [], []
    for options in ({"observable": "all", "without": single("reuse", "unread_outputs", "cheap_recomputation")}, {}):
        workspace, made = created(net, model, x, **options)
        workspace.run_net(made)
        blobs = [blob for blob in workspace.blobs() if blob != "data" and workspace.get(blob).spec is not None]
        later.append([blob for blob in blobs if workspace.get(blob).lazy is not None])
        values = {blob: workspace.fetch(blob) for blob in blobs[::2]}
        workspace.feed("data", 2 * x)
        values.update((blob, workspace.fetch(blob)) for blob in blobs[1::2])
        found.append(values)
    assert any(blob.endswith("_shared") for blob in later[1]) or name == "lenet"
    for blob, value in found[1].items():
        if isinstance(value, np.ndarray):
            want = found[0][blob]
            assert np.abs(value - want).max() <= 1e-3 * np.abs(want).max(), blob


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", nets())
def test_where_outputs_are_observable_renaming_changes_no_plan(name):
    """Values that nobody can fetch are placed by their lifetimes, whatever their names are."""
    planned = []
    for activations in (None, False, True):
        net, model, x = with_shared_names(name, activations)
        workspace, made = created(net, model, x, observable="outputs")
        (plan,) = workspace.net(made).plan_ahead()
        planned.append((plan.memory.nbytes + plan.memory.alone, [step.prepared.name for step in plan.steps]))
    assert planned[0] == planned[1] == planned[2]


def with_shared_names(name, activations):
    """Return a training net in which gradients share names, and activations too if asked to; None: neither."""
    model, (_, loss), x = model_of(name, label="label")
    model.AddGradientOperators([loss])
    keep = {str(loss), *map(str, model.param_to_grad.values())}
    build_sgd(model, 0.01, momentum=0.9)
    net = model.net.Proto()
    if activations is not None:
        net, names = share_gradients(net, [""], gradient_blobs(net.op), keep=keep, activations=activations)
        assert names
    return net, model, x


def created(net, model, x, **options):
    workspace = Workspace(threads=1, seed=1)
    workspace.feed("data", x)
    workspace.feed("label", np.int32([1, 5]))
    workspace.run_net_once(model.param_init_net)
    return workspace, workspace.create_net(net, **options)
