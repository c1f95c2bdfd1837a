"""The order of images in a predictor: chosen by the sum of measured times, the same results either way."""

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.exchange import Predictor
from netbuilder.model import ModelHelper
from netbuilder.passes import extract_predictor
from netbuilder.proto import NetDef
from netbuilder.runtime import Workspace
from netbuilder.zoo import create_resnet_cifar
from zoo_models import create_small_inception

if not onednn.available():
    pytest.skip("needs oneDNN", allow_module_level=True)

from netbuilder.engines.onednn import image_order
from netbuilder.ops.core.contexts import ANY_ORDER, CHANNELS_LAST

IMAGES = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)


def predictor(create, *args, **options):
    model = ModelHelper("net")
    softmax = create(model, "data", 3, 10, *args, is_test=True)
    net, parameters = extract_predictor(model.net, ["data"], [softmax])
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    values = {name: workspace.fetch(name) for name in parameters}
    return Predictor(NetDef(), net, inputs=["data"], parameters=values, **options), values


@pytest.fixture
def timed(monkeypatch):
    """Make one order the faster one; return the requested keys."""
    monkeypatch.setenv("NETBUILDER_MEASURE", "1")
    monkeypatch.setattr(image_order, "WORTH_MEASURING", 1)

    def prefer(order):
        keys = []

        def seconds(key, make, n, *, flops, differs):
            assert make() is not None
            keys.append(key)
            return 0.97 if key.endswith(f"images in {order}") else 1.0

        monkeypatch.setattr(image_order, "seconds", seconds)
        return keys

    return prefer


def test_the_order_that_is_faster_in_all_is_taken(timed):
    found = {}
    for order in (ANY_ORDER, CHANNELS_LAST):
        keys = timed(order)
        workspace = Workspace()
        made, _ = predictor(create_resnet_cifar, 8, workspace=workspace)
        (found[order],) = made.run(data=IMAGES).values()
        assert keys
        (net,) = map(workspace.net, workspace.nets())
        names = [step.prepared.name for plan in net.plans for step in plan.steps]
        convolutions = [name for name in names if "convolution_forward" in name]
        assert convolutions
        if order == CHANNELS_LAST:
            assert sum("brg" in name for name in convolutions) > len(convolutions) // 2
    np.testing.assert_allclose(found[CHANNELS_LAST], found[ANY_ORDER], rtol=1e-4, atol=1e-6)


def test_nets_that_join_channels_keep_blocks(timed):
    keys = timed(CHANNELS_LAST)
    made, _ = predictor(create_small_inception, workspace=Workspace())
    made.run(data=IMAGES)
    assert keys == []


def test_convolutions_are_measured_with_images_as_they_get_them(monkeypatch):
    monkeypatch.setenv("NETBUILDER_MEASURE", "1")
    monkeypatch.setattr(image_order, "WORTH_MEASURING", 1)
    read = {}

    def seconds(key, make, n, *, flops, differs):
        read[key] = make().inputs[0].layout
        return 1.0

    monkeypatch.setattr(image_order, "seconds", seconds)
    workspace = Workspace()
    made, _ = predictor(create_resnet_cifar, 8, workspace=workspace)
    made.run(data=IMAGES)
    (net,) = map(workspace.net, workspace.nets())
    steps = [step for plan in net.plans for step in plan.steps]
    convolutions = [step.prepared.inputs[0] for step in steps if "convolution" in step.prepared.name]
    got = {spec.layout for spec in convolutions}
    assert got >= {layout for key, layout in read.items() if ANY_ORDER in key}


def test_nearly_all_of_the_work_is_measured_the_largest_first(monkeypatch):
    monkeypatch.setenv("NETBUILDER_MEASURE", "1")
    measured = []

    def seconds(key, make, n, *, flops, differs):
        measured.append(flops)
        return 1.0

    monkeypatch.setattr(image_order, "seconds", seconds)
    of_net = []
    best = image_order.best_image_order
    monkeypatch.setattr(image_order, "WORTH_MEASURING", 1)
    monkeypatch.setattr(
        image_order, "best_image_order", lambda convs, *rest: (of_net.append(convs), best(convs, *rest))[1]
    )
    made, _ = predictor(create_resnet_cifar, 14, workspace=Workspace())
    made.run(data=IMAGES)
    work = sorted((2 * op.products(*specs[:2]) for op, specs in of_net[0]), reverse=True)
    count = len(measured) // 2
    assert measured[::2] == measured[1::2] == work[:count]
    assert sum(work[: count - 1]) <= 0.9 * sum(work) < sum(work[:count]) < sum(work)


def test_bfloat16(timed):
    timed(CHANNELS_LAST)
    made, values = predictor(create_resnet_cifar, 8)
    (want,) = made.run(data=IMAGES).values()
    workspace = Workspace()
    net = made.net
    net.name = "rounded"
    for name in {blob for op in net.op for blob in op.input}.difference(values):
        if made.workspace.spec(name) is not None and name != "data":
            workspace.feed(name, made.workspace.fetch(name))
    for name, value in values.items():
        workspace.feed(name, value)
    workspace.feed("data", IMAGES)
    read = {blob for op in net.op for blob in op.input} - {blob for op in net.op for blob in op.output} - {"data"}
    workspace.create_net(net, dtype="bfloat16", observable="outputs", constants=read)
    workspace.run_net("rounded")
    np.testing.assert_allclose(workspace.fetch(net.external_output[0]), want, atol=0.05)


@pytest.mark.parametrize("off", ["NETBUILDER_MEASURE", "NETBUILDER_WITHOUT"])
def test_nothing_is_measured_where_that_is_turned_off(off, timed, monkeypatch):
    keys = timed(CHANNELS_LAST)
    monkeypatch.setenv(off, "0" if off == "NETBUILDER_MEASURE" else "measured")
    predictor(create_resnet_cifar, 8)[0].run(data=IMAGES)
    assert keys == []


def test_training_nets_and_small_ones_are_left_alone(timed, monkeypatch):
    keys = timed(CHANNELS_LAST)
    model = ModelHelper("trained")
    create_resnet_cifar(model, "data", 3, 10, 8, label="label")
    workspace = Workspace()
    workspace.feed("data", IMAGES)
    workspace.feed("label", np.array([1, 2], np.int32))
    workspace.run_net_once(model.param_init_net)
    workspace.run_net_once(model.net)
    assert keys == []
    monkeypatch.setattr(image_order, "WORTH_MEASURING", 10**15)
    predictor(create_resnet_cifar, 8)[0].run(data=IMAGES)
    assert keys == []
