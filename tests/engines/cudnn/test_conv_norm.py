"""Conv that computes the sums for the SpatialBN after it, or the Relu before it, against float64; which form runs is
measured."""

from typing import NamedTuple

import numpy as np
import pytest

from checks import interpret
from kernel_cases import normalization, random
from netbuilder.engines.choices import CACHE_VARIABLE, SWITCH_VARIABLE
from netbuilder.engines.cuda.kernel import known_kernels
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
NORMALIZED = ("sub", "mul", "mul", "add")
SCALED = ("mul", "add", "relu", "conv_wgrad")
TOLERANCES = {"float32": 4e-3, "bfloat16": 3e-2, "float16": 4e-3}  # of factors in TF32, in float32


def relu(source, result, n=None):
    return make_op("Relu", [source], [result]) if n is None else make_op("ReluN", [source], [result], n=n)


def relu_gradient(result, da, dz, n=None):
    given = {} if n is None else {"n": n}
    return make_op("ReluGradient" if n is None else "ReluNGradient", [result, da], [dz], **given)


LIMIT = 1.41  # of a Relu; no result of the normalization is near to it


@pytest.fixture
def times(monkeypatch, tmp_path):
    """The seconds of a convolution with sums and our normalization, of kernels that compute what they read, of those
    that do so in float16, and of our pair that does so; other calls take 2. Choices have their own file."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(SWITCH_VARIABLE, raising=False)
    monkeypatch.setattr(plans, "machine", lambda: f"a GPU of {tmp_path}; cuDNN 9.28.0")
    return {"fused": 1.0, "unstored": 0.5, "scaled": 0.4, "repeated": 1.5}


def operators(form, *, bias=True, search=1, between=False, group=1, n=None):
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
        ops.append(relu(last, last, n))
    return ops, [*(["read"] if between else []), "a", last, "rm", "rv", "mean", "inverse"]


def arrays(*, offset=0.0, group=1):
    found = {**normalization((3, 8, 6, 5), 8), "w": random(8, 8 // group, 3, 3, seed=4) / 8}
    found["other"] = random(3, 8, 6, 5, seed=9)
    found["v"] = np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1)
    found["cb"] = random(8, seed=5) + np.float32(offset)
    return found


def gradients(form, *, bias=True, search=1, group=1, n=None):
    """SpatialBN and Relu, and the gradients of these and of a Conv after them, in the forms of a residual net."""
    ops = [make_op("Conv", ["x", "v"], ["a"], kernel=1)]  # so X of the SpatialBN is stored as products are
    ops.append(make_op("SpatialBN", ["a", "s", "b", "rm", "rv"], ["y", "rm", "rv", "mean", "inverse"]))
    ops.append(relu("y", "y", n))
    made = ["dw", *(["db"] if bias else []), "da"]
    given = {"kernel": 3, "pad": 1, "group": group, "exhaustive_search": search, **({} if bias else {"no_bias": 1})}
    ops.append(make_op("ConvGradient", ["y", "w", "other"], made, **given))
    last = "da"
    if form.startswith("sum"):
        last = "total"
        ops.append(make_op("Sum", ["da", "a"] if form == "sum" else ["a", "da"], [last]))
    dz = "da" if form == "fetched" else "dz"
    ops.append(relu_gradient("y", last, dz, n))
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
            if any(" ".join(SCALED) in name for name in names):
                return times["scaled"]
            if any(map(repeats, names)):
                return times["repeated"]
            if any(" ".join(NORMALIZED) in name or name.startswith("nb_statistics") for name in names):
                return times["unstored"]
            return times["fused"] if any(name.startswith((OWN, SUMMED)) for name in names) else 2.0

        monkeypatch.setattr(plans, "seconds", seconds)
        for name, array in values.items():
            workspace.feed(name, array, GPU)
        workspace.create_net(net, observable=wanted, allow_tf32=tf32)
        workspace.net("net").plan_ahead()
        before, graphs = len(machine.launches), len(cudnn.ran_graphs)
        workspace.run_net("net")
        names = [launch.name for launch in machine.launches[before:]]
        ran = cudnn.ran_graphs[graphs:]
        asked = [tuple(node.kind for node in graph.nodes) for graph in cudnn.graphs]
        got = {name: workspace.fetch(name) for name in wanted}
    exact = interpret(ops, {name: array.astype(np.float64) for name, array in values.items()})
    for name in wanted:
        bound = TOLERANCES[precision] * max(float(np.abs(exact[name]).max()), 1.0)
        np.testing.assert_allclose(got[name], exact[name], rtol=0, atol=bound, err_msg=name)
    return Ran(any(name.startswith(OWN) for name in names), any(map(repeats, names)), ran, asked)


def repeats(name):
    """Whether a kernel is one of ours that computes the result of a Relu again."""
    return name in known_kernels() and "again_" in known_kernels()[name].source


class Ran(NamedTuple):
    """Whether our normalization ran and a kernel that repeats it, the operations of the graphs that did, and of those
    that cuDNN was asked for."""

    launched: bool
    repeated: bool
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


@pytest.mark.parametrize("form", ["relu", "sum relu"])
def test_a_relu_with_a_limit(form, times, monkeypatch):
    assert fused(run(form, times, monkeypatch, n=LIMIT, precision="bfloat16"))


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


@pytest.mark.parametrize("form", ["alone", "read by others", "sum"])
def test_the_gradient_of_a_relu_with_a_limit(form, times, monkeypatch):
    assert summed(run(form, times, monkeypatch, make=gradients, n=LIMIT))


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


def chain(
    form,
    *,
    bias=True,
    search=1,
    stride=1,
    group=1,
    kernel=3,
    between="",
    normalizes=False,
    keep=False,
    n=None,
    other_n=None,
):
    """Conv, SpatialBN, Relu, Conv, and the gradients of all but the first; with ``normalizes`` a SpatialBN at the end.

    Args:
        form: "sums", where the first Conv computes the sums for its SpatialBN; else a kernel of ours does.
        between: a further operator: a "reader" of the Relu's result, or one that "overwrites" the scale.
        keep: the Relu's result can be fetched.
        n: the limit of the Relu.
        other_n: that of its gradient, if it is another one.
    """
    ops = [make_op("Conv", ["x", "v"], ["a"], kernel=1, exhaustive_search=int(form == "sums"))]
    more = ["y", "rm", "rv", "mean", "inverse"]
    ops.append(make_op("SpatialBN", ["a", "s", "b", "rm", "rv"], more, exhaustive_search=search))
    ops.append(relu("y", "y", n))
    given = {"kernel": kernel, "pad": kernel // 2, "stride": stride, "group": group, "exhaustive_search": search}
    ops.append(make_op("Conv", ["y", "w", *(["cb"] if bias else [])], ["c"], **given))
    if normalizes:
        last = ["z", "rm2", "rv2", "mean2", "inverse2"]
        ops += [make_op("SpatialBN", ["c", "s2", "b", "rm2", "rv2"], last), make_op("Relu", ["z"], ["z"])]
    if between == "reader":
        ops.append(make_op("Scale", ["y"], ["read"], scale=2.0))
    if between == "overwrites":
        ops.append(make_op("Scale", ["s"], ["s"], scale=1.0))
    made = ["dw", *(["db"] if bias else []), "da"]
    ops.append(make_op("ConvGradient", ["y", "w", "dc"], made, **given, **({} if bias else {"no_bias": 1})))
    ops.append(relu_gradient("y", "da", "da", other_n or n))
    ops.append(
        make_op("SpatialBNGradient", ["a", "s", "da", "mean", "inverse"], ["dx", "ds", "dt"], exhaustive_search=search)
    )
    fetched = ["a", *more[1 - keep :], *made[:-1], "dx", "ds", "dt", *(["read"] if between == "reader" else [])]
    return ops, [*fetched, *(last if normalizes else ["c"])]


def chained(form, times, monkeypatch, *, values=None, **options):
    """Run the chain; return the kinds of kernels that compute what they read, and how that is done."""
    stride, kernel, group = (
        options.get(name, default) for name, default in (("stride", 1), ("kernel", 3), ("group", 1))
    )
    given = {**arrays(), **(values or {}), "s2": random(8, seed=6, low=0.5)}
    given |= {"rm2": random(8, seed=7) / 8, "rv2": random(8, seed=8, low=0.5)}
    given["w"] = random(8, 8 // group, kernel, kernel, seed=4) / 8
    given["dc"] = random(3, 8, -(-6 // stride), -(-5 // stride), seed=9)
    result = run(form, times, monkeypatch, make=chain, values=given, **options)
    computing = [kinds for kinds in result.graphs if any(kinds[i : i + 4] == NORMALIZED for i in range(len(kinds)))]
    return (
        [
            "conv_fprop" if "conv_fprop" in kinds else "conv_dgrad, written" if "relu" in kinds else "conv_dgrad"
            for kinds in computing
        ]
        + ["conv_wgrad" for kinds in result.graphs if kinds == SCALED]
        + ["pair"] * result.repeated
    )


WRITTEN = ["conv_fprop", "conv_dgrad, written"]


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("form", ["sums", "statistics"])
def test_the_result_of_a_relu_is_not_stored_where_that_is_faster(form, precision, times, monkeypatch):
    found = chained(form, times, monkeypatch, precision=precision, normalizes=form == "sums")
    assert found == (["conv_fprop", "conv_dgrad", "conv_wgrad"] if precision == "float16" else WRITTEN)


@pytest.mark.parametrize("kernel, stride, bias", [(1, 1, False), (1, 2, True), (3, 2, False)])
def test_of_other_windows(kernel, stride, bias, times, monkeypatch):
    times["scaled"] = 0.6
    found = chained("sums", times, monkeypatch, precision="float16", kernel=kernel, stride=stride, bias=bias)
    assert found == WRITTEN


@pytest.mark.parametrize("n", [None, LIMIT])
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("form", ["sums", "statistics"])
def test_our_gradient_computes_the_result_of_a_relu_that_is_stored(form, precision, n, times, monkeypatch):
    """For a Conv in groups. It has the bits of the kernel that stores it."""
    assert chained(form, times, monkeypatch, precision=precision, group=2, n=n) == ["pair"]


@pytest.mark.parametrize("options", [{"tf32": False}, {"between": "reader", "group": 2}], ids=str)
def test_so_it_does_in_exact_float32_and_with_other_readers(options, times, monkeypatch):
    assert chained("statistics", times, monkeypatch, **options) == ["pair"]


@pytest.mark.parametrize("precision", TOLERANCES)
def test_the_result_of_a_relu_with_a_limit_is_not_stored(precision, times, monkeypatch):
    found = chained("sums", times, monkeypatch, precision=precision, normalizes=True, n=LIMIT)
    assert found == (["conv_fprop", "conv_dgrad", "conv_wgrad"] if precision == "float16" else WRITTEN)


@pytest.mark.parametrize(
    "options",
    [
        {"search": 0}, {"keep": True}, {"between": "overwrites"}, {"slower": True}, {"off": True},
        {"n": LIMIT, "other_n": 1.5},
    ],
    ids=str,
)  # fmt: skip
def test_else_the_result_of_the_relu_is_stored_and_read(options, times, monkeypatch):
    """Where it was not asked for, cannot be computed again, or with the gradient of another Relu, ..."""
    given = {**options}
    if given.pop("slower", False):
        times |= {"unstored": 3.0, "scaled": 3.0}
    if given.pop("off", False):
        monkeypatch.setenv(SWITCH_VARIABLE, "0")
    assert chained("statistics", times, monkeypatch, **given) == []
