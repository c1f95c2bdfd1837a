"""LRN and its gradient on a GPU: one kernel each, against the formula in float64."""

import numpy as np
import pytest

from checks import interpret
from cudnn_double import cudnn_double
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, graphs, launched, run_net

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(6)
ROUNDING = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-13}


def operators(**arguments):
    return [make_op("LRN", ["x"], ["y", "scale"], **arguments),
            make_op("LRNGradient", ["x", "y", "dy"], ["dx"], **arguments)]  # fmt: skip


def arrays(order="NCHW", dtype="float32"):
    shape = (2, 7, 3, 4) if order == "NCHW" else (2, 3, 4, 7)
    return {name: RNG.standard_normal(shape).astype(dtype) for name in ("x", "dy")}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("size", [1, 4, 5, 20])
def test_lrn_and_its_gradient(size, order, dtype):
    given, ops = arrays(order, dtype), operators(size=size, alpha=0.3, beta=0.75, bias=1.5, order=order)
    want = interpret(ops, {name: x.astype(np.float64) for name, x in given.items()})
    with launched() as launches:
        found = run_net(ops, given, ["y", "scale", "dx"])
    assert (launches.count("lrn"), launches.count("lrn_gradient")) == (1, 1)
    for name, value in found.items():
        np.testing.assert_allclose(value, want[name], rtol=ROUNDING[dtype], atol=ROUNDING[dtype], err_msg=name)


def test_they_do_not_divide_a_graph():
    given = arrays()
    workspace = Workspace()
    for name, value in given.items():
        workspace.feed(name, value, ON_GPU)
    workspace.create_net(NetDef(name="net", device_option=ON_GPU, op=operators(size=3, alpha=0.1, beta=0.75)))
    workspace.run_net("net", 4)
    assert graphs(workspace) == [0, 0]


@pytest.mark.emulated
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_images_between_convolutions_stay_as_they_are_stored(dtype):
    convolutions = [make_op("Conv", ["x", "w"], ["a"], kernel=1), make_op("LRN", ["a"], ["b"], size=3, alpha=0.1),
                    make_op("Conv", ["b", "w"], ["y"], kernel=1)]  # fmt: skip
    convolutions[1].arg.add(name="beta", f=0.75)
    given = {"x": arrays()["x"], "w": RNG.standard_normal((7, 7, 1, 1)).astype(np.float32)}
    want = interpret(convolutions, {name: x.astype(np.float64) for name, x in given.items()})
    with cudnn_double():
        workspace = Workspace()
        for name, value in given.items():
            workspace.feed(name, value, ON_GPU)
        net = NetDef(name="net", device_option=ON_GPU, op=convolutions)
        workspace.create_net(net, dtype=dtype, observable=["y"])
        workspace.run_net("net")
        (plan,) = workspace.net("net").plan_ahead()
        (step,) = [step for step in plan.steps if step.prepared.name.startswith("cuda nb_lrn")]
        assert [value.spec.layout.elements for value in (*step.inputs, *step.outputs)] == [dtype] * 2
        rounding = 1e-5 if dtype == "float32" else 4e-2
        bound = rounding * np.abs(want["y"]).max()
        np.testing.assert_allclose(workspace.fetch("y"), want["y"], rtol=rounding, atol=bound)
