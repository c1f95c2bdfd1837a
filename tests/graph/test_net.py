"""Net: operators as methods, names, external inputs and outputs, the live message."""

import pickle

import numpy as np
import pytest

from cost import cpu_seconds
from netbuilder import ModelHelper, brew
from netbuilder.graph import BlobReference, GradientSlice, NameScope, Net, Plan, execution_step, reset_names
from netbuilder.proto import PROTO_CUDA, ArgumentError, BlobError, NetDef, NetError, OperatorDef, TensorProto
from netbuilder.proto.arguments import arguments
from netbuilder.runtime import Workspace
from structure import operator_text


@pytest.fixture
def net():
    return Net("n")


def test_one_call_appends_one_operator_and_returns_references(net):
    y = net.Relu("x", "y")
    assert isinstance(y, BlobReference) and y == "y" and y.Net() is net
    assert net.op_len == 1 and operator_text(net.Proto().op[0]) == "Relu(x) -> y"
    assert net.Split(y, ["a", "b"], axis=1) == ("a", "b")


def test_names_of_outputs_as_caffe2_gives_them(net):
    with NameScope("s"):
        assert net.Relu("x") == "s/n/Relu"
        assert net.Relu("x") == "s/n/Relu_2"
        assert net.Split("x", 2) == ("s/n/Split:0", "s/n/Split:1")
        assert net.Split("x", 2) == ("s/n/Split_2:0", "s/n/Split_2:1")
        assert net.Split("x", 3) == ("s/n/Split_3:0", "s/n/Split_3:1", "s/n/Split:2")
    assert net.Relu("x") == "n/Relu"
    assert net.Relu("x") == "n/Relu_3"  # taken names are counted across scopes
    assert (net.NextName(), net.NextName(), net.NextName("Relu")) == ("n_blob_0", "n_blob_1", "n/Relu_4")


def test_next_blob(net):
    net.Relu("x", "s/b")
    assert [net.NextBlob("b"), net.NextBlob("b"), net.NextBlob("b")] == ["b", "b_auto_0", "b_auto_1"]
    with NameScope("s"):
        assert net.NextBlob("b") == "b_auto_2"
        assert [net.NextScopedBlob("b"), net.NextScopedBlob("b")] == ["s/b_auto_0", "s/b_auto_1"]
    assert [net.NextBlob(), net.NextBlob()] == ["unnamed", "unnamed_auto_0"]


def test_net_names_are_unique():
    reset_names()
    assert [str(Net("n")) for _ in range(3)] == ["n", "n_1", "n_2"]
    assert Net(NetDef(name="n")).Name() == "n_3"
    reset_names()
    assert Net("n").Name() == "n"
    with pytest.raises(TypeError, match="name_or_proto must be a string or a NetDef, got 3"):
        Net(3)


def test_print_shows_a_net_and_its_text_names_it():
    """What str gives is taken for the name where a net is looked up."""
    model = ModelHelper("shown")
    brew.relu(model, brew.conv(model, "x", "y", 1, 2, kernel=3, no_bias=True), "y")
    net = model.net
    text = f"{net}\n    y = Conv(x, y_w, kernel=3)\n    y = Relu(y)"
    assert str(net) == "%s" % net == text and f"{net}" == "{}".format(net) == net.Name()  # noqa: UP031, UP032
    assert str(Net("nothing")).startswith("nothing") and "\n" not in str(Net("nothing"))
    assert repr(net) == f"<Net {net.Name()!r}, 2 operators>"
    workspace = Workspace()
    workspace.feed("x", np.ones((1, 1, 4, 4), np.float32))
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(net)
    workspace.run_net(str(net))
    assert workspace.net(str(net)) is workspace.net(net)
    step = execution_step("step", [net])
    plan = Plan(step)
    assert step.get_net(str(net)) is net and str(step) == step.Name() and str(plan) == plan.Name()
    assert repr(step) == f"<ExecutionStep {step.Name()!r}, 1 net, 0 substeps>"
    assert repr(plan) == f"<Plan {plan.Name()!r}, 1 net, 1 step>"
    workspace.delete_net(str(net))
    assert workspace.nets() == []
    with pytest.raises(NetError, match=rf"name must be one line, got 3, beginning with '{net}'; .* net\.Name\(\)"):
        Net(str(net) + "_test")


def test_strings_and_references_as_inputs(net):
    with NameScope("s"):
        net.Sum(["a", BlobReference("b"), b"c"], BlobReference("d"))
    assert operator_text(net.Proto().op[0]) == "Sum(s/a, b, s/c) -> d"


def test_undefined_inputs_become_external(net):
    net.FC(["x", "w", "b"], "h")
    net.FC(["h", "w", "b"], "y")
    assert net.external_inputs == ["x", "w", "b"]
    assert net.BlobIsDefined("h") and net.BlobIsDefined(BlobReference("x")) and not net.BlobIsDefined("z")
    assert net.UsesBlob("h") and net.UsesBlob("x") and not net.UsesBlob("y")
    assert net.UsedBlobNames() == {"x", "w", "b", "h", "y"}
    assert net.is_external_input("x") and not net.is_external_input("h")


def test_declared_external_inputs_and_outputs(net):
    assert net.AddExternalInput("x") == "x"
    with NameScope("s"):
        assert net.AddExternalInputs("y", "z") == ["y", "z"]
        assert net.AddScopedExternalInputs("w") == "s/w"
        net.Relu("w", "o")
        net.AddScopedExternalOutputs("o")
    net.AddExternalOutput("x")
    assert net.external_inputs == ["x", "y", "z", "s/w"] and net.external_outputs == ["s/o", "x"]
    with pytest.raises(NetError, match="'x' is an external input already"):
        net.AddExternalInput("q", "x")
    assert not net.BlobIsDefined("q")
    with pytest.raises(BlobError, match="does not define blob 'oo'"):
        net.AddExternalOutput("oo")


def test_blob_references(net):
    net.Relu("x", "hidden")
    assert net.GetBlobRef("hidden").Net() is net
    with pytest.raises(LookupError, match="does not define blob 'hiden'; did you mean 'hidden'"):
        net.GetBlobRef("hiden")


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (AttributeError, "did you mean .*Relu", lambda net: net.Relux),
        (AttributeError, "did you mean .*AddExternalInput", lambda net: net.AddExternalInpt),
        (ArgumentError, "unknown argument 'axes'", lambda net: net.Softmax("new", axes=3)),
        (NetError, "takes 1 input ", lambda net: net.Softmax(["new", "newer"], "out")),
        (NetError, "may not overwrite", lambda net: net.Softmax("new", "new")),
        (TypeError, "got None", lambda net: net.Softmax(["new", None], "out")),
        (TypeError, "unexpected|got", lambda net: net.Softmax(3.5)),
    ],
)
def test_a_refused_call_leaves_the_net_as_it_was(net, error, match, call):
    net.Relu("x", "y")
    before = net.Proto().SerializeToString()
    with pytest.raises(error, match=match):
        call(net)
    assert net.Proto().SerializeToString() == before
    assert not net.BlobIsDefined("new")


@pytest.mark.parametrize(
    "call, match",
    [
        (
            lambda n: n.FC("x", "y", 1, 2),
            r"FC takes .* by name, got 1, 2 by position as well; .* use brew.fc\(model, \.\.\.\) or CNN",
        ),
        (
            lambda n: n.Conv("x", "y", 3),
            r"Conv takes .*, got 3 by position as well; .* use brew.conv\(model, .* or CNNModelHelper$",
        ),
        (lambda n: n.MaxPool("x", "y", "line", 2), "MaxPool takes .*, got 'line', 2 by position as well$"),
    ],
)
def test_arguments_by_position_are_refused(net, call, match):
    with pytest.raises(ArgumentError, match=match):
        call(net)
    assert not net.Proto().op


def test_the_message_is_live(net):
    net.Relu("x", "y")
    op = OperatorDef(type="Relu", input=["y"], output=["z"])
    net.Proto().op.append(op)
    assert net.BlobIsDefined("z")
    net.Relu("z", "u")
    assert net.external_inputs == ["x"]  # z is known to be made inside
    del net.Proto().op[1:]
    assert not net.BlobIsDefined("z") and not net.BlobIsDefined("u")
    net.Proto().external_input.append("more")
    assert net.BlobIsDefined("more")
    net.Proto().name = "renamed"
    assert net.Name() == "renamed"


def test_operators_put_in_by_hand(net):
    net.Relu("x", "y")
    net.insert_op_at_idx(OperatorDef(type="Relu", input=["a"], output=["x"]), 0)
    net.extend_ops([OperatorDef(type="Sum", input=["y", "q"], output=["z"])])
    assert [operator_text(op) for op in net.Proto().op] == ["Relu(a) -> x", "Relu(x) -> y", "Sum(y, q) -> z"]
    assert net.is_external_input("q")
    with pytest.raises(NetError, match="op_idx must be in \\[0, 3\\], the number of operators, got 7"):
        net.insert_op_at_idx(OperatorDef(), 7)


def test_from_a_message(net):
    net.Relu("x", "y")
    copy = Net(net.Proto())
    assert copy.Proto() is not net.Proto() and copy.Name() == "n_1" and net.Name() == "n"
    assert copy.BlobIsDefined("y") and copy.Relu("y", "z") == "z" and net.op_len == 1
    proto = NetDef(name="p")
    assert Net(proto, inplace=True).Proto() is proto


@pytest.mark.parametrize(
    ("value", "op_type", "args"),
    [
        ([1.5, 2], "GivenTensorFill", {"shape": [2], "values": [1.5, 2.0]}),
        (3, "GivenTensorInt64Fill", {"shape": None, "values": [3]}),
        (np.int32([[1, 2]]), "GivenTensorIntFill", {"shape": [1, 2], "values": [1, 2]}),
        (True, "ConstantFill", {"dtype": TensorProto.BOOL, "value": 1}),
        ([True, False], "GivenTensorBoolFill", {"shape": [2], "values": [1, 0]}),
        (np.float64(2.5), "GivenTensorFill", {"shape": None, "values": [2.5]}),
    ],
)
def test_constants(net, value, op_type, args):
    assert net.Const(value) == f"n/{op_type}:0"
    op = net.Proto().op[0]
    assert op.type == op_type and arguments(op) == args


def test_constants_with_name_and_type(net):
    assert net.Const([1, 2], blob_out="c", dtype=np.float32) == "c"
    assert net.Proto().op[0].type == "GivenTensorFill"
    for value in (1j, object(), [[1], [1, 2]]):
        with pytest.raises(ArgumentError, match="Const: "):
            net.Const(value)


def test_settings_of_the_whole_net(net):
    net.Relu("x", "y")
    net.RunAllOnGPU(2, use_cudnn=True)
    assert (net.Proto().device_option.device_type, net.Proto().device_option.device_id) == (PROTO_CUDA, 2)
    assert net.Proto().op[0].engine == "CUDNN"
    net.RunAllOnMKL()
    assert net.Proto().device_option.device_type == 2
    net.AddArgument("k", 3)
    net.AddArgument("k", 4)
    assert arguments(net.Proto()) == {"k": 4}
    net.set_type("dag", num_workers=3)
    assert (net.Proto().type, net.Proto().num_workers) == ("dag", 3)
    for workers in (0, "two"):
        with pytest.raises(NetError, match=f"num_workers must be a positive integer, got {workers!r}"):
            net.set_type("simple", num_workers=workers)
    with pytest.raises(NetError, match="net_type must be a string such as 'simple' or 'dag', got 5"):
        net.set_type(5)
    assert (net.Proto().type, net.Proto().num_workers) == ("dag", 3)


def test_operator_attributes_of_a_call(net):
    net.Relu("x", "y", name="first", engine="CUDNN", control_input=["c", BlobReference("d")], arg=[])
    op = net.Proto().op[0]
    assert (op.name, op.engine, op.control_input) == ("first", "CUDNN", ["c", "d"])


@pytest.mark.skipif("UnsortedSegmentMean" not in dir(Net("probe")), reason="segment operators are not registered")
def test_deduplicated_gradient_slices(net):
    slices = GradientSlice(BlobReference("i"), BlobReference("v"))
    joined = net.DeduplicateGradientSlices(slices, aggregator="mean")
    assert joined == ("n/Unique:0", "n/UnsortedSegmentMean:0")
    assert [operator_text(op) for op in net.Proto().op] == [
        "Unique(i) -> n/Unique:0, n/Unique:1; engine=SparseHash",
        "UnsortedSegmentMean(v, n/Unique:1) -> n/UnsortedSegmentMean:0",
    ]
    with pytest.raises(NetError, match="'sum' or 'mean', got 'max'"):
        net.DeduplicateGradientSlices(slices, aggregator="max")


def test_attributes_that_do_not_exist(net):
    assert hasattr(net, "Relu") and not hasattr(net, "Rleu") and not hasattr(net, "_private")
    assert "Relu" in dir(net)


def _append(count: int) -> float:
    net = Net("speed")

    def build() -> None:
        for i in range(count):
            net.Conv(["x", "w", "b"], f"y{i}", kernel=3, pad=1, stride=2)
            net.Relu(f"y{i}")

    return cpu_seconds(build) / (2 * count)


def test_appending_costs_the_same_in_a_long_net():
    _append(100)
    short, long = min(_append(200) for _ in range(3)), _append(8000)
    assert long < 8 * short


def test_attributes_of_a_net():
    net = Net("n")
    net.add_attribute("hook", 1)
    net.add_attribute("hook", 2)
    assert net.get_attributes("hook") == [1, 2] and net.get_attributes("none") == []


def test_nets_as_arguments():
    inner, net = Net("inner"), Net("n")
    inner.Relu("x", "y")
    net.If(["c", "x"], "y", then_net=inner, else_net=NetDef(name="nothing"))
    held = {arg.name: arg.n for arg in net.Proto().op[0].arg}
    assert held == {"then_net": inner.Proto(), "else_net": NetDef(name="nothing")}
    inner.Relu("y", "z")  # the operator holds a copy
    assert len(net.Proto().op[0].arg[0].n.op) == 1


def test_log_info_prints_texts_and_blobs():
    """The operators are those that Caffe2's function adds."""
    net = Net("logged")
    blob = net.ConstantFill([], "b", shape=[1], value=2.0)
    net.LogInfo("begins", blob, "ends")
    ops = [(op.type, list(op.input), list(op.output)) for op in net.Proto().op[1:]]
    assert ops == [
        ("GivenTensorStringFill", [], [f"{net.Name()}/log"]),
        ("Print", [f"{net.Name()}/log"], []),
        ("Print", ["b"], []),
        ("GivenTensorStringFill", [], [f"{net.Name()}/log_2"]),
        ("Print", [f"{net.Name()}/log_2"], []),
    ]


def test_the_last_operator_that_writes_a_blob():
    net = Net("net")
    net.ConstantFill([], "x", shape=[1], value=1.0)
    net.Relu("x", "y")
    net.Scale("x", "x", scale=2.0)
    assert net.writer_of("x").type == "Scale" and net.writer_of("y").type == "Relu" and net.writer_of("z") is None
    first, second = net.Proto().op[0], net.Proto().op[1]
    first.output[0], second.output[0] = "y", "z"  # an edit that the net is not told of
    assert net.writer_of("y").type == "ConstantFill" and net.writer_of("z").type == "Relu"
    del net.Proto().op[2]
    assert net.writer_of("x") is None


def test_whether_a_net_or_blob_has_an_attribute_is_told_without_searching_names(monkeypatch):
    def search(*_):
        raise AssertionError("similar names are searched where nobody reads the message")

    net = Net("net")
    blob = net.Copy("x", "y")
    monkeypatch.setattr("netbuilder.graph.suggestions.instead_of", search)
    monkeypatch.setattr("netbuilder.graph.blob.instead_of", search)
    assert not hasattr(net, "Coppy") and getattr(blob, "Coppy", None) is None
    ws = Workspace()
    ws.feed("x", np.ones(2, np.float32))
    ws.create_net(net)
    ws.run_net(net)
    monkeypatch.undo()
    for lacking in (net, blob):
        with pytest.raises(AttributeError, match="did you mean 'Copy'") as caught:
            lacking.Coppy  # noqa: B018
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
