"""SendTensor and ReceiveTensor between ranks that are threads."""

import numpy as np
import pytest

from collective_runs import OBJECT, alone
from netbuilder.ops.collectives.send_receive import ReceiveTensor, SendTensor
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto import ArgumentError, NetError, OperatorError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, i32, refusal
from thread_ranks import on_ranks, thread_worlds


class _BetweenTwo(OperatorSuite):
    no_gradient = "it follows the backward pass"
    left_out = {"test_forward": "it needs two ranks; see below", "test_inplace": "likewise"}


class TestSendTensor(_BetweenTwo):
    operator = SendTensor
    refusals = (
        refusal(SendTensor(), [f32(1), f32(2)], "input 0 must be a common world"),
        refusal(SendTensor(), [OBJECT, TensorSpec((), STRING)], "must be a tensor of numbers or bools, got strings"),
        refusal(SendTensor(), [OBJECT, f32(2), f32(1), i32(1)], "the rank must hold one integer, got shape"),
        refusal(SendTensor(), [OBJECT, f32(2), i32(1)], "or these, a rank and a tag; got 3 inputs", ArgumentError),
    )


class TestReceiveTensor(_BetweenTwo):
    operator = ReceiveTensor
    refusals = (
        refusal(ReceiveTensor(), [f32(1), f32(2)], "input 0 must be a common world"),
        refusal(ReceiveTensor(), [OBJECT, f32(2), i32(1), i32(2)], r"the tag must hold one integer, got shape \(2,\)"),
    )


def exchange(x, *, sent=(), received=(), y=None, **arguments):
    """Send x from rank 2 to rank 0 of three; return what rank 0 has."""
    worlds = thread_worlds(3)

    def work(rank):
        workspace = Workspace()
        workspace.feed("cw", worlds[rank])
        raw = {"raw_buffer": True} if arguments.get("raw_buffer") else {}
        if rank == 2:
            workspace.feed("x", x)
            for n, value in enumerate(sent):
                workspace.feed(f"n{n}", np.int32([value]))
            given = {} if sent else {key: arguments[key] for key in ("dst", "tag") if key in arguments}
            inputs = ["cw", "x", *(f"n{n}" for n in range(len(sent)))]
            workspace.run_operator_once(make_op("SendTensor", inputs, [], **given, **raw))
        if rank == 0:
            workspace.feed("y", np.zeros(1, np.float32) if y is None else y)
            for n, value in enumerate(received):
                workspace.feed(f"n{n}", np.int32([value]))
            given = {key: arguments[key] for key in ("src", "tag") if key in arguments and not received}
            inputs = ["cw", "y", *(f"n{n}" for n in range(len(received)))]
            workspace.run_operator_once(make_op("ReceiveTensor", inputs, ["y", "src", "tag"], **given, **raw))
            return [workspace.fetch(name) for name in ("y", "src", "tag")]
        return None

    found = on_ranks(3, work)
    assert found[1:] == [None, None], found
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", "f2 f4 f8 i1 i2 i4 i8 u1 u2 ?".split())
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)])
def test_shape_and_type_are_sent_too(dtype, shape):
    x = (np.arange(int(np.prod(shape))).reshape(shape) % 5).astype(dtype)
    y, source, tag = exchange(x, dst=0, src=2, tag=7)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    np.testing.assert_array_equal(y, x)
    assert (source.dtype, source.tolist(), tag.tolist()) == (np.int32, [2], [7])


def test_inputs_take_precedence_over_arguments():
    y, source, tag = exchange(np.float32([1, 2]), sent=(0, 9), received=(2, 9))
    assert (y.tolist(), source.tolist(), tag.tolist()) == ([1, 2], [2], [9])


def test_from_any_rank_with_any_tag():
    y, source, tag = exchange(np.float32([1, 2]), dst=0)
    assert (y.tolist(), source.tolist(), tag.tolist()) == ([1, 2], [2], [0])


def test_elements_alone():
    y, _, _ = exchange(np.float32([[1, 2]]), dst=0, src=2, raw_buffer=True, y=np.zeros((2, 1), np.float32))
    assert y.tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [({"dst": 3}, r"dst must lie in \[0, 1\), got 3"), ({}, "got -1"), ({"dst": 0, "tag": -2}, "tag must lie in")],
)
def test_what_cannot_be_sent(arguments, match):
    workspace = Workspace()
    workspace.feed("cw", alone())
    workspace.feed("x", np.float32([1]))
    with pytest.raises(ArgumentError, match=match):
        workspace.run_operator_once(make_op("SendTensor", ["cw", "x"], [], **arguments))


def test_to_itself_and_strings():
    workspace = Workspace()
    workspace.feed("cw", alone())
    for value in (np.float32([1]), np.array([b"a"], object)):
        workspace.feed("x", value)
        with pytest.raises((NetError, OperatorError), match="numbers or bools to another rank than its own"):
            workspace.run_operator_once(make_op("SendTensor", ["cw", "x"], [], dst=0))


def test_a_message_that_does_not_come():
    worlds = thread_worlds(2, timeout=0.3)
    workspace = Workspace()
    workspace.feed("cw", worlds[0])
    workspace.feed("y", np.float32([1]))
    with pytest.raises(OperatorError, match="waited 0.3 s for the other ranks in ReceiveTensor of 'y'"):
        workspace.run_operator_once(make_op("ReceiveTensor", ["cw", "y"], ["y", "s", "t"], src=1))
