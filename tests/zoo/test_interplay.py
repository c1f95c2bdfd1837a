"""Training nets of the zoo while others look on: blobs fetched, other shapes, test nets, workspaces side by side."""

import threading

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.model import ModelHelper
from netbuilder.optimizers import build_sgd
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.optimizations import OPTIMIZATIONS
from netbuilder.runtime.values.blob import Blob
from netbuilder.zoo import create_alexnet, create_lenet, create_resnet_cifar
from waiting import HANG

CLASSES = 7
NETS = {
    "lenet": (create_lenet, (1, CLASSES), {}, (1, 28, 28)),
    "alexnet": (create_alexnet, (3, CLASSES), {"hidden": 16, "image_size": 67}, (3, 67, 67)),
    "resnet8": (create_resnet_cifar, (3, CLASSES, 8), {}, (3, 16, 16)),
}
EXACT = tuple(each for each in OPTIMIZATIONS.values() if each.bound == 0)
BOTH_WAYS = pytest.mark.parametrize("without", [(), EXACT], ids=["on", "off"])

needs_onednn = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")


def training_of(name):
    create, args, options, _ = NETS[name]
    model = ModelHelper(name, arg_scope={"order": "NCHW"})
    _, loss = create(model, "data", *args, label="label", **options)
    model.AddGradientOperators([loss])
    build_sgd(model, 0.01, momentum=0.9)
    return model


def batch_of(name, step, samples=2):
    rng = np.random.default_rng(step)
    images = rng.normal(size=(samples, *NETS[name][3])).astype(np.float32)
    return {"data": images, "label": rng.integers(0, CLASSES, samples).astype(np.int32)}


def feed(workspace, values):
    for name, value in values.items():
        workspace.feed(name, value)


def started(model, name, **options):
    """A workspace with a net in it, made from its first batch."""
    workspace = Workspace(threads=1, seed=1)
    feed(workspace, batch_of(name, 0))
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net, **options)
    return workspace


def step(workspace, model, name, number, samples=2):
    feed(workspace, batch_of(name, number, samples))
    workspace.run_net(model.net)


def parameters_of(workspace, model):
    return {str(p): workspace.fetch(p) for p in model.params}


def assert_same(got, want):
    assert got.keys() == want.keys()
    for blob, value in want.items():
        np.testing.assert_array_equal(got[blob], value, err_msg=blob)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet", "resnet8"])
def test_every_blob_fetched_in_turn(name):
    """A blob after each step: the same as in a net of all steps, and without effect on later steps."""
    model = training_of(name)
    ways = [started(model, name, observable="all", **options) for options in ({}, {"without": EXACT})]
    quiet = started(model, name)
    blobs = sorted({blob for op in model.net.Proto().op for blob in op.output})
    for number, blob in enumerate(blobs):
        for workspace in (*ways, quiet):
            step(workspace, model, name, number)
        got, want = (workspace.fetch(blob) for workspace in ways)
        np.testing.assert_array_equal(got, want, err_msg=blob)
        np.testing.assert_array_equal(ways[0].fetch(blob), got, err_msg=f"{blob}, fetched again")
    for workspace in ways:
        assert_same(parameters_of(workspace, model), parameters_of(quiet, model))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("observable", [None, "outputs"])
@pytest.mark.parametrize("name", ["lenet", "resnet8"])
def test_other_shapes_on_the_way(name, observable):
    """Batches of several sizes: what a workspace with plans of older shapes gives is what a fresh one gives."""
    model, sizes = training_of(name), (2, 3, 2, 1)
    ways = [started(model, name, observable=observable, without=without) for without in ((), EXACT)]
    for number, samples in enumerate(sizes):
        before = {blob: ways[0].fetch(blob) for blob in ways[0].blobs() if _kept(ways[0], blob)}
        fresh = started(model, name, observable=observable)
        feed(fresh, before)
        for workspace in (*ways, fresh):
            step(workspace, model, name, number, samples)
        want = parameters_of(fresh, model)
        for workspace in ways:
            assert_same(parameters_of(workspace, model), want)


def _kept(workspace, blob):
    held = workspace.get(blob)
    return not held.is_empty and held.spec is not None and blob not in ("data", "label")


def scoring_of(name):
    """The net in test mode over the same parameters, and its scores."""
    create, args, options, _ = NETS[name]
    model = ModelHelper(f"{name}_test", arg_scope={"order": "NCHW"}, init_params=False)
    return model, str(create(model, "data", *args, no_loss=True, is_test=True, **options))


def moved(workspace, net):
    """The blobs that a run of a net copies into another order, with how often."""
    (plan,) = workspace.net(net).plans
    return sorted(step.inputs[0].name for step in plan.steps if step.moves)


@pytest.mark.one_in(4)
@BOTH_WAYS
@pytest.mark.parametrize("name", ["alexnet", "resnet8"])
def test_a_test_net_between_steps(name, without, monkeypatch):
    model = training_of(name)
    test, scores = scoring_of(name)
    alone, both = (started(model, name, without=without) for _ in range(2))
    both.create_net(test.net, observable=[scores], without=without)
    relayouts = []
    relayout = Blob.relayout
    monkeypatch.setattr(Blob, "relayout", lambda blob, *a, **b: [relayouts.append(blob.name), relayout(blob, *a, **b)])
    plans = []
    for number in range(5):
        for workspace in (alone, both):
            step(workspace, model, name, number)
        both.run_net(test.net)
        plans.append([id(plan) for net in (model, test) for plan in both.net(net.net).plans])
        reference = Workspace(threads=1, engines=())
        feed(reference, {"data": both.fetch("data"), **{blob: both.fetch(blob) for blob in _read(test)}})
        reference.run_net_once(test.net)
        np.testing.assert_allclose(both.fetch(scores), reference.fetch(scores), rtol=1e-3, atol=1e-5)
    assert_same(parameters_of(both, model), parameters_of(alone, model))
    assert len(relayouts) == 2 * len(set(relayouts)), "a parameter went from one order to another and back"
    assert plans[0] == plans[-1], "a net was compiled again"
    assert moved(both, model.net) == moved(alone, model.net)
    if onednn.available() and not without:
        assert relayouts
        owner = both.net(model.net)
        assert all(both.get(blob).owner is owner for blob in relayouts)


def _read(model):
    made = {blob for op in model.net.Proto().op for blob in op.output}
    return {blob for op in model.net.Proto().op for blob in op.input if blob not in made} - {"data"}


@needs_onednn
def test_a_test_net_first():
    """After a run of the test net, the training net reorders the parameters to its own layout, once."""
    model = training_of("resnet8")
    test, scores = scoring_of("resnet8")
    alone, both = (started(model, "resnet8") for _ in range(2))
    both.create_net(test.net, observable=[scores])
    both.run_net(test.net)
    for number in range(3):
        for workspace in (alone, both):
            step(workspace, model, "resnet8", number)
        both.run_net(test.net)
    assert_same(parameters_of(both, model), parameters_of(alone, model))
    for p in map(str, model.params):
        assert both.get(p).spec == alone.get(p).spec, p


@pytest.mark.one_in(2)
@BOTH_WAYS
def test_two_workspaces_in_two_threads(without):
    """Different nets compile and train side by side, in several rounds of several shapes."""
    names = ("alexnet", "resnet8")
    models = {name: training_of(name) for name in names}

    def trained(name, meet=lambda: None):
        workspace = started(models[name], name, without=without)
        for number in range(4):
            meet()
            step(workspace, models[name], name, number, samples=2 + number % 2)
        return parameters_of(workspace, models[name])

    want = {name: trained(name) for name in names}
    barrier = threading.Barrier(2, timeout=HANG)
    got, failures = {}, []

    def work(name):
        try:
            got[name] = trained(name, barrier.wait)
        except BaseException as error:
            barrier.abort()
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    for name in names:
        assert_same(got[name], want[name])
