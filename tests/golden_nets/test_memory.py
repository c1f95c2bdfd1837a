"""Memory of golden nets: never more bytes than Caffe2's shared names take, and equal to the bit under budgets."""

import re
from collections import defaultdict

import numpy as np
import pytest

import golden_data
from golden_nets.test_trajectories import RUNNABLE, stored
from golden_nets.test_without_numbers import SMALL, on_small_images
from netbuilder.caffe2.python import core, memonger
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from netbuilder.runtime.profile.memory import planned_memory
from switches import single

SHARED = [
    "convnet_share_grad",
    "convnet_share_activations",
    pytest.param("resnet50_1_recycle_grad", marks=pytest.mark.slow),
    "resnet50_1_recycle_activations",
]
# As dp_convnet_2, but for how its net was made.
LIKE_OTHERS = {"dp_convnet_2_memory", "dp_convnet_2_shared_model", "dp_convnet_2_combine_bn"}
ON_CPUS = [name for name in RUNNABLE if not name.startswith("gpu_") and name != "dp_convnet_4"]  # which takes long


def fed_workspace(golden):
    """Return a workspace with the parameters and the first batch of a golden net."""
    workspace = Workspace(threads=1, seed=1)
    if golden.runnable:
        given = {**golden.inputs(1), **golden.start_values()}
    else:
        images = np.random.default_rng(3).normal(size=(2, 3, SMALL, SMALL)).astype(np.float32)
        given = {"cpu_0/data": images, "cpu_0/label": np.int32([1, 5])}
    init = stored(golden)[1] if golden.runnable else on_small_images(golden.init)
    workspace.run_net_once(init)
    for name, value in given.items():
        workspace.feed(name, value)
    return workspace


def bytes_of_names(net, workspace):
    """Return the bytes of the blobs that a net writes, if each name has one buffer, as in Caffe2."""
    made = workspace.create_net(net, observable="all", without=["all"], overwrite=True)
    nbytes = defaultdict(int)
    for plan in workspace.net(made).plan_ahead():
        for value in (value for step in plan.steps for value in step.outputs if value is not None):
            nbytes[value.name] = max(nbytes[value.name], value.spec.plain.nbytes)
    assert {name for op in net.op for name in op.output} <= nbytes.keys()
    return sum(nbytes.values())


def padding(plans):
    """Return the bytes of padding in layouts, if each name has one buffer."""
    nbytes = defaultdict(int)
    for value in (value for plan in plans for step in plan.steps for value in step.outputs if value is not None):
        nbytes[value.name] = max(nbytes[value.name], value.spec.nbytes - value.spec.plain.nbytes)
    return sum(nbytes.values())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", SHARED)
def test_shared_names_take_no_more_than_caffe2s(name):
    golden = golden_data.net(name)
    before, after = golden.protos["net_before"], golden.protos["net"]
    made = [op.output[0] for op in before.op if op.type == "ConstantFill" and op.output[0].endswith("_grad")]
    ours = memonger.share_grad_blobs(
        core.Net(before),
        [blob.removesuffix("_grad").removesuffix("_autogen") for blob in made],
        list(golden.meta["param_to_grad"].values()),
        "cpu_0/" if name.startswith("resnet") else "",
        share_activations=name.endswith("activations"),
    )
    nets = [before, after, ours] if golden.runnable else map(on_small_images, (before, after, ours))
    workspace = fed_workspace(golden)
    without, caffe2s, shared = (bytes_of_names(net, workspace) for net in nets)
    assert shared <= caffe2s < without


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", SHARED)
def test_plans_take_less_than_caffe2s_names(name):
    """Where outputs are observable, whatever the names are. Layouts that pad the few channels take more either way."""
    golden = golden_data.net(name)
    before, after = golden.protos["net_before"], golden.protos["net"]
    nets = [before, after] if golden.runnable else [*map(on_small_images, (before, after))]
    workspace = fed_workspace(golden)
    most = bytes_of_names(nets[1], workspace)
    for net in nets:
        made = workspace.create_net(net, observable="outputs", overwrite=True)
        memory = planned_memory(workspace, made)
        assert memory.arena < most + padding(workspace.net(made).plan_ahead())


def states(golden, **options):
    """Return what a golden net has trained after its iterations; the stored numbers judge it elsewhere."""
    main, _ = stored(golden)
    workspace = fed_workspace(golden)
    made = workspace.create_net(main, observable="outputs", **options)
    for iteration in golden.iterations():
        for name, value in golden.inputs(iteration).items():
            workspace.feed(name, value)
        workspace.run_net(made)
    written = {name for op in main.op for name in op.output}
    kept = [name for name in golden.start_values() if name in written]
    return {name: workspace.fetch(name) for name in kept}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LIKE_OTHERS)) for name in ON_CPUS]
)
@pytest.mark.one_in(3)
def test_under_budgets(name):
    """The smallest one, and one at random, are equal to the bit to none; the smallest is what the error says."""
    golden = golden_data.net(name)
    want = states(golden, without=single("cheap_recomputation"))
    assert want
    with pytest.raises(NetError, match="is too small") as raised:
        states(golden, memory_budget=1)
    found = re.findall(r"(?:at least |fetched \()([\d,]+)", str(raised.value))
    least, most = (int(number.replace(",", "")) for number in found)
    rng = np.random.default_rng(sum(map(ord, name)))
    for budget in (least, rng.integers(least, most, endpoint=True)):
        got = states(golden, memory_budget=int(budget))
        assert [blob for blob in want if not np.array_equal(got[blob], want[blob], equal_nan=True)] == [], budget
