"""ParallelDo and its gradient, operator by operator; what a block of a model makes is in tests/parallel."""

import numpy as np
import pytest

from checks import CPU, DEVICES
from netbuilder.graph import gradients
from netbuilder.ops.control.parallel_do import ParallelDo, ParallelDoGradient
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, ArgumentError, GradientError, NetDef, NetError, ShapeError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, refusal

X, W = np.arange(14, dtype=np.float32).reshape(7, 2) - 5, np.float32([2, -1])
PRODUCT = NetDef(
    name="product", op=[make_op("Mul", ["a", "b"], ["h"], broadcast=1), make_op("Sqr", ["h"], ["y"])],
    external_input=["a", "b"], external_output=["y"],
)  # fmt: skip
ARGUMENTS = {
    "net": PRODUCT, "devices": (0, 2, 1), "inner_inputs": ("a", "b"), "modes": ("split", "whole"),
    "inner_outputs": ("y",), "merge": ("concat",),
}  # fmt: skip
SIZES = TensorSpec((2, 3), np.dtype(np.int32))


def operator(device=CPU, **changed):
    kind = PROTO_CPU if device == CPU else PROTO_CUDA
    arguments = {**ARGUMENTS, "devices": (0, 2, 1) if device == CPU else (0,), "device_type": kind, **changed}
    return make_op("ParallelDo", ["x", "w"], ["y", "sizes"], device_option=make_device_option(kind, 0), **arguments)


def run(*ops, **blobs):
    workspace = Workspace(threads=2)
    for name, value in blobs.items():
        workspace.feed(name, value)
    net = NetDef(name="net", op=ops)
    workspace.create_net(net, observable="all")
    workspace.run_net("net")
    return workspace


class TestParallelDo(OperatorSuite):
    operator = ParallelDo
    no_gradient = "test_gradient_of_both_inputs: its net decides"
    left_out = {"test_inplace": "test_an_output_may_overwrite_an_input: its net decides"}
    refusals = (
        refusal(ParallelDo(), [f32(1)], "the argument net, a net, must be given", ArgumentError),
        refusal(ParallelDo(net=PRODUCT), [f32(1)], "devices must list different devices", ArgumentError),
        refusal(
            ParallelDo(**{**ARGUMENTS, "devices": (1, 1)}), [f32(7, 2), f32(2)], r"got \(1, 1\)", ArgumentError, n_out=2
        ),
        refusal(
            ParallelDo(**{**ARGUMENTS, "modes": ("split", "half")}), [f32(7, 2), f32(2)],
            r"modes must have one of split, whole, updated for each of the 2 names .* got \('split', 'half'\)",
            ArgumentError, n_out=2,
        ),
        refusal(
            ParallelDo(**{**ARGUMENTS, "merge": ()}), [f32(7, 2), f32(2)],
            "merge must have one of concat, mean, sum, updated for each of the 1 names", ArgumentError, n_out=2,
        ),
        refusal(
            ParallelDo(**{**ARGUMENTS, "modes": ("whole", "whole")}), [f32(7, 2), f32(2)],
            "no input is split over the devices", ArgumentError, n_out=2,
        ),
        refusal(ParallelDo(**ARGUMENTS), [f32(0, 2), f32(2)], "at least one sample", ShapeError, n_out=2),
        refusal(
            ParallelDo(**{**ARGUMENTS, "modes": ("split", "split")}), [f32(7, 2), f32(2)],
            r"same number of samples, got 'a' of shape \(7, 2\), 'b' of shape \(2,\)", ShapeError, n_out=2,
        ),
        refusal(
            ParallelDo(**ARGUMENTS), [f32(7, 2), f32(3)], "net 'product', operator 0: Mul.*", ShapeError, n_out=2
        ),
        refusal(ParallelDo(**{**ARGUMENTS, "merge": ("sum",)}), [f32(7, 2), f32(2)],
                r"has shape \(2, 2\) on device 2 and \(3, 2\) on device 0", ShapeError, n_out=2),
    )  # fmt: skip

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device):
        workspace = run(operator(device), x=X, w=W)
        np.testing.assert_array_equal(workspace.fetch("y"), (X * W) ** 2)
        assert workspace.fetch("sizes").tolist() == ([[3, 2, 2]] * 2 if device == CPU else [[7]] * 2)

    @pytest.mark.parametrize("samples", [1, 2, 3, 7])
    def test_shapes_are_those_of_a_run(self, samples):
        op = ParallelDo(**ARGUMENTS).with_arity(2, 2)
        workspace = run(operator(), x=X[:samples], w=W)
        inferred = op.infer(f32(samples, 2), f32(2))
        assert inferred == tuple(workspace.spec(name).plain for name in ("y", "sizes"))
        assert op.infer_partial([f32(samples, 2), None], [None, None])[1] == [None, None]


class TestParallelDoGradient(OperatorSuite):
    operator = ParallelDoGradient
    no_gradient = "it is a gradient"
    refusals = (
        refusal(ParallelDoGradient(), [SIZES], "Gradient: the argument net, a net, must be given", ArgumentError),
    )  # fmt: skip

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device):
        """Rows that the forward operator divided as 3, 2, 2; a sum over the devices."""
        net = NetDef(name="net_grad", op=[make_op("Mul", ["d", "w"], ["dx"], broadcast=1)])
        op = make_op(
            "ParallelDoGradient", ["sizes", "dy", "w"], ["dx", "dw"], net=net,
            devices=(0, 1, 2) if device == CPU else (0,),
            device_type=PROTO_CPU if device == CPU else PROTO_CUDA,
            inner_inputs=["d", "w"], modes=["split", "whole"], rows=[1, 0], inner_outputs=["dx", "w"],
            merge=["concat", "sum"],
            device_option=make_device_option(PROTO_CPU if device == CPU else PROTO_CUDA, 0),
        )  # fmt: skip
        sizes = np.int32([[3, 2, 2]] * 2 if device == CPU else [[7]] * 2)
        workspace = run(op, sizes=sizes, dy=X, w=W)
        np.testing.assert_array_equal(workspace.fetch("dx"), X * W)
        np.testing.assert_array_equal(workspace.fetch("dw"), W * sizes.shape[1])


@pytest.mark.parametrize("samples", [1, 2, 7])
def test_gradient_of_both_inputs(samples):
    forward = NetDef(name="net", op=[operator(), make_op("SumElements", ["y"], ["loss"])])
    backward = gradients.differentiate(forward, ["loss"])
    x = X[:samples]
    workspace = run(*forward.op, *backward.net.op, x=x, w=W)
    np.testing.assert_allclose(workspace.fetch(backward.gradients["x"]), 2 * x * W * W)
    np.testing.assert_allclose(workspace.fetch(backward.gradients["w"]), (2 * x * x * W).sum(axis=0))
    op = backward.net.op[-1]
    assert op.type == "ParallelDoGradient" and op.is_gradient_op
    assert list(op.input) == ["sizes", "y_grad", "w"] and list(op.output) == ["x_grad", "w_grad"]
    kept = next(argument for argument in forward.op[0].arg if argument.name == "kept")
    assert {name.decode() for name in kept.strings} == {"a", "h"}


def test_an_output_may_overwrite_an_input():
    op = operator()
    op.output[0] = "x"
    np.testing.assert_array_equal(run(op, x=X, w=W).fetch("x"), (X * W) ** 2)


def test_blobs_that_the_net_overwrites_get_the_value_of_the_first_device():
    net = NetDef(name="counting", op=[make_op("SumElements", ["a"], ["s"]), make_op("Add", ["n", "s"], ["n"])])
    op = make_op(
        "ParallelDo", ["x", "n"], ["s", "n", "sizes"], net=net, devices=(0, 1, 2), inner_inputs=["a", "n"],
        modes=["split", "updated"], inner_outputs=["s", "n"], merge=["sum", "updated"],
    )  # fmt: skip
    workspace = run(op, x=X, n=np.float32(100))
    assert workspace.fetch("n") == 100 + X[:3].sum() and workspace.fetch("s") == X.sum()
    assert workspace.fetch("cpu_1/n") == 100 + X[3:5].sum()


def test_a_net_without_a_gradient_is_refused():
    net = NetDef(name="signs", op=[make_op("Sign", ["a"], ["h"]), make_op("Mul", ["h", "b"], ["y"], broadcast=1)])
    forward = NetDef(name="net", op=[operator(net=net)])
    with pytest.raises(GradientError, match="net 'net'.*ParallelDo.*net 'signs'.*Sign"):
        gradients.differentiate(forward, {"y": "y_grad"})


def test_an_error_on_a_device_names_it():
    ops = [make_op("EnforceFinite", ["a"], []), make_op("Mul", ["a", "b"], ["y"], broadcast=1)]
    x = X.copy()
    x[6] = np.nan
    with pytest.raises(NetError, match="net 'checks', operator .*: EnforceFinite .*cpu_1/a.* on CPU 1"):
        run(operator(net=NetDef(name="checks", op=ops)), x=x, w=W)
