"""Conv that computes the sums for the SpatialBN after it, against float64; which of the two forms runs is measured."""

from typing import NamedTuple

import numpy as np
import pytest

from checks import interpret
from kernel_cases import normalization, random
from netbuilder.engines.choices import CACHE_VARIABLE, SWITCH_VARIABLE
from netbuilder.engines.cudnn import plans
from netbuilder.proto import PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_argument, make_device_option, make_op
from netbuilder.runtime import Workspace
from on_gpu import with_cudnn

pytestmark = pytest.mark.emulated
GPU = make_device_option(PROTO_CUDA, 0)
OWN = "nb_normalize_by_sums"
SUMS = ("conv_fprop", "sub", "reduction", "mul", "reduction")
SUMMED = "cudnn conv_dgrad "  # followed by the other operations of the graph
TOLERANCES = {"float32": 4e-3, "bfloat16": 3e-2, "float16": 4e-3}  # of factors in TF32, in float32


@pytest.fixture
def times(monkeypatch, tmp_path):
    """The seconds of a convolution with sums and our normalization; other calls take 2. Choices have their own file."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(SWITCH_VARIABLE, raising=False)
    monkeypatch.setattr(plans, "machine", lambda: f"a GPU of {tmp_path}; cuDNN 9.28.0")
    return {"fused": 1.0}


def operators(form, *, bias=True, search=1, between=False, group=1):
    """Conv and SpatialBN with what follows: "", "sum", "relu" or "sum relu"; the Relu is in place."""
    inputs = ["x", "w", *(["cb"] if bias else [])]
    ops = [make_op("Conv", inputs, ["a"], kernel=3, pad=1, group=group, exhaustive_search=search)]
    if between:
        ops.append(make_op("Tanh", ["a"], ["read"]))
    ops.append(make_op("SpatialBN", ["a", "s", "b", "rm", "rv"], ["y", "rm", "rv", "mean", "inverse"]))
    last = "y"
    if "sum" in form:
        last = "t"
        ops.append(make_op("Sum", ["y", "other"], ["t"]))
    if "relu" in form:
        ops.append(make_op("Relu", [last], [last]))
    return ops, [*(["read"] if between else []), "a", last, "rm", "rv", "mean", "inverse"]


def arrays(*, offset=0.0, group=1):
    found = {**normalization((3, 8, 6, 5), 8), "w": random(8, 8 // group, 3, 3, seed=4) / 8}
    found["other"] = random(3, 8, 6, 5, seed=9)
    found["v"] = np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1)
    found["cb"] = random(8, seed=5) + np.float32(offset)
    return found


def gradients(form, *, bias=True, search=1, group=1):
    """SpatialBN and Relu, and the gradients of these and of a Conv after them, in the forms of a residual net."""
    ops = [make_op("Conv", ["x", "v"], ["a"], kernel=1)]  # so X of the SpatialBN is stored as products are
    ops.append(make_op("SpatialBN", ["a", "s", "b", "rm", "rv"], ["y", "rm", "rv", "mean", "inverse"]))
    ops.append(make_op("Relu", ["y"], ["y"]))
    made = ["dw", *(["db"] if bias else []), "da"]
    given = {"kernel": 3, "pad": 1, "group": group, "exhaustive_search": search, **({} if bias else {"no_bias": 1})}
    ops.append(make_op("ConvGradient", ["y", "w", "other"], made, **given))
    last = "da"
    if form.startswith("sum"):
        last = "total"
        ops.append(make_op("Sum", ["da", "a"] if form == "sum" else ["a", "da"], [last]))
    dz = "da" if form == "fetched" else "dz"
    ops.append(make_op("ReluGradient", ["y", last], [dz]))
    ops.append(make_op("SpatialBNGradient", ["a", "s", dz, "mean", "inverse"], ["dx", "ds", "dt"]))
    if form not in ("alone", "fetched"):
        ops.append(make_op("Scale", ["dz"], ["read"], scale=2.0))
    more = {"alone": [], "fetched": ["da"]}.get(form, ["read"])
    return ops, [*more, *made[:-1], "dx", "ds", "dt"]


def run(form, times, monkeypatch, *, make=operators, precision="float32", values=None, tf32=True, **options):
    """Run the operators, compare their results with float64, and tell which kernels ran."""
    ops, wanted = make(form, **options)
    values = values or arrays()
    net = NetDef(name="net")
    net.op.extend(ops)
    net.device_option.CopyFrom(GPU)
    net.arg.extend([make_argument("activation_dtype", precision)])
    workspace = Workspace(engines=("CUDNN", "CUDA"))
    with with_cudnn() as (machine, cudnn):

        def seconds(call):
            before = len(machine.launches)
            call()
            names = [launch.name for launch in machine.launches[before:]]
            return times["fused"] if any(name.startswith((OWN, SUMMED)) for name in names) else 2.0

        monkeypatch.setattr(plans, "seconds", seconds)
        for name, array in values.items():
            workspace.feed(name, array, GPU)
        workspace.create_net(net, observable=wanted, allow_tf32=tf32)
        workspace.net("net").plan_ahead()
        before, graphs = len(machine.launches), len(cudnn.ran_graphs)
        workspace.run_net("net")
        launched = any(launch.name.startswith(OWN) for launch in machine.launches[before:])
        ran = cudnn.ran_graphs[graphs:]
        asked = [tuple(node.kind for node in graph.nodes) for graph in cudnn.graphs]
        got = {name: workspace.fetch(name) for name in wanted}
    exact = interpret(ops, {name: array.astype(np.float64) for name, array in values.items()})
    for name in wanted:
        bound = TOLERANCES[precision] * max(float(np.abs(exact[name]).max()), 1.0)
        np.testing.assert_allclose(got[name], exact[name], rtol=0, atol=bound, err_msg=name)
    return Ran(launched, ran, asked)


class Ran(NamedTuple):
    """Whether our normalization ran, the operations of the graphs that did, and of those that cuDNN was asked for."""

    launched: bool
    graphs: list[tuple[str, ...]]
    asked: list[tuple[str, ...]]


def fused(result):
    found = any(kinds[-4:] == SUMS[-4:] for kinds in result.graphs)
    return result.launched and found and ("batchnorm",) not in result.graphs


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("form", ["", "relu", "sum", "sum relu"])
def test_the_convolution_computes_the_sums_where_that_is_faster(form, precision, times, monkeypatch):
    assert fused(run(form, times, monkeypatch, precision=precision))


def test_without_a_bias(times, monkeypatch):
    assert fused(run("relu", times, monkeypatch, bias=False))


@pytest.mark.parametrize("case", ["slower", "not asked for", "exact"])
def test_else_they_run_apart(case, times, monkeypatch):
    if case == "slower":
        times["fused"] = 3.0
    found = run("relu", times, monkeypatch, search=int(case != "not asked for"), tf32=case != "exact")
    assert not found.launched and any(kinds[0] == "batchnorm" for kinds in found.graphs)


@pytest.mark.parametrize(("group", "precision"), [(2, "bfloat16"), (8, "float16"), (8, "float32")])
@pytest.mark.parametrize("make", [operators, gradients])
def test_convolutions_in_groups_run_apart(make, group, precision, times, monkeypatch):
    """cuDNN has no sums of them, and is not asked for any."""
    form = "sum relu" if make is operators else "sum"
    found = run(form, times, monkeypatch, make=make, group=group, precision=precision, values=arrays(group=group))
    assert not found.launched and any("batchnorm" in kinds[-1] for kinds in found.graphs)
    assert found.asked and not any("reduction" in kinds for kinds in found.asked if kinds[0].startswith("conv_"))


def test_a_reader_of_the_convolution_before_the_normalization_keeps_them_apart(times, monkeypatch):
    assert not run("relu", times, monkeypatch, between=True).launched


def test_the_variance_does_not_cancel(times, monkeypatch):
    """A mean of 1000 deviations is no loss where the running mean is near to it."""
    values = arrays(offset=1000.0)
    values["rm"] = values["cb"].copy()
    assert fused(run("", times, monkeypatch, values=values))


def summed(result):
    sums = any(kinds[0] == "conv_dgrad" and kinds[-1] == "reduction" for kinds in result.graphs)
    assert sums != any(kinds[-1] == "batchnorm_backward" for kinds in result.graphs)
    return sums


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("form", ["alone", "read by others", "sum", "sum, the other first"])
def test_the_gradient_computes_the_sums_where_that_is_faster(form, precision, times, monkeypatch):
    assert summed(run(form, times, monkeypatch, make=gradients, precision=precision))


def test_the_gradient_without_a_bias(times, monkeypatch):
    assert summed(run("alone", times, monkeypatch, make=gradients, bias=False))


@pytest.mark.parametrize("case", ["slower", "not asked for", "exact"])
def test_else_the_gradients_run_apart(case, times, monkeypatch):
    if case == "slower":
        times["fused"] = 3.0
    assert not summed(
        run("sum", times, monkeypatch, make=gradients, search=int(case != "not asked for"), tf32=case != "exact")
    )


def test_a_gradient_of_the_relu_that_can_be_fetched_keeps_them_apart(times, monkeypatch):
    assert not summed(run("fetched", times, monkeypatch, make=gradients))
