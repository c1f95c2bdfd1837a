"""ONNX models under Caffe2's names: written from nets, run, and made nets again."""

import numpy as np
import pytest

from netbuilder.caffe2.python import brew, core, model_helper, workspace
from netbuilder.proto import NetError

onnx = pytest.importorskip("onnx")


@pytest.fixture
def nets():
    model = model_helper.ModelHelper("small")
    hidden = brew.relu(model, brew.fc(model, "data", "hidden", 4, 3), "hidden_relu")
    brew.softmax(model, brew.fc(model, hidden, "prediction", 3, 2), "softmax")
    model.net.AddExternalOutput(core.BlobReference("softmax", model.net))
    return model.param_init_net.Proto(), model.net.Proto()


def test_there_and_back(nets):
    from netbuilder.caffe2.python.onnx import backend, frontend

    init_net, predict_net = nets
    info = {"data": (onnx.TensorProto.FLOAT, (5, 4))}
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    workspace.RunNetOnce(init_net)
    workspace.FeedBlob("data", x)
    filled = core.Net("filled")
    for name in predict_net.external_input:
        if name != "data":
            value = workspace.FetchBlob(name)
            filled.GivenTensorFill([], name, shape=value.shape, values=value)
    model = frontend.caffe2_net_to_onnx_model(predict_net, filled.Proto(), info)
    workspace.RunNetOnce(predict_net)
    expected = workspace.FetchBlob("softmax")
    rep = backend.prepare(model, device="CPU")
    for inputs in (x, [x], {"data": x}):
        outputs = rep.run(inputs)
        np.testing.assert_allclose(outputs[0], expected, rtol=1e-5)
        assert outputs.softmax is outputs[0]
    np.testing.assert_allclose(backend.run_model(model, [x])[0], expected, rtol=1e-5)
    workspace.ResetWorkspace()
    first, second = backend.Caffe2Backend.onnx_graph_to_caffe2_net(model)
    assert [op.type for op in rep.init_net.op] == [op.type for op in first.op] and rep.predict_net == second
    workspace.RunNetOnce(first)
    workspace.FeedBlob("data", x)
    workspace.RunNetOnce(second)
    np.testing.assert_allclose(workspace.FetchBlob(second.external_output[0]), expected, rtol=1e-5)
    with pytest.raises(NetError, match=r"the model has the inputs \['data'\], got 2 arrays"):
        rep.run([x, x])


def test_refusals(nets):
    from netbuilder.caffe2.python.onnx import backend, frontend

    with pytest.raises(NetError, match=r"value_info must have the type and shape of its inputs \['data'\]"):
        frontend.caffe2_net_to_onnx_model(nets[1], nets[0])
    with pytest.raises(NetError, match="device must be 'CPU', 'CUDA' or 'CUDA:1', got 'TPU'"):
        backend.supports_device("TPU")
    assert backend.supports_device("CPU") and not backend.supports_device("CUDA:99")
