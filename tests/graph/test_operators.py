"""Operators as builders make them: arguments of all kinds, errors."""

import numpy as np
import pytest

from netbuilder.graph import BlobReference, CreateOperator, IsOperator, Net
from netbuilder.graph.operators import build_operator, make_operator
from netbuilder.proto import Argument, ArgumentError, NetError, OperatorDef
from netbuilder.proto.arguments import arguments


def test_fields():
    op = CreateOperator(
        "Conv",
        ["x", BlobReference("w")],
        "y",
        "first",
        "c",
        None,
        [Argument(name="pad", i=1)],
        "CUDNN",
        "here",
        kernel=3,
    )
    assert (op.type, op.name, op.engine, op.debug_info) == ("Conv", "first", "CUDNN", "here")
    assert (op.input, op.output, op.control_input) == (["x", "w"], ["y"], ["c"])
    assert arguments(op) == {"kernel": 3, "pad": 1}


@pytest.mark.parametrize(
    ("args", "stored"),
    [
        ({"kernels": [3, 1], "order": "NCHW"}, {"kernels": [3, 1], "order": b"NCHW"}),
        ({"kernels": np.array([3, 1])}, {"kernels": [3, 1]}),
        ({"kernel": np.int64(3), "stride": None}, {"kernel": 3}),
        ({"kernel": True}, {"kernel": 1}),
    ],
)
def test_arguments_of_every_kind(args, stored):
    assert arguments(CreateOperator("Conv", ["x", "w"], "y", **args)) == stored


def test_legacy_arguments_are_kept():
    op = CreateOperator("FC", ["x", "w", "b"], "y", order="NCHW", use_cudnn=1, cudnn_exhaustive_search=0)
    assert arguments(op) == {"order": b"NCHW", "use_cudnn": 1, "cudnn_exhaustive_search": 0}


@pytest.mark.parametrize(
    ("error", "match", "make"),
    [
        (NetError, "unknown operator 'Rleu'; did you mean .*Relu", lambda: CreateOperator("Rleu", "x", "y")),
        (ArgumentError, "Softmax: unknown argument 'axes'; did you mean 'axis'.*It takes",
         lambda: CreateOperator("Softmax", "x", "y", axes=1)),
        (ArgumentError, "argument 'axis' must be int", lambda: CreateOperator("Softmax", "x", "y", axis="one")),
        (ArgumentError, "cannot be a mapping", lambda: CreateOperator("Softmax", "x", "y", axis={1: 2})),
        (NetError, r"Relu takes 1 input \(X\), got 2: \['x', 'z'\]", lambda: CreateOperator("Relu", ["x", "z"], "y")),
        (NetError, r"Relu makes 1 output \(Y\), got 0", lambda: CreateOperator("Relu", "x", [])),
        (NetError, "output 0 .'x'. may not overwrite input 0, nor", lambda: CreateOperator("Softmax", "x", "x")),
        (NetError, "the name of a blob must not be empty", lambda: CreateOperator("Relu", "", "y")),
        (NetError, "the name of a blob must not be empty", lambda: CreateOperator("Relu", "x", [""])),
        (TypeError, "Relu: device_option must be a DeviceOption, got 1",
         lambda: CreateOperator("Relu", "x", "y", device_option=1)),
        (TypeError, "got None", lambda: CreateOperator("Relu", None, "y")),
        (TypeError, "got 3", lambda: CreateOperator("Relu", ["x", 3], "y")),
    ],
)  # fmt: skip
def test_refusals(error, match, make):
    for _ in range(2):  # an operator that was refused once is checked again
        with pytest.raises(error, match=match):
            make()


def test_refusals_after_a_good_one_of_the_same_form():
    CreateOperator("Softmax", "x", "y", axis=1)
    with pytest.raises(NetError, match="may not overwrite"):
        CreateOperator("Softmax", "x", "x", axis=1)
    with pytest.raises(ArgumentError, match="axis"):
        CreateOperator("Softmax", "x", "y", axis="1")


def test_is_operator():
    assert IsOperator("Relu") and not IsOperator("Rleu")


def test_references_as_arguments_stand_for_their_names():
    net = Net("n")
    net.LearningRate("iter", "lr", base_lr=0.1, policy=BlobReference("fixed"))
    assert arguments(net.Proto().op[0])["policy"] == b"fixed"


@pytest.mark.parametrize(
    "values",
    [
        (1, True, 1.0),
        (0.0, -0.0, 0, False),
        ([1, 2], [1.0, 2.0], (1, 2), [True, 2]),
        ([0.0], [-0.0]),
        ("1", b"1", 1, ["1"], None),
    ],
)
def test_arguments_that_compare_equal_are_stored_as_they_are(values):
    """Whichever of them an earlier operator had."""
    for order in (values, values[::-1]):
        for value in order:
            op = build_operator("Print", ["x"], [], "", OperatorDef(), **{"limit": 1, "order": value})
            assert (
                op.SerializeToString()
                == make_operator("Print", ["x"], [], "", OperatorDef(), limit=1, order=value).SerializeToString()
            )


def test_an_overwritten_input_is_refused_again_and_again():
    CreateOperator("Softmax", "x", "y")
    for _ in range(2):
        with pytest.raises(NetError, match="output 0 .'x'. may not overwrite input 0"):
            CreateOperator("Softmax", "x", "x")
    for blobs in (["x", "y", "x"], ["x", "x", "x"]):
        *inputs, output = blobs
        assert CreateOperator("Sum", inputs, output).output[0] == "x"
    with pytest.raises(NetError, match="output 0 must overwrite input 0"):
        CreateOperator("ScatterWeightedSum", ["w", "one", "i", "v", "lr"], "other")
    CreateOperator("ScatterWeightedSum", ["w", "one", "i", "v", "lr"], "w")
    with pytest.raises(NetError, match="output 0 must overwrite input 0"):
        CreateOperator("ScatterWeightedSum", ["w", "one", "i", "v", "lr"], "other")
