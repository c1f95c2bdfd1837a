"""Which of cuDNN's graph and our pair of kernels computes the gradient of SpatialBN and Relu: measured, and kept."""

import numpy as np
import pytest

from checks import interpret
from kernel_cases import normalization, random
from netbuilder.engines.choices import CACHE_VARIABLE, SWITCH_VARIABLE
from netbuilder.engines.cudnn import compiled, plans
from netbuilder.proto import PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_argument, make_device_option, make_op
from netbuilder.runtime import Workspace
from on_gpu import with_cudnn

pytestmark = pytest.mark.emulated
GPU = make_device_option(PROTO_CUDA, 0)
OWN = ["nb_relu_channel_backprop_stats", "nb_normalize_part_gradient"]
WANTED = ["y", "dx", "ds", "db"]
TOLERANCES = {"float32": 2e-5, "bfloat16": 3e-2, "float16": 4e-3}


@pytest.fixture
def times(monkeypatch, tmp_path):
    """The seconds of our kernels; each graph of cuDNN takes 2. What was measured is kept in a folder of its own."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(SWITCH_VARIABLE, raising=False)
    monkeypatch.setattr(plans, "machine", lambda: f"a GPU of {tmp_path}; cuDNN 9.28.0")
    found = {"own": 1.0, "measured": 0}
    return found


def operators(form, argument="exhaustive_search", search=1):
    """SpatialBN, Relu and their gradients; those of the end of a residual block have a summand, and two readers."""
    more = {"exhaustive_search": search} if argument == "exhaustive_search" else {argument: search}
    names = ["y", "rm", "rv", "mean", "inverse"]
    ops = [make_op("SpatialBN", ["x", "s", "b", "rm", "rv"], names), make_op("Relu", ["y"], ["y"])]
    gradient = "dy"
    if form == "of a sum":
        ops.append(make_op("Sum", ["dy", "dw"], ["dt"]))
        gradient = "dt"
    ops.append(make_op("ReluGradient", ["y", gradient], ["dr"]))
    ops.append(make_op("SpatialBNGradient", ["x", "s", "dr", "mean", "inverse"], ["dx", "ds", "db"], **more))
    if form != "alone":
        ops.append(make_op("Scale", ["dr"], ["dz"], scale=2.0))
    return ops


def run(form, times, monkeypatch, *, precision="float32", without=None, **options):
    """Run the operators, check their results, and return whether our kernels ran."""
    ops = operators(form, **options)
    shape = (2, 8, 4, 4)
    arrays = {**normalization(shape, 8), "dy": random(*shape, seed=9), "dw": random(*shape, seed=10)}
    wanted = [*WANTED, *(["dz"] if form != "alone" else [])]
    net = NetDef(name="net")
    net.op.extend(ops)
    net.device_option.CopyFrom(GPU)
    net.arg.extend([make_argument("activation_dtype", precision)])
    workspace = Workspace(engines=("CUDNN", "CUDA"), without=without)
    with with_cudnn() as (machine, _):

        def seconds(call):
            before = len(machine.launches)
            call()
            times["measured"] += 1
            names = [launch.name for launch in machine.launches[before:]]
            return times["own"] if any(name.startswith(OWN[0]) for name in names) else 2.0

        monkeypatch.setattr(plans, "seconds", seconds)
        for name, array in arrays.items():
            workspace.feed(name, array, GPU)
        workspace.create_net(net, observable=wanted)
        workspace.net("net").plan_ahead()
        before = len(machine.launches)
        workspace.run_net("net")
        launched = [launch.name for launch in machine.launches[before:]]
        got = {name: workspace.fetch(name) for name in wanted}
    exact = interpret(ops, {name: array.astype(np.float64) for name, array in arrays.items()})
    for name in wanted:
        bound = TOLERANCES[precision] * max(float(np.abs(exact[name]).max()), 1.0)
        np.testing.assert_allclose(got[name], exact[name], rtol=0, atol=bound, err_msg=name)
    return any(name.startswith(OWN[0]) for name in launched)


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("form", ["alone", "read by others", "of a sum"])
def test_the_faster_one_runs(form, precision, times, monkeypatch):
    assert run(form, times, monkeypatch, precision=precision)


def test_cudnn_runs_where_it_is_faster(times, monkeypatch):
    times["own"] = 3.0
    assert not run("alone", times, monkeypatch)
    assert times["measured"] > 0


def test_the_choice_is_kept(times, monkeypatch):
    assert run("alone", times, monkeypatch)
    times.update(own=3.0, measured=0)
    compiled.release_graphs()
    assert run("alone", times, monkeypatch)
    assert times["measured"] == 0


def test_the_argument_of_helpers(times, monkeypatch):
    assert run("alone", times, monkeypatch, argument="cudnn_exhaustive_search")


@pytest.mark.parametrize("how", ["not asked for", "no choice is measured", "switched off"])
def test_nothing_is_measured(how, times, monkeypatch):
    if how == "switched off":
        monkeypatch.setenv(SWITCH_VARIABLE, "0")
    without = ["measured"] if how == "no choice is measured" else None
    assert not run("alone", times, monkeypatch, without=without, search=int(how != "not asked for"))
    assert times["measured"] == 0


def test_kernels_that_cannot_be_measured_are_not_taken(times, monkeypatch):
    """Where memory for the measurement is missing, cuDNN's graph runs, and nothing is kept."""
    with monkeypatch.context() as patch:
        patch.setattr("netbuilder.engines.cudnn.faster._zeros", _no_memory)
        assert not run("alone", times, patch)
    assert run("alone", times, monkeypatch)


def _no_memory(*_):
    raise MemoryError
