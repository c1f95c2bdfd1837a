"""Names of blobs that step nets reshape in place."""

from netbuilder.ops.recurrent.versions import rename_reshaped
from netbuilder.proto.arguments import make_op


def shown(*ops):
    return [f"{op.type} {','.join(op.input)}>{','.join(op.output)}" for op in rename_reshaped(ops)]


def test_what_is_written_keeps_its_name_at_the_end():
    ops = [make_op("FC", ["x", "w"], ["y"]), make_op("Squeeze", ["y"], ["y"]), make_op("ExpandDims", ["y"], ["y"])]
    assert shown(*ops, make_op("Relu", ["y"], ["z"])) == [
        "FC x,w>y#1", "Squeeze y#1>y#2", "ExpandDims y#2>y", "Relu y>z"
    ]  # fmt: skip


def test_what_is_read_keeps_its_name_at_the_beginning():
    ops = [make_op("Reshape", ["g", "s"], ["g", "d"]), make_op("Relu", ["g"], ["z"])]
    assert shown(*ops) == ["Reshape g,s>g#1,d", "Relu g#1>z"]


def test_other_work_in_place_is_left_alone():
    ops = [make_op("Sum", ["a", "b"], ["a"]), make_op("Tanh", ["a"], ["a"])]
    assert shown(*ops) == ["Sum a,b>a", "Tanh a>a"]
