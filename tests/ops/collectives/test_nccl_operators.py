"""NCCL's collectives on one host."""

import re

import numpy as np
import pytest
from hypothesis import strategies as st

from emulated_gpu.machine import HOST
from netbuilder.engines import nccl
from netbuilder.ops.collectives.nccl_operators import NCCLAllGather, NCCLAllreduce, NCCLBroadcast, NCCLReduce
from netbuilder.ops.core.operator import decode
from netbuilder.proto import PROTO_CUDA, ArgumentError, NetDef
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from on_gpu import gpus
from suite import OperatorSuite, f32, floats, refusal

# The suites' inputs are on one GPU, or on the CPU.
pytestmark = pytest.mark.filterwarnings("ignore:.*each input must be on a GPU of its own")


def _draw(data, make, one_output=False):
    count = data.draw(st.integers(1, 4))
    first = data.draw(floats((1, 3), (0, 3)))
    op = make(data.draw(st.integers(0, count - 1)))
    return op.with_arity(count, 1 if one_output else count), [
        first,
        *(data.draw(floats(*first.shape)) for _ in range(count - 1)),
    ]


def _bad(make, n_out):
    return (
        refusal(
            make(),
            [f32(2), f32(3)],
            r"input 1 of shape \(3,\), type float32 must have shape and type of input 0",
            n_out=n_out,
        ),
        refusal(make(), [f32(2)] * 17, "at most 16 inputs, got 17", ArgumentError, n_out=17 if n_out > 1 else 1),
    )


class TestNCCLAllreduce(OperatorSuite):
    operator = NCCLAllreduce
    no_gradient = "it follows the backward pass"
    refusals = (
        *_bad(NCCLAllreduce, 2),
        refusal(NCCLAllreduce(), [f32(2), f32(2)], "2 inputs need 2 outputs, got 1", ArgumentError, n_out=1),
    )

    def draw(self, data):
        return _draw(data, lambda root: NCCLAllreduce())

    def reference(self, op, *xs):
        return [np.sum(xs, axis=0)] * len(xs)


class TestNCCLReduce(OperatorSuite):
    operator = NCCLReduce
    no_gradient = "it follows the backward pass"
    refusals = (
        *_bad(NCCLReduce, 1),
        refusal(NCCLReduce(root=2), [f32(2), f32(2)], r"root must lie in \[0, 2\), got 2", ArgumentError, n_out=1),
    )

    def draw(self, data):
        return _draw(data, lambda root: NCCLReduce(root=root), one_output=True)

    def reference(self, op, *xs):
        return [np.sum(xs, axis=0)]


class TestNCCLBroadcast(OperatorSuite):
    operator = NCCLBroadcast
    no_gradient = "it follows the backward pass"
    refusals = (
        *_bad(NCCLBroadcast, 2),
        refusal(NCCLBroadcast(root=-1), [f32(2), f32(2)], r"root must lie in \[0, 2\), got -1", ArgumentError, n_out=2),
    )

    def draw(self, data):
        return _draw(data, lambda root: NCCLBroadcast(root=root))

    def reference(self, op, *xs):
        return [xs[op.root]] * len(xs)


class TestNCCLAllGather(OperatorSuite):
    operator = NCCLAllGather
    no_gradient = "it follows the backward pass"
    refusals = _bad(NCCLAllGather, 2)

    def draw(self, data):
        return _draw(data, lambda root: NCCLAllGather())

    def reference(self, op, *xs):
        return [np.stack(xs)] * len(xs)


def test_all_replicas_at_once_in_place():
    workspace = Workspace()
    names = ["a", "b", "c"]
    for k, name in enumerate(names):
        workspace.feed(name, np.float32([k, 1]))
    workspace.run_operator_once(make_op("NCCLBroadcast", names, names, root=2))
    assert all(workspace.fetch(name).tolist() == [2, 1] for name in names)
    workspace.run_operator_once(make_op("NCCLAllreduce", names, names))
    assert all(workspace.fetch(name).tolist() == [6, 3] for name in names)
    workspace.run_operator_once(make_op("NCCLReduce", names, ["b"], root=1))
    assert workspace.fetch("b").tolist() == [18, 9]


def test_gathering_needs_other_blobs():
    with pytest.raises(ValueError, match="may not overwrite"):
        decode(NCCLAllGather, make_op("NCCLAllGather", ["a", "b"], ["a", "b"]))


@pytest.mark.emulated
@pytest.mark.parametrize(
    "places, dtype, deterministic, reason",
    [
        ((0, 1), np.float32, False, None),
        ((0, 1), np.int64, True, None),  # whose sums are the same in any order
        ((0, 1), np.int16, False, "NCCL does not sum elements of type int16; give it another type"),
        ((0, 1), np.float32, True, "the net must be deterministic, .* or set use_nccl=False"),
        ((0, 0), np.float32, False, "each input must be on a GPU of its own, and they are on GPU 0, GPU 0;"),
        ((1, HOST), np.float32, False, "each input must be on a GPU of its own, and they are on GPU 1, the CPU;"),
    ],
)
def test_what_nccl_does_not_compute_is_said_once(places, dtype, deterministic, reason, recwarn):
    """The first of two operators is named, whatever plans there are of the net."""
    sums = [make_op("NCCLAllreduce", names, names, device_option=on(0)) for names in (["a", "b"], ["c", "d"])]
    with gpus(2):
        workspace = Workspace()
        for size in 3, 2:
            for name, place in zip("abcd", places * 2):
                workspace.feed(name, np.ones(size, dtype), None if place == HOST else on(place))
            if size == 3:
                workspace.create_net(NetDef(name="net", op=sums), deterministic=deterministic)
            workspace.run_net("net")
            assert {tuple(workspace.fetch(name).tolist()) for name in "abcd"} == {(2,) * size}
        assert bool(nccl.nccl().groups) == (reason is None)
    said = [str(each.message) for each in recwarn]
    assert len(said) == (reason is not None)
    if reason is not None:
        begin = r"net 'net', operator 0: NCCLAllreduce \['a', 'b'\] .*: GPU 0 computes it, not NCCL: "
        assert re.match(begin + reason, said[0]), said


def on(number):
    return make_device_option(PROTO_CUDA, number)
