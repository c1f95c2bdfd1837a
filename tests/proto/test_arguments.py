"""Arguments hold what Caffe2's hold, are read back as given, and refuse what they cannot hold."""

import numpy as np
import pytest
from google.protobuf.message import Message

from netbuilder.proto import (
    PROTO_CUDA,
    ArgumentError,
    NetDef,
    OperatorDef,
    QTensorProto,
    TensorProto,
    TensorShape,
)
from netbuilder.proto.arguments import (
    argument_value,
    arguments,
    make_argument,
    make_device_option,
    make_op,
    set_argument,
)


class Reference:
    """A fake blob reference; the class itself is in a package that proto does not import."""

    def __str__(self):
        return "gpu_0/fc_w"

    def GetUnscopedName(self):
        return "fc_w"


class Net:
    """A fake net; the class itself is in a package that proto does not import."""

    def __init__(self, name):
        self.proto = NetDef(name=name)

    def Proto(self):
        return self.proto


NET, TENSOR = NetDef(name="body"), TensorProto(dims=[1], float_data=[2.5])
QTENSOR = QTensorProto(precision=8, scale=1.0, bias=0.0, is_signed=True)

# Value given, field of Argument that holds it, value read back.
KINDS = {
    "int": (3, "i", 3),
    "bool": (True, "i", 1),
    "numpy integer": (np.int64(-(2**63)), "i", -(2**63)),
    "numpy bool": (np.bool_(True), "i", 1),
    "float": (0.5, "f", 0.5),
    "whole float": (2.0, "f", 2.0),
    "numpy float": (np.float16(0.25), "f", 0.25),
    "string": ("NCHW", "s", b"NCHW"),
    "string beyond ASCII": ("é", "s", "é".encode()),
    "bytes": (b"\xff\x00", "s", b"\xff\x00"),
    "blob reference": (Reference(), "s", b"gpu_0/fc_w"),
    "net message": (NET, "n", NET),
    "net": (Net("body"), "n", NET),
    "tensor": (TENSOR, "t", TENSOR),
    "another message": (TensorShape(dims=[2]), "s", TensorShape(dims=[2]).SerializeToString()),
    "ints": ([1, 2], "ints", [1, 2]),
    "bools": ([True, False], "ints", [1, 0]),
    "mixed numbers": ((1, 2.5), "floats", [1.0, 2.5]),
    "range": (range(3), "ints", [0, 1, 2]),
    "generator": ((i * 0.5 for i in range(2)), "floats", [0.0, 0.5]),
    "int array": (np.arange(4, dtype=np.int32).reshape(2, 2), "ints", [0, 1, 2, 3]),
    "bool array": (np.array([True, False]), "ints", [1, 0]),
    "float array": (np.float32([[0.5], [1.0]]), "floats", [0.5, 1.0]),
    "scalar array": (np.array(7), "i", 7),
    "strings": (["a", b"b"], "strings", [b"a", b"b"]),
    "string array": (np.array(["a", "b"]), "strings", [b"a", b"b"]),
    "blob references": ([Reference(), "x"], "strings", [b"gpu_0/fc_w", b"x"]),
    "net messages": ([NET, NET], "nets", [NET, NET]),
    "nets": ([Net("body")], "nets", [NET]),
    "tensors": ([TENSOR], "tensors", [TENSOR]),
    "quantized tensors": ([QTENSOR], "qtensors", [QTENSOR]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_value_is_held_and_read_back(kind):
    given, field, expected = KINDS[kind]
    argument = make_argument("x", given)
    assert argument.name == "x"
    assert [f.name for f, _ in argument.ListFields()] == ["name", field]
    value = argument_value(argument)
    assert value == expected and (isinstance(value, Message) or type(value) is type(expected))


def test_empty_list_makes_an_argument_without_a_value():
    assert argument_value(make_argument("x", [])) is None
    assert [f.name for f, _ in make_argument("x", ()).ListFields()] == ["name"]


@pytest.mark.parametrize(
    "value, text",
    [
        (None, "argument 'x': cannot hold None of type NoneType; give a number"),
        ({"a": 1}, "argument 'x': cannot hold {'a': 1} of type dict"),
        ({1, 2}, "argument 'x': cannot hold {1, 2} of type set"),
        (1j, "cannot hold 1j of type complex"),
        ([1, "a"], "argument 'x': the elements of .*1, 'a'.* are of different or unknown kinds"),
        ([[1, 2], [3]], "are of different or unknown kinds"),
        ([NET, TENSOR], "one kind at a time"),
        (2**63, "argument 'x': .*out of range.*integers are signed, of 64 bits"),
        ([0, -(2**70)], "argument 'x': .*out of range"),
        (np.uint64([2**63]), "argument 'x': .*out of range"),
    ],
)
def test_what_an_argument_cannot_hold_is_refused(value, text):
    with pytest.raises(ArgumentError, match=text):
        make_argument("x", value)


def test_an_operator_keeps_what_it_was_given():
    gpu = make_device_option(PROTO_CUDA, 3, random_seed=5, extra_info=["a"])
    op = make_op(
        "Conv",
        ["x", Reference()],
        ["y"],
        name="c",
        engine="CUDNN",
        device_option=gpu,
        control_input=["z"],
        kernel=3,
        pad=None,
    )
    assert op == OperatorDef(
        type="Conv",
        input=["x", "gpu_0/fc_w"],
        output=["y"],
        name="c",
        engine="CUDNN",
        control_input=["z"],
        device_option=gpu,
        arg=[make_argument("kernel", 3)],
    )
    assert (gpu.device_type, gpu.device_id, gpu.random_seed, list(gpu.extra_info)) == (1, 3, 5, ["a"])


def test_of_two_arguments_with_one_name_the_first_counts():
    op = OperatorDef(arg=[make_argument("axis", 1), make_argument("axis", 2), make_argument("order", "NCHW")])
    assert arguments(op) == {"axis": 1, "order": b"NCHW"}


@pytest.mark.parametrize("holder", [OperatorDef, NetDef])
def test_setting_replaces_or_adds(holder):
    held = holder(arg=[make_argument("axis", [1, 2])])
    set_argument(held, "axis", 0.5)
    set_argument(held, "order", "NHWC")
    assert arguments(held) == {"axis": 0.5, "order": b"NHWC"}
    assert len(held.arg) == 2
