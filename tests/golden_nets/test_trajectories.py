"""Golden nets, loaded and rebuilt, give the numbers that Caffe2 computed, iteration by iteration."""

import numpy as np
import pytest

import golden_data
from golden_builders import rebuild
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.optimizers import build_sgd, reset_optimizer_instance_count
from netbuilder.runtime import Workspace
from structure import differences

pytestmark = pytest.mark.usefixtures("updates_as_in_caffe2")

ENGINES = [pytest.param(None, id="engines"), pytest.param((), id="numpy")]
RUNNABLE = [name for name in golden_data.nets() if golden_data.net(name).runnable]
ON_ONE_DEVICE = [name for name in RUNNABLE if not name.startswith(("dp_", "gpu_"))]


def wrong_blobs(golden, main, init, engines=None):
    """Run nets as golden's README says; return what differs from the stored numbers, by iteration and blob."""
    workspace = Workspace(engines=engines, threads=1)
    for name, value in golden.inputs(1).items():
        workspace.feed(name, value)
    workspace.run_net_once(init)
    for name, value in golden.start_values().items():
        workspace.feed(name, value)
    workspace.create_net(main)
    wrong = {}
    for iteration in golden.iterations():
        for name, value in golden.inputs(iteration).items():
            workspace.feed(name, value)
        workspace.run_net(main.name)
        for name, value in golden.expected(iteration).items():
            said = golden_data.mismatch(workspace.fetch(name), value, "close", golden.rtol, golden.atol)
            if said:
                wrong[iteration, name] = said
    return wrong


def stored(golden):
    """Return the nets of a golden net that run on a CPU."""
    on_cpu = "_on_cpu" if "net_on_cpu" in golden.protos else ""
    return golden.protos["net" + on_cpu], golden.protos["param_init_net" + on_cpu]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("engines", ENGINES)
@pytest.mark.parametrize("name", RUNNABLE)
def test_loaded(name, engines):
    golden = golden_data.net(name)
    assert wrong_blobs(golden, *stored(golden), engines) == {}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ON_ONE_DEVICE)
def test_rebuilt(name):
    golden = golden_data.net(name)
    model = rebuild(golden)
    assert wrong_blobs(golden, model.net.Proto(), model.param_init_net.Proto()) == {}


INFERENCE = {
    "before": "net_before",
    "inference_for_dag": "net_after_inference_for_dag",
    "interference": "net_after_interference",
    "inference_fast": "net_after_inference_fast",
    "release": "net_after_release",
}


@pytest.mark.parametrize("engines", ENGINES)
@pytest.mark.parametrize("which", INFERENCE)
def test_inference_with_planned_memory(which, engines):
    """Nets that Caffe2's memory planning made: blobs share buffers, the result among them, or are freed."""
    golden = golden_data.net("memonger_inference")
    net = golden.protos[INFERENCE[which]]
    workspace = Workspace(engines=engines, threads=1)
    for arrays in (golden.arrays["init"], golden.arrays["inputs"]):
        for name, value in arrays.items():
            workspace.feed(name, value)
    workspace.run_net_once(net)
    result = next(op.output[0] for op in net.op if op.type == "Softmax")
    want = golden.arrays["expected"][which + "/softmax"]
    assert golden_data.mismatch(workspace.fetch(result), want, "close", 1e-5, 1e-6) is None


POLICIES = golden_data.net("lr_policies").meta["policies"]


def build_policy(entry):
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper(entry["tag"])
    model.AddParameter(model.param_init_net.ConstantFill([], "w", shape=[2], value=1.0))
    loss = model.net.SumElements("w", "loss")
    model.AddGradientOperators([loss])
    build_sgd(model, entry["base_learning_rate"], policy=entry["policy"], **entry["args"])
    return model


@pytest.mark.one_in(3)
@pytest.mark.parametrize("entry", POLICIES, ids=lambda entry: entry["tag"])
def test_learning_rate_policy(entry):
    golden, tag = golden_data.net("lr_policies"), entry["tag"]
    model = build_policy(entry)
    main, init = golden.protos[tag + ".net"], golden.protos[tag + ".init"]
    assert differences(model.net.Proto(), main) == []
    assert differences(model.param_init_net.Proto(), init) == []
    workspace = Workspace(threads=1)
    workspace.run_net_once(init)
    workspace.create_net(main)
    got = {"lr": [], "w": [], "iteration": []}
    for _ in range(30):
        workspace.run_net(main.name)
        got["lr"].append(workspace.fetch(entry["lr_blob"]))
        got["w"].append(workspace.fetch("w"))
        got["iteration"].append(workspace.fetch("optimizer_iteration").reshape(()))
    for what, values in got.items():
        want = golden.arrays["expected"][f"{tag}/{what}"]
        assert golden_data.mismatch(np.stack(values), want, "close", 2e-6, 1e-7) is None, what
