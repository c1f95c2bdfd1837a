"""Predictors in one file, as old scripts write and read them."""

import numpy as np
import pytest
from caffe2.proto import metanet_pb2
from caffe2.python import brew, core, model_helper, workspace
from caffe2.python.predictor import predictor_exporter, predictor_py_utils, serde
from caffe2.python.predictor_constants import predictor_constants

from netbuilder.proto import NetError


def save(path):
    model = model_helper.ModelHelper(name="saved")
    brew.fc(model, "x", "y", 2, 3)
    workspace.RunNetOnce(model.param_init_net)
    workspace.FeedBlob("x", np.float32([[1, 2]]))
    workspace.RunNetOnce(model.net)
    meta = predictor_exporter.PredictorExportMeta(
        predict_net=model.net, parameters=["y_w", "y_b"], inputs=["x"], outputs=["y"], shapes={"x": (1, 2)}
    )
    predictor_exporter.save_to_db("minidb", path, meta)
    return workspace.FetchBlob("y")


def test_load_and_run_as_the_trainers_do(tmp_path):
    path = str(tmp_path / "predictor.minidb")
    wanted = save(path)
    workspace.ResetWorkspace()
    meta = predictor_exporter.load_from_db(path, "minidb")
    for key in (predictor_constants.PREDICT_INIT_NET_TYPE, predictor_constants.GLOBAL_INIT_NET_TYPE):
        assert workspace.RunNetOnce(core.Net(predictor_py_utils.GetNet(meta, key)))
    workspace.FeedBlob("x", np.float32([[1, 2]]))
    workspace.RunNetOnce(predictor_py_utils.GetNet(meta, predictor_constants.PREDICT_NET_TYPE))
    np.testing.assert_array_equal(workspace.FetchBlob("y"), wanted)
    assert predictor_py_utils.GetBlobs(meta, predictor_constants.PARAMETERS_BLOB_TYPE) == ["y_w", "y_b"]


def test_prepare_prediction_net(tmp_path):
    path = str(tmp_path / "predictor.minidb")
    wanted = save(path)
    workspace.ResetWorkspace()
    net = predictor_exporter.prepare_prediction_net(path, "minidb")
    workspace.FeedBlob("x", np.float32([[1, 2]]))
    for run in (workspace.RunNet, workspace.RunNetOnce):
        run(net)
        np.testing.assert_array_equal(workspace.FetchBlob("y"), wanted)


def test_parts_of_a_meta_net():
    meta = metanet_pb2.MetaNetDef()
    predictor_py_utils.AddBlobs(meta, "b", ["x", "y"])
    predictor_py_utils.AddBlobs(meta, "b", ["z"])
    predictor_py_utils.AddBlobs(meta, "b2", ["x", "q"])
    predictor_py_utils.ReplaceBlobs(meta, "b2", ["x", "r"])
    assert predictor_py_utils.GetBlobs(meta, "b") == ["x", "y", "z"]
    assert predictor_py_utils.GetBlobsByTypePrefix(meta, "b") == ["x", "y", "z", "r"]
    assert predictor_py_utils.GetBlobs(meta, "none") == []
    with pytest.raises(NetError, match=r"no blobs under 'none', only \['b', 'b2'\]"):
        predictor_py_utils.ReplaceBlobs(meta, "none", ["a"])
    predictor_py_utils.AddNet(meta, "net", core.Net("first").Proto())
    predictor_py_utils.AddNet(meta, "net", core.Net("second").Proto())
    predictor_py_utils.AddPlan(meta, "plan", core.Plan("plan").Proto())
    assert predictor_py_utils.GetNet(meta, "net").name.startswith("first")
    assert predictor_py_utils.GetNet(meta, "ne") is None
    assert predictor_py_utils.GetPlan(meta, "plan").name.startswith("plan")
    predictor_exporter.set_model_info(meta, "project", "class", "1")
    meta.modelInfo.modelId = "33"
    argument = predictor_py_utils.GetArgumentByName(predictor_py_utils.GetNet(meta, "net"), "model_id")
    assert argument.i == 33
    again = serde.deserialize_protobuf_struct(serde.serialize_protobuf_struct(meta), metanet_pb2.MetaNetDef)
    assert again == meta
    assert predictor_py_utils.get_comp_name("a", "b") == "a_b"
    assert predictor_py_utils.get_comp_name("a", None) == "a"
    helper = predictor_exporter.get_predictor_exporter_helper("sub")
    assert helper.predict_net_name() == f"{predictor_constants.PREDICT_NET_TYPE}_sub"


def test_a_trainers_whole_net_is_saved_with_a_warning(tmp_path, caplog):
    """As Caffe2's examples save it, which name an input that no operator reads."""
    path = str(tmp_path / "trainer.minidb")
    model = model_helper.ModelHelper(name="trained")
    brew.fc(model, "data", "scores", 2, 3)
    workspace.RunNetOnce(model.param_init_net)
    weights = workspace.FetchBlob("scores_w")
    meta = predictor_exporter.PredictorExportMeta(
        predict_net=model.net.Proto(), parameters=["scores_w", "scores_b"], inputs=["[]_cpu/data"], outputs=["scores"]
    )
    assert "reads ['data'], which are neither among its inputs" in caplog.text
    assert "will not run as a predictor; make one with ExtractPredictorNet" in caplog.text
    predictor_exporter.save_to_db("minidb", path, meta)
    workspace.ResetWorkspace()
    predictor_exporter.load_from_db(path, "minidb")
    np.testing.assert_array_equal(workspace.FetchBlob("scores_w"), weights)
    with pytest.raises(NetError, match="named twice"):
        predictor_exporter.PredictorExportMeta(model.net, [], ["x", "x"], ["scores"])


def test_loaded_nets_are_on_the_device_of_the_scope_and_not_run(tmp_path):
    path = str(tmp_path / "predictor.minidb")
    net = core.Net("placed")
    net.Add(["x", "w"], "y")
    more = core.Net("more")
    more.ConstantFill([], "more_blob", shape=[1])
    workspace.ResetWorkspace()
    workspace.FeedBlob("w", np.ones(2, np.float32))
    meta = predictor_exporter.PredictorExportMeta(net.Proto(), ["w"], ["x"], ["y"], {}, global_init_net=more)
    predictor_exporter.save_to_db("minidb", path, meta)
    workspace.ResetWorkspace()
    with core.DeviceScope(core.DeviceOption(0, 1)):
        loaded = predictor_exporter.load_from_db(path, "minidb")
    assert {op.device_option.device_id for each in loaded.nets for op in each.value.op} == {1}
    assert not workspace.HasBlob("more_blob") and workspace.FetchBlob("w").tolist() == [1, 1]
    (init,) = [each.value for each in loaded.nets if "more_blob" in str(each.value)]
    workspace.RunNetOnce(init)
    assert workspace.HasBlob("more_blob")
