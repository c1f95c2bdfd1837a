"""Shape and type inference over nets."""

import numpy as np
import pytest

import golden_data
from netbuilder.graph import Net, infer_shapes
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto import ArgumentError, NetDef, NetError, OperatorDef, ShapeError
from netbuilder.runtime import Workspace

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)


def small():
    init, net = Net("init"), Net("main")
    init.XavierFill([], "w", shape=[4, 3])
    init.ConstantFill([], "b", shape=[4])
    net.FC(["x", "w", "b"], "h")
    net.Relu("h", "h")
    net.SoftmaxWithLoss(["h", "label"], ["p", "loss"])
    return init, net


def test_init_net_and_main_net_together():
    init, net = small()
    result = infer_shapes([init, net], {"x": (2, 3), "label": TensorSpec((2,), np.dtype(np.int32))})
    assert result.shapes == {
        "w": (4, 3), "b": (4,), "x": (2, 3), "h": (2, 4), "label": (2,), "p": (2, 4), "loss": (),
    }  # fmt: skip
    assert result.dtypes["h"] == F32 and result.dtypes["label"] == np.int32 and result.unknown == []
    assert result.spec("h") == TensorSpec((2, 4), F32) and result.spec("nothing") is None
    assert (
        infer_shapes([init.Proto(), net.Proto()], {"x": np.zeros((2, 3), "f"), "label": (2,)}).shapes == result.shapes
    )


def test_unknown_blobs_are_listed():
    init, net = small()
    net.AddExternalInput("unused")
    result = infer_shapes([init, net])
    assert result.unknown == ["x", "h", "label", "p", "loss", "unused"]
    assert result.shapes == {"w": (4, 3), "b": (4,)}


def test_unknown_operators_and_data_dependent_shapes_are_no_crash():
    net = Net("n")
    net.Unique("i", ["u", "r"])
    net.Copy("u", "v")
    net.Proto().op.append(OperatorDef(type="SomebodysOperator", input=["v"], output=["s"]))
    result = infer_shapes([net], {"i": TensorSpec((5,), I64)})
    assert result.shapes == {"i": (5,)} and result.unknown == ["u", "r", "v", "s"]
    result = infer_shapes([net], {"i": TensorSpec((5,), I64), "u": TensorSpec((3,), I64), "s": (7,)})
    assert result.shapes["u"] == result.shapes["v"] == (3,) and result.shapes["s"] == (7,)


def test_extents_that_concat_knows_are_known_to_split():
    net = Net("n")
    net.Concat(["a", "b"], ["joined", "extents"], axis=1)
    net.Split(["joined", "extents"], ["c", "d"], axis=1)
    net.Split(["joined", "fed"], ["e", "f"], axis=1)
    result = infer_shapes([net], {"a": (2, 3), "b": (2, 5), "fed": TensorSpec((2,), I64)})
    assert result.shapes["c"] == (2, 3) and result.shapes["d"] == (2, 5)
    assert result.unknown == ["e", "f"]


def test_a_shape_alone_becomes_whole_numbers_where_needed():
    _, net = small()
    result = infer_shapes([net], {"x": (2, 3), "label": (2,), "w": (4, 3), "b": (4,)})
    assert result.dtypes["label"] == np.int32 and result.dtypes["x"] == F32
    net = Net("n")
    net.Copy("label", "copy")  # known as float32 before the lookup shows what it is
    net.Gather(["table", "label"], "rows")
    result = infer_shapes([net], {"label": (2,), "table": (5, 3)})
    assert result.shapes["rows"] == (2, 3)
    assert result.dtypes["label"] == result.dtypes["copy"] == np.int32


def test_sums_pass_shapes_sideways():
    net = Net("n")
    net.Relu("a", "r")  # before the sum, and known only through it
    net.Sum(["a", "b"], "c")
    net.Sum(["c", "d"], "e")
    for known in "abcde":
        result = infer_shapes([net], {known: (2, 3)})
        assert result.shapes == dict.fromkeys("arbcde", (2, 3)) and result.unknown == []


def test_unequal_shapes_of_a_sum_name_both_blobs():
    net = Net("n")
    net.Sum(["a", "b"], "c")
    with pytest.raises(ShapeError, match=r"net 'n', operator 0 Sum \[a \(2, 3\), b \(4,\)\] -> \[c unknown\], made at"):
        infer_shapes([net], {"a": (2, 3), "b": (4,)})


def test_contradictions_from_two_sides():
    net = Net("n")
    net.Reshape("x", ["y", "old"], shape=[3, 2])
    net.Sum(["y", "z"], "s")
    with pytest.raises(ShapeError, match=r"operator 1 Sum \[y \(3, 2\), z \(2, 3\)\]"):
        infer_shapes([net], {"x": (6,), "z": (2, 3)})


def test_refused_shapes_and_arguments_say_where():
    init, net = small()
    with pytest.raises(
        ShapeError, match=r"net 'main', operator 0 FC \[x \(2, 5\), w \(4, 3\), b \(4,\)\] -> .*test_shapes"
    ):
        infer_shapes([init, net], {"x": (2, 5)})
    bad = NetDef(name="bad", op=[OperatorDef(type="Relu", input=["x", "y"], output=["z"])])
    with pytest.raises(ValueError, match=r"net 'bad', operator 0 Relu .*takes 1 input "):
        infer_shapes([bad])
    net.Proto().op[0].arg.add(name="axis", s=b"one")
    with pytest.raises(ArgumentError, match="net 'main', operator 0 FC .*'axis' must be int"):
        infer_shapes([net])


def test_versions_of_one_name():
    net = Net("n")
    net.FC(["x", "w", "b"], "y")
    net.FC(["y", "v", "c"], "z")
    net.Copy("z", "y")
    specs = {"x": (2, 3), "w": (4, 3), "b": (4,), "v": (5, 4), "c": (5,)}
    assert infer_shapes([net], specs).shapes["y"] == (2, 5)


def test_what_is_no_net_or_shape_is_refused():
    net = Net("n")
    net.Relu("x", "y")
    for shape in ("ab", 3, [2, "b"], (1.5,)):
        with pytest.raises(TypeError, match="blob 'x': blob_specs must have a TensorSpec, an array or a shape, got"):
            infer_shapes([net], {"x": shape})
    with pytest.raises(TypeError, match="infer_shapes: nets must be a list of nets, got <Net 'n', 1 operator>"):
        infer_shapes(net)
    with pytest.raises(NetError, match="expected a Net, a NetDef or its bytes, got 'n' of type str"):
        infer_shapes(["n"])


def test_strings():
    net = Net("n")
    net.Const(["a", "b"], blob_out="s")
    result = infer_shapes([net])
    assert result.shapes["s"] == (2,) and result.dtypes["s"] == STRING


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name", ["convnet", "lenet", "mlp_momentum", "dp_convnet_2", "dp_embed_outside_2", "embed_sgd"]
)
def test_inferred_shapes_are_those_of_the_run(name):
    golden = golden_data.net(name)
    feeds = golden.inputs(1)
    inferred = infer_shapes([golden.init, golden.main], feeds)
    workspace = Workspace()
    for blob, value in feeds.items():
        workspace.feed(blob, value)
    workspace.run_net_once(golden.init)
    for blob, value in golden.start_values().items():
        workspace.feed(blob, value)
    workspace.run_net_once(golden.main)
    for blob, shape in inferred.shapes.items():
        value = workspace.fetch(blob)
        if inferred.dtypes[blob] != STRING:
            assert (value.shape, value.dtype) == (shape, inferred.dtypes[blob]), blob
    assert len(inferred.shapes) > 10
    gone = set(golden.start_values()) & set(inferred.unknown)
    assert not gone, f"parameters of unknown shape: {gone}"
