"""onnx.workspace, onnx.helper and onnx.backend_rep under Caffe2's names."""

import numpy as np
import pytest

from netbuilder.caffe2.python import core, workspace
from netbuilder.caffe2.python.onnx import helper
from netbuilder.caffe2.python.onnx.backend_rep import Caffe2Rep
from netbuilder.caffe2.python.onnx.workspace import Workspace
from netbuilder.proto import NetDef, NetError, ParseError
from netbuilder.runtime.execute import default


@pytest.fixture
def nets():
    """y = relu(x w), with w filled."""
    init_net = NetDef(name="init", op=[core.CreateOperator("GivenTensorFill", [], ["w"], shape=[2, 2],
                                                           values=[1.0, 2.0, 3.0, -4.0])])  # fmt: skip
    net = NetDef(name="net", external_input=["x", "w"], external_output=["y/out"])
    net.op.extend([core.CreateOperator("MatMul", ["x", "w"], ["xw"]), core.CreateOperator("Relu", ["xw"], ["y/out"])])
    return init_net, net


X, Y = np.float32([[1, 1]]), [[4, 0]]


def test_a_workspace_of_its_own():
    ws, before = Workspace(), workspace.CurrentWorkspace()
    workspace.FeedBlob("x", np.float32([7]))
    ws.FeedBlob("x", np.float32([1, -2]))
    ws.RunOperatorOnce(core.CreateOperator("Relu", ["x"], ["y"]))
    assert ws.FetchBlob("y").tolist() == [1, 0] and workspace.FetchBlob("x").tolist() == [7]
    with ws, ws:
        assert workspace.CurrentWorkspace() == ws.workspace_id and sorted(workspace.Blobs()) == ["x", "y"]
    assert workspace.CurrentWorkspace() == before and not workspace.HasBlob("y")
    with pytest.raises(NetError), ws:
        workspace.RunNet("no such net")
    assert workspace.CurrentWorkspace() == before
    with pytest.raises(AttributeError, match="no_such_function"):
        ws.no_such_function()


def test_a_workspace_goes_with_its_object():
    ws = Workspace()
    ws.FeedBlob("x", X)
    name = ws.workspace_id
    assert name in default.names()
    del ws
    assert name not in default.names()


def test_operators_and_nets(nets):
    op = core.CreateOperator("Sub", ["a", "b"], ["c"])
    for inputs in ([X, 2 * X], {"a": X, "b": 2 * X}):
        ws, outputs = helper.c2_native_run_op(op, inputs)
        assert outputs.c.tolist() == [[-1, -1]] and ws.FetchBlob("c").tolist() == [[-1, -1]]
    with pytest.raises(NetError, match=r"Sub has the inputs \['a', 'b'\], got 1 arrays"):
        helper.c2_native_run_op(op, [X])
    for inputs in ([X], {"x": X}, [X, np.float32([[1, 2], [3, -4]])]):
        ws, outputs = helper.c2_native_run_net(*nets, inputs)
        assert outputs[0].tolist() == outputs["y/out"].tolist() == outputs._0.tolist() == Y
        assert ws.FetchBlob("xw").tolist() == [[4, -2]]
    assert helper.c2_native_run_net(None, nets[1], [X, np.eye(2, dtype=np.float32)])[1][0].tolist() == [[1, 1]]
    with pytest.raises(NetError, match=r"got 3 arrays"):
        helper.c2_native_run_net(*nets, [X, X, X])


def test_files(nets, tmp_path):
    helper.save_caffe2_net(nets[1], tmp_path / "net.pb", output_txt=True)
    assert helper.load_caffe2_net(tmp_path / "net.pb") == nets[1]
    assert 'type: "MatMul"' in (tmp_path / "net.pbtxt").read_text(encoding="utf-8")
    (tmp_path / "net.pb").write_bytes(b"no net")
    with pytest.raises(ParseError, match=r"net\.pb"):
        helper.load_caffe2_net(tmp_path / "net.pb")


def test_times(nets, caplog):
    init_net, net = nets
    init_net.op.append(core.CreateOperator("ConstantFill", [], ["x"], shape=[1, 2], value=1.0))
    assert 0 < helper.benchmark_caffe2_model(init_net, net, 1, 2) < 1000
    calls = []
    with caplog.at_level("INFO"):
        assert 0 < helper.benchmark_pytorch_model(lambda *inputs: calls.append(inputs), [X, X], False, 1, 2) < 1000
    assert len(calls) == 3 and "ms" in caplog.text


def test_nets_of_a_model(nets):
    ws = Workspace()
    rep = Caffe2Rep(*nets, ws, ["x"])
    for inputs in (X, [X], {"x": X}):
        assert rep.run(inputs)[0].tolist() == Y
    ws.FeedBlob("w", np.eye(2, dtype=np.float32))
    assert rep.run(X)["y/out"].tolist() == [[1, 1]]  # the init net has run only once
    assert rep.nets_created and rep.ran_init_net and rep.predict_net is nets[1]
    with pytest.raises(NetError, match=r"the model has the inputs \['x'\], got \['z'\]"):
        rep.run({"z": X})
    with pytest.raises(NetError, match=r"the model has the inputs \['x'\], got 2 arrays"):
        rep.run([X, X])
