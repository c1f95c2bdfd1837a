"""Arrays without elements: machine code is made for them, too, whichever extent is 0, broadcast or not."""

import itertools

import numpy as np
import pytest

from netbuilder import Workspace
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op

WHOLE = [(0, 3, 4), (2, 0, 4), (2, 3, 0)]
PARTS = [(1, 1, 1), (2, 1, 1), (1, 3, 1), (1, 1, 4), (2, 3, 1), (1,), (4,), (3, 1)]


def shape_of_result(ops, **arrays):
    net = NetDef(name="net", external_input=list(arrays), external_output=[ops[-1].output[0]])
    net.op.extend(ops)
    workspace = Workspace()
    for name, array in arrays.items():
        workspace.feed(name, array)
    workspace.run_net_once(net)
    return workspace.fetch(ops[-1].output[0]).shape


def ones(shape):
    return np.ones(shape, np.float32)


def broadcast():
    for whole, part in itertools.product(WHOLE, PARTS):
        own = tuple(0 if extent == 0 else each for extent, each in zip(whole[-len(part) :], part))
        yield whole, own
        yield whole, tuple(1 if extent == 0 else each for extent, each in zip(whole, own)) if len(own) == 3 else (1,)


@pytest.mark.parametrize("whole, part", sorted(set(broadcast())))
def test_elementwise_chains_with_broadcasting(whole, part):
    for x, y in ((whole, part), (part, whole)):
        ops = [make_op("Mul", ["x", "y"], ["product"]), make_op("Sqr", ["product"], ["square"])]
        assert shape_of_result(ops[:1], x=ones(x), y=ones(y)) == whole
        assert shape_of_result(ops, x=ones(x), y=ones(y)) == whole


@pytest.mark.parametrize("shape", WHOLE)
def test_sums_softmax_and_copies(shape):
    x = ones(shape)
    for axes in ([0], [1], [2], [0, 1], [1, 2], [0, 2]):
        op = make_op("ReduceSum", ["x"], ["y"], axes=axes, keepdims=0)
        assert shape_of_result([op], x=x) == x.sum(axis=tuple(axes)).shape
    for axis in range(3):
        assert shape_of_result([make_op("Softmax", ["x"], ["y"], axis=axis)], x=x) == shape
    for axes in itertools.permutations(range(3)):
        assert shape_of_result([make_op("Transpose", ["x"], ["y"], axes=axes)], x=x) == x.transpose(axes).shape
