"""Copies of nets: clones, parts, and nets appended to nets."""

import pytest

from netbuilder.graph import BlobReference, NameScope, Net
from netbuilder.ops.core.renaming import rename_blobs
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, BlobError, DeviceOption, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import make_argument
from structure import operator_text


@pytest.fixture
def net():
    net = Net("a")
    net.set_type("dag", 3)
    x = net.AddExternalInput("x")
    with NameScope("s"):
        h = net.FC([x, "w", "b"], "h", axis=1)
        net.Relu(h, h)
        q = net.Relu(h)
        net.AddExternalOutput(net.Softmax(h, "y", control_input=q))
    return net


def texts(net) -> list[str]:
    return [operator_text(op) for op in net.Proto().op]


def test_clone_is_equal_but_for_the_name(net):
    copy = net.Clone("a")
    assert copy.Name() == "a_1"
    copy.Proto().name = "a"
    assert copy.Proto() == net.Proto()
    copy.Relu("x", "z")
    assert net.op_len == 4


def test_clone_renames_inputs_outputs_controls_and_lists(net):
    copy = net.Clone(
        "c", blob_remap={BlobReference("x"): "xx", "s/h": "hh", "s/a/Relu": "q", "s/y": BlobReference("yy")}
    )
    assert texts(copy) == [
        "FC(xx, s/w, s/b) -> hh; axis=1",
        "Relu(hh) -> hh",
        "Relu(hh) -> q",
        "Softmax(hh) -> yy; after q",
    ]
    assert copy.external_inputs == ["xx", "s/w", "s/b"] and copy.external_outputs == ["yy"]


def test_clone_of_some_operators(net):
    copy = net.Clone("c", op_id_mask=[0, 2])
    assert texts(copy) == ["FC(x, s/w, s/b) -> s/h; axis=1", "Relu(s/h) -> s/a/Relu"]
    assert copy.external_outputs == ["s/y"] and copy.Proto().type == "dag" and copy.Proto().num_workers == 3
    fitting = net.Clone("c", op_id_mask=[1, 2], update_external_list=True)
    assert fitting.external_inputs == ["s/h"] and fitting.external_outputs == ["s/a/Relu"]
    with pytest.raises(NetError, match=r"cannot copy operators \[7\]; it has operators 0 to 3"):
        net.Clone("c", op_id_mask=[1, 7])


def test_clone_calls_functions_per_operator_type(net):
    seen = []
    copy = net.Clone("c", {"x": "xx"}, remap_funcs={"FC": lambda op, *rest: seen.append((op.input[0], *rest))})
    assert seen == [("xx", "c/", {"x": "xx"})] and copy.op_len == 4


def _holder() -> NetDef:
    inner = NetDef(name="inner", external_input=["x", "k"], external_output=["y"])
    inner.op.add(type="Sum", input=["x", "k"], output=["t"], control_input=["k"])
    inner.op.add(type="Relu", input=["t"], output=["y"])
    net = NetDef(name="holder", external_input=["x", "cond"])
    op = net.op.add(type="If", input=["cond", "x"], output=["y"])
    op.arg.append(make_argument("then_net", inner))
    op.arg.append(make_argument("more", [inner]))
    return net


def test_renaming_reaches_into_held_nets():
    net = _holder()
    rename_blobs(net, {"x": "xx", "k": "kk", "y": "yy"})
    assert (net.op[0].input, net.op[0].output, net.external_input) == (["cond", "xx"], ["yy"], ["xx", "cond"])
    for inner in (net.op[0].arg[0].n, net.op[0].arg[1].nets[0]):
        assert (inner.external_input, inner.external_output) == (["xx", "kk"], ["yy"])
        assert [operator_text(op) for op in inner.op] == ["Sum(xx, kk) -> t; after kk", "Relu(t) -> yy"]


@pytest.mark.parametrize(
    ("inputs", "outputs", "operators", "external"),
    [
        (["x"], ["s/y"], ["FC(x, s/w, s/b) -> p/s/h; axis=1", "Relu(p/s/h) -> p/s/h", "Softmax(p/s/h) -> p/s/y"],
         ["x", "s/w", "s/b"]),
        ({"x": "X2"}, {"s/y": "Y2"},
         ["FC(X2, s/w, s/b) -> p/s/h; axis=1", "Relu(p/s/h) -> p/s/h", "Softmax(p/s/h) -> Y2"], ["X2", "s/w", "s/b"]),
        (["s/h"], ["s/y"], ["Softmax(s/h) -> p/s/y"], ["s/h"]),
        ("s/b", "s/h", ["FC(x, s/w, s/b) -> p/s/h; axis=1", "Relu(p/s/h) -> p/s/h"], ["s/b", "x", "s/w"]),
    ],
)  # fmt: skip
def test_partial_clone(net, inputs, outputs, operators, external):
    part, results = net.ClonePartial("p", inputs, outputs)
    assert texts(part) == operators
    assert part.external_inputs == external
    assert results == part.external_outputs == [operators[-1].split("-> ")[1].split(";")[0]]
    assert net.op_len == 4


def test_partial_clone_of_what_is_not_there(net):
    with pytest.raises(NetError, match=r"cannot compute \['s/z'\]"):
        net.ClonePartial("p", ["x"], ["s/z"])


def test_append(net):
    other = Net("m")
    other.Sum(["s/y", "q"], "z")
    other.AddExternalOutput("z")
    assert net.AppendNet(other) is net
    assert texts(net)[-1] == "Sum(s/y, q) -> z"
    assert net.external_inputs == ["x", "s/w", "s/b", "q"]  # s/y is made in the net
    assert net.external_outputs == ["s/y", "z"]
    assert other.op_len == 1


def test_append_on_a_device():
    net, other = Net("n"), Net(_holder())
    device = DeviceOption(device_type=PROTO_CUDA, device_id=3)
    net.AppendNet(other, device)
    assert net.Proto().op[0].device_option == device
    assert net.Proto().op[0].arg[0].n.op[1].device_option == device
    assert not other.Proto().op[0].HasField("device_option")


def test_append_into_a_scope_renames_everything_once_and_sets_the_device():
    net, other = Net("n"), Net(_holder())
    other.Relu("cpu_0/v", "u", control_input="y")
    device = DeviceOption(device_type=PROTO_CPU, device_id=0)
    net.AppendNet(other, device, scope="cpu_0")
    assert texts(net)[1] == "Relu(cpu_0/v) -> cpu_0/u; after cpu_0/y"
    assert net.external_inputs == ["cpu_0/x", "cpu_0/cond", "cpu_0/v"]
    assert operator_text(net.Proto().op[0].arg[0].n.op[0]) == "Sum(cpu_0/x, cpu_0/k) -> cpu_0/t; after cpu_0/k"
    assert net.Proto().op[1].HasField("device_option")


def test_append_what_is_no_net(net):
    before = net.Proto().SerializeToString()
    with pytest.raises(TypeError, match="net a: AppendNet: net must be a Net or NetDef, got 'other'"):
        net.AppendNet("other")
    with pytest.raises(TypeError, match="device_option must be a DeviceOption, got 1"):
        net.AppendNet(Net("other"), 1)
    assert net.Proto().SerializeToString() == before


def test_append_to_itself(net):
    net.AppendNet(net)
    assert texts(net)[:4] == texts(net)[4:]


def test_appended_messages_and_later_lookups(net):
    net.AppendNet(NetDef(op=[OperatorDef(type="Relu", input=["s/y"], output=["z"])]))
    assert net.GetBlobRef("z") == "z"
    with pytest.raises(BlobError):
        net.GetBlobRef("zz")


def test_external_outputs_of_some_operators():
    """The declared outputs that are written, and unread blobs; of a blob written twice, the last version."""
    net = Net("chain")
    for read, written in (("a", "b"), ("b", "c"), ("c", "c"), ("b", "d")):
        net.Relu(read, written)
    net.AddExternalOutput("b", "d")
    outputs = [
        net.Clone("part", op_id_mask=mask, update_external_list=True).external_outputs
        for mask in ([0], [0, 1], [0, 1, 2], [1, 2, 3])
    ]
    assert outputs == [["b"], ["b", "c"], ["b", "c"], ["d", "c"]]
