"""The module ``workspace``: what its functions return and raise, compared with Caffe2's."""

import os

import numpy as np
import pytest

from netbuilder.caffe2.engine_preferences import engine_preferences
from netbuilder.caffe2.proto import caffe2_pb2
from netbuilder.caffe2.python import build, core, utils, workspace
from netbuilder.proto import BlobError, DeviceError, NetError, ParseError


@pytest.fixture
def net():
    net = core.Net("simple")
    net.ConstantFill([], "c", shape=[2], value=1.0)
    net.Relu("c", "d")
    return net


class TestBlobs:
    @pytest.mark.parametrize(
        "value, want",
        [
            (np.float32([[1, 2]]), np.float32([[1, 2]])),
            (np.array(3.0), np.array(3.0)),
            (np.array(["a", "bb"]), np.array([b"a", b"bb"], object)),
            ("abc", b"abc"),
            (b"abc", b"abc"),
            (np.array(["a", b"bb"], object), np.array([b"a", b"bb"], object)),
            (utils.NumpyArrayToCaffe2Tensor(np.int64([1, 2])), np.int64([1, 2])),
        ],
    )
    def test_what_is_fed_is_fetched(self, value, want):
        assert workspace.FeedBlob("x", value) is True
        got = workspace.FetchBlob("x")
        assert np.array_equal(got, want) and type(got) is type(want)
        if isinstance(want, np.ndarray):
            assert got.dtype == want.dtype

    def test_names_may_be_references(self):
        x = core.BlobReference("scope/x")
        workspace.FeedBlob(x, np.zeros(1))
        assert workspace.HasBlob("scope/x") and workspace.HasBlob(x) and workspace.FetchBlobs([x, "scope/x"])
        assert workspace.StringifyBlobName(x) == workspace.StringifyBlobName("scope/x") == "scope/x"
        with pytest.raises(TypeError, match="a blob must be a BlobReference or a string"):
            workspace.FeedBlob(3, np.zeros(1))

    def test_what_is_not_there(self):
        for call in (workspace.FetchBlob, workspace.ResetBlob, workspace.RemoveBlob, workspace.SerializeBlob):
            with pytest.raises(RuntimeError, match="no blob 'nowhere' in the workspace"):
                call("nowhere")
        assert not workspace.HasBlob("nowhere")

    def test_the_mapping(self):
        workspace.blobs["x"] = np.ones(2)
        assert "x" in workspace.blobs and list(workspace.blobs) == ["x"] and len(workspace.blobs) == 1
        assert workspace.blobs["x"].tolist() == [1, 1] and workspace.blobs.get("y", 5) == 5
        with pytest.raises(RuntimeError, match="no blob 'y'"):
            workspace.blobs["y"]
        del workspace.blobs["x"]
        assert workspace.Blobs() == []

    def test_empty_blobs(self):
        assert workspace.CreateBlob("x") is workspace.CreateBlob("x") is True
        with pytest.raises(BlobError, match="blob 'x' holds no value yet"):
            workspace.FetchBlob("x")
        workspace.FeedBlob("x", np.ones(1))
        workspace.ResetBlob("x")
        assert workspace.HasBlob("x")
        with pytest.raises(BlobError, match="holds no value yet"):
            workspace.FetchBlob("x")

    def test_the_device_scope_says_where(self):
        with core.DeviceScope(core.DeviceOption(caffe2_pb2.CPU, 3)):
            assert workspace.FeedBlob("x", np.ones(2))
        assert workspace.FetchBlob("x").tolist() == [1, 1]
        if workspace.NumCudaDevices() == 0:
            with pytest.raises(DeviceError, match="no NVIDIA GPU can be used"):
                workspace.FeedBlob("x", np.ones(2), core.DeviceOption(caffe2_pb2.CUDA, 0))

    @pytest.mark.parametrize("value", [np.float16([[1, 2]]), np.array(4), np.array(["a", "b"]), "text"])
    def test_records(self, value):
        workspace.FeedBlob("x", value)
        record = workspace.SerializeBlob("x")
        blob = caffe2_pb2.BlobProto.FromString(record)
        assert (blob.name, blob.type) == ("x", "Tensor")
        assert workspace.DeserializeBlob("y", record) is None
        assert np.array_equal(workspace.FetchBlob("y"), workspace.FetchBlob("x"))

    def test_records_of_other_things(self):
        workspace.RunOperatorOnce(core.CreateOperator("CreateCounter", [], ["counter"], init_count=7))
        workspace.DeserializeBlob("again", workspace.SerializeBlob("counter"))
        workspace.RunOperatorOnce(core.CreateOperator("CountUp", ["again"], ["count"]))
        assert workspace.FetchBlob("count") == 7
        workspace.RunOperatorOnce(core.CreateOperator("CreateAtomicBool", [], ["flag"]))
        with pytest.raises(BlobError, match="blob 'flag' holds .* cannot be serialized"):
            workspace.SerializeBlob("flag")
        with pytest.raises(ParseError, match="the bytes for blob 'y'"):
            workspace.DeserializeBlob("y", b"\xff\xff")
        with pytest.raises(NetError, match="records of type 'other' cannot be deserialized"):
            workspace.DeserializeBlob("y", caffe2_pb2.BlobProto(name="y", type="other").SerializeToString())

    def test_sizes(self):
        workspace.FeedBlob("x", np.ones((3, 2), np.float32))
        assert workspace.GetBlobSizeBytes("x") == 24


class TestNets:
    def test_created_and_run(self, net):
        assert workspace.CreateNet(net) is True
        assert workspace.RunNet(net) and workspace.RunNet(net.Proto().name, 3) and workspace.RunNet(net.Proto())
        assert workspace.RunNet(str(net))
        assert workspace.FetchBlob("d").tolist() == [1, 1]
        with pytest.raises(RuntimeError, match=f"net '{net}' exists already; give overwrite=True"):
            workspace.CreateNet(net)
        assert workspace.CreateNet(net, True) and workspace.C.nets() == [net.Name()]

    def test_run_once_in_every_form(self, net):
        for form in (net, net.Proto(), net.Proto().SerializeToString()):
            workspace.ResetWorkspace()
            assert workspace.RunNetOnce(form) is True
            assert workspace.FetchBlob("d").tolist() == [1, 1] and workspace.C.nets() == []

    def test_inputs_have_to_be_there(self):
        net = core.Net("reads")
        net.Relu("missing", "y")
        with pytest.raises(
            RuntimeError, match=r"net 'reads.*' reads \['missing'\], which neither it nor the workspace provides"
        ):
            workspace.CreateNet(net)
        near = core.Net("near")
        near.Relu("dta", "hidden")
        near.Relu("hiden", "y")
        workspace.FeedBlob("data", np.ones(2, np.float32))
        with pytest.raises(RuntimeError, match=r"\['dta', 'hiden'\], .*at .*test_workspace.*did you mean 'data'\?"):
            workspace.CreateNet(near)
        assert workspace.CreateNet(net, input_blobs=["missing"]) and workspace.HasBlob("missing")
        with pytest.raises(RuntimeError, match="missing"):
            workspace.RunNetOnce(net)

    def test_failures(self, caplog):
        net = core.Net("fails")
        net.MatMul(["a", "b"], "c")
        workspace.FeedBlob("a", np.ones(2, np.float32))
        workspace.FeedBlob("b", np.ones((5, 5), np.float32))
        workspace.CreateNet(net)
        for call in (lambda: workspace.RunNet(net), lambda: workspace.RunNetOnce(net)):
            with pytest.raises(RuntimeError, match="MatMul"):
                call()
        assert workspace.RunNet(net, 1, True) is False
        assert "MatMul" in caplog.text
        for allow_fail in (False, True):
            with pytest.raises(RuntimeError, match="no net 'never' in the workspace; create it first"):
                workspace.RunNet("never", 1, allow_fail)
        with pytest.raises(NetError, match="the net must be a string, a Net or a NetDef, got 3"):
            workspace.RunNet(3)

    def test_operators(self):
        workspace.FeedBlob("x", np.float32([-1, 2]))
        op = core.CreateOperator("Relu", ["x"], ["y"])
        assert workspace.RunOperatorOnce(op) and workspace.RunOperatorOnce(op.SerializeToString())
        assert workspace.RunOperatorsOnce([op, op]) and workspace.RunOperatorMultiple(op, 3)
        assert workspace.FetchBlob("y").tolist() == [0, 2]
        with pytest.raises(RuntimeError, match="nowhere"):
            workspace.RunOperatorOnce(core.CreateOperator("Relu", ["nowhere"], ["y"]))

    def test_plans(self, net):
        plan = core.Plan("plan")
        plan.AddStep(core.execution_step("step", net, 2))
        for form in (plan, plan.Proto(), plan.Proto().SerializeToString(), core.execution_step("one", net)):
            workspace.ResetWorkspace()
            assert workspace.RunPlan(form) is True
            assert workspace.FetchBlob("d").tolist() == [1, 1]

    def test_bytes_and_names(self, net):
        assert workspace.StringifyProto(net) == net.Proto().SerializeToString() == workspace.StringifyProto(net.Proto())
        assert workspace.StringifyProto("abc") == "abc" and workspace.StringifyProto(b"abc") == b"abc"
        with pytest.raises(ValueError, match="StringifyProto: the object must be a message"):
            workspace.StringifyProto(3)
        assert {workspace.GetNetName(form) for form in (net, net.Proto(), str(net), net.Name())} == {net.Name()}
        assert workspace.StringifyNetName("a") == workspace.GetNetName(b"a") == "a"

    def test_benchmark(self, net):
        workspace.CreateNet(net)
        times = workspace.BenchmarkNet(net.Name(), 1, 2, True)
        assert len(times) == 3 and min(times) > 0
        assert workspace.BenchmarkNet(net.Name(), 0, 1, False)[1:] == [0, 0]
        assert workspace.BenchmarkNetOnce(net.Name()) > 0

    def test_costs(self):
        workspace.FeedBlob("x", np.ones((4, 3), np.float32))
        workspace.FeedBlob("w", np.ones((2, 3), np.float32))
        workspace.FeedBlob("b", np.ones(2, np.float32))
        op = core.CreateOperator("FC", ["x", "w", "b"], ["y"])
        for form in (op, op.SerializeToString()):
            cost = workspace.GetOperatorCost(form, ["x", "w", "b"])
            assert cost[1:] == (4 * 4 * 2, 4 * (12 + 6 + 2)) and cost.flops >= 2 * 4 * 3 * 2
        with pytest.raises(BlobError, match="no blob 'nowhere'"):
            workspace.GetOperatorCost(core.CreateOperator("Relu", ["nowhere"], ["y"]), ["nowhere"])


class TestShapes:
    def test_from_the_workspace(self, net):
        workspace.RunNetOnce(net)
        workspace.FeedBlob("other", np.int64([[1, 2]]))
        for call in (lambda: workspace.InferShapesAndTypes([net]), lambda: workspace.InferShapesAndTypes([net], None)):
            shapes, types = call()
            assert shapes == {"c": [2], "d": [2], "other": [1, 2]}
            assert types == {"c": core.DataType.FLOAT, "d": core.DataType.FLOAT, "other": core.DataType.INT64}

    def test_from_given_shapes(self):
        net = core.Net("given")
        net.Relu("x", "y")
        shapes, types = workspace.InferShapesAndTypes([net.Proto()], {"x": [2, 3]}, nets_proto=True)
        assert (shapes, types["y"]) == ({"x": [2, 3], "y": [2, 3]}, core.DataType.FLOAT)
        _, types = workspace.InferShapesAndTypes([net], {"x": [2, 3]}, blob_types={"x": core.DataType.DOUBLE})
        assert types == {"x": core.DataType.DOUBLE, "y": core.DataType.DOUBLE}
        assert workspace.InferShapesAndTypes([net], {}) == ({}, {})
        with pytest.raises(NetError, match="blob_types needs the shapes"):
            workspace.InferShapesAndTypes([net], blob_types={"x": 1})


class TestSeveral:
    def test_switching(self, net):
        workspace.FeedBlob("x", np.ones(1))
        with pytest.raises(RuntimeError, match="no workspace 'other'; .*create=True"):
            workspace.SwitchWorkspace("other")
        assert workspace.SwitchWorkspace("other", True) is None
        assert workspace.CurrentWorkspace() == "other" and workspace.Blobs() == []
        workspace.RunNetOnce(net)
        workspace.SwitchWorkspace("default")
        assert workspace.Blobs() == ["x"] and {"default", "other"} <= set(workspace.Workspaces())

    def test_a_guard(self):
        with pytest.raises(KeyError), workspace.WorkspaceGuard("guarded"):
            assert workspace.CurrentWorkspace() == "guarded"
            raise KeyError
        assert workspace.CurrentWorkspace() == "default"

    def test_reset(self, net, tmp_path):
        workspace.CreateNet(net)
        assert workspace.ResetWorkspace() is True
        assert workspace.Blobs() == workspace.C.nets() == [] and workspace.RootFolder() == "."
        workspace.ResetWorkspace(tmp_path / "new" / "folder")
        assert workspace.RootFolder() == str(tmp_path / "new" / "folder") and (tmp_path / "new" / "folder").is_dir()


class TestImmediate:
    def test_operators_run_as_they_are_added(self):
        workspace.StartImmediate(i_know=True)
        assert workspace.IsImmediate() and workspace.FeedImmediate("x", np.float32([-1, 2]))
        net = core.Net("immediate")
        net.Relu("x", "y")
        assert workspace.FetchImmediate("y").tolist() == [0, 2] and workspace.ImmediateBlobs() == ["x", "y"]
        assert not workspace.HasBlob("y")
        with pytest.raises(RuntimeError, match="nowhere"):
            net.Relu("nowhere", "z")
        workspace.StopImmediate()
        net.Relu("nowhere", "w")
        assert not workspace.IsImmediate() and workspace.ImmediateBlobs() == []

    def test_a_reminder(self, caplog):
        workspace.StartImmediate()
        assert "operators run when they are created or added" in caplog.text

    def test_single_operators_run_too(self):
        workspace.StartImmediate(i_know=True)
        workspace.FeedImmediate("x", np.float32([-1, 2]))
        relu = core.CreateOperator("Relu", "x", "y")
        assert workspace.FetchImmediate("y").tolist() == [0, 2] and not workspace.HasBlob("y")
        workspace.StopImmediate()
        core.CreateOperator("Relu", "x", "w")
        workspace.StartImmediate(i_know=True)
        core.Net("immediate").Proto().op.extend([relu])
        assert workspace.ImmediateBlobs() == []

    def test_a_second_start_forgets_the_blobs_of_the_first(self):
        workspace.StartImmediate(i_know=True)
        core.CreateOperator("ConstantFill", [], "x", shape=[2])
        folder = workspace._immediate_root_folder
        workspace.StartImmediate(i_know=True)
        assert workspace.ImmediateBlobs() == [] and not os.path.exists(folder)
        assert workspace.IsImmediate() and os.path.isdir(workspace._immediate_root_folder)


class TestDevices:
    def test_what_is_there(self):
        gpus = workspace.NumCudaDevices()
        assert workspace.NumGpuDevices() == workspace.C.num_cuda_devices() == gpus
        assert workspace.has_gpu_support is workspace.has_cuda_support is workspace.C.has_cuda_support is (gpus > 0)
        assert workspace.has_hip_support is workspace.is_asan is False
        assert workspace.GetGpuPeerAccessPattern().shape in ((0,), (gpus, gpus))
        assert isinstance(workspace.C.has_mkldnn, bool) and workspace.GpuDeviceType == caffe2_pb2.CUDA

    def test_operators(self):
        assert "Conv" in workspace.RegisteredOperators() and "minidb" in workspace.C.registered_dbs()
        assert "Softmax" in workspace.C.nearby_opnames("Sofmax")

    def test_flags(self):
        before = core.GetGlobalInitArgs()
        assert core.GlobalInit(["caffe2", "--caffe2_log_level=0"]) is None and workspace.GlobalInit(["caffe2"]) is None
        assert core.GetGlobalInitArgs() == [*before, "--caffe2_log_level=0"]
        with pytest.raises(TypeError, match="GlobalInit needs the program's name and its flags in a list"):
            core.GlobalInit("--caffe2_log_level=0")


def test_a_net_is_not_overwritten_unless_asked(net):
    assert workspace.C.create_net(net.Proto().SerializeToString())
    with pytest.raises(RuntimeError, match="exists already"):
        workspace.C.create_net(net.Proto().SerializeToString())
    assert workspace.C.create_net(net.Proto().SerializeToString(), overwrite=True)


class TestObjects:
    def test_a_workspace_of_its_own(self, net):
        ws = workspace.C.Workspace()
        assert ws.create_blob("x").feed(np.float32([-1, 2])) and ws.feed_blob("z", np.ones(1))
        ws.run(core.CreateOperator("Relu", ["x"], ["y"]))
        ws.run(net)
        created = ws.create_net(net)
        created.run()
        ws.run(core.Plan(core.execution_step("step", net)))
        assert ws.blobs["y"].fetch().tolist() == [0, 2] == ws.fetch_blob("y").tolist()
        assert set(ws.blobs) == {"x", "y", "z", "c", "d"} == set(ws.blobs()) and len(ws.blobs) == 5
        assert list(ws.nets) == [net.Name()] and ws.has_blob("z")
        ws.remove_blob("z")
        ws.remove_blob("z")
        assert not ws.has_blob("z") and "z" not in ws.blobs and workspace.Blobs() == []

    def test_refusals(self, net):
        ws = workspace.C.Workspace()
        ws.create_net(net)
        with pytest.raises(RuntimeError, match="exists already"):
            ws.create_net(net)
        with pytest.raises(KeyError, match="^no blob 'nowhere' in the workspace"):
            ws.blobs["nowhere"]
        with pytest.raises(ValueError, match="the object must be an operator, a net or a plan, got 3"):
            ws.run(3)
        assert not hasattr(ws, "nothing")

    def test_the_current_one(self):
        workspace.FeedBlob("x", np.ones(2))
        current = workspace.C.Workspace.current
        assert current.blobs["x"].fetch().tolist() == [1, 1] and current.fetch("x").tolist() == [1, 1]

    def test_blobs(self):
        ws = workspace.C.Workspace()
        blob = ws.create_blob("x")
        assert not blob.is_tensor() and repr(blob) == "<Blob 'x'>"
        with pytest.raises(BlobError, match="holds no tensor"):
            blob.tensor()
        blob.feed(np.float32([[1, 2]]))
        assert blob.is_tensor() and blob.tensor().shape == (1, 2) and blob.tensor().data.tolist() == [[1, 2]]
        copy = ws.create_blob("copy")
        copy.deserialize(blob.serialize("any"))
        assert copy.fetch().tolist() == [[1, 2]]

    def test_tensors(self):
        tensor = workspace.C.Workspace().create_blob("x").as_tensor()
        tensor.init([2, 2], core.DataType.INT32)
        assert tensor.fetch().tolist() == [[0, 0], [0, 0]] and tensor.data.dtype == np.int32
        tensor.feed(np.arange(4))
        tensor.reshape([4])
        assert tensor.data.tolist() == [0, 1, 2, 3] and tensor.shape == (4,)
        tensor.data[1] = 7
        assert tensor.fetch().tolist() == [0, 7, 2, 3]
        tensor.reshape([3])
        assert tensor.data.tolist() == [0, 0, 0]

    def test_python_operators_see_the_workspace_by_both_kinds_of_names(self):
        seen = {}

        def function(inputs, outputs, ws):
            seen["names"] = sorted(ws.blobs), ws.blobs()
            ws.create_blob("side").feed(inputs[0].data + 1)
            ws.run(core.CreateOperator("Relu", ["side"], ["side"]))
            seen["values"] = ws.fetch("side").tolist(), ws.blobs["side"].fetch().tolist()
            outputs[0].feed(inputs[0].data)

        workspace.FeedBlob("x", np.float32([-3, 2]))
        net = core.Net("sees")
        net.Python(function, pass_workspace=True)(["x"], ["y"])
        workspace.RunNetOnce(net)
        assert seen["names"][0] == seen["names"][1] and seen["values"] == ([0, 3], [0, 3])
        workspace.RunOperatorOnce(core.CreatePythonOperator(function, ["x"], ["y2"], pass_workspace=True))
        assert workspace.FetchBlob("y2").tolist() == [-3, 2]


class TestPredictor:
    def test_by_position_and_by_name(self):
        init, net = core.Net("init"), core.Net("predict")
        init.GivenTensorFill([], "w", shape=[1, 2], values=[1.0, 2.0])
        net.Add(["x", "w"], "y")
        net.AddExternalOutput("y")
        predictor = workspace.Predictor(init.Proto().SerializeToString(), net)
        for inputs in ([np.float32([[1, 2]])], {"x": np.float32([[1, 2]])}):
            assert [array.tolist() for array in predictor.run(inputs)] == [[[2, 4]]]
        assert predictor.run([])[0].tolist() == [[2, 4]]
        with pytest.raises(NetError, match=r"'init_net' is given as the init net, .* only fills blobs; swap them"):
            workspace.Predictor(net, init)
        with pytest.raises(NetError, match=r"net 'predict.*' has the inputs \['x', 'w'\], got 3 arrays"):
            predictor.run([1, 2, 3])
        with pytest.raises(NetError, match=r"got values for \['z'\]"):
            predictor.run({"z": np.ones(1)})
        with pytest.raises(NetError, match=r"got values for \['X'\]; did you mean 'x'\?"):
            predictor.run({"X": np.ones(1)})
        with pytest.raises(NetError, match=r"inputs must be a list of arrays, .* got a ndarray; give \[array\]"):
            predictor.run(np.float32([[1, 2]]))
        with pytest.raises(NetError, match=r"init_net must be .* of a file give the bytes: open\('init.pb', 'rb'\)"):
            workspace.Predictor("init.pb", net)

    def test_what_the_init_net_fills_may_be_fed(self):
        init, net = core.Net("init"), core.Net("predict")
        for name in "xw":
            init.ConstantFill([], name, shape=[2], value=0.0)
        net.Add(["x", "w"], "y")
        net.AddExternalOutput("y")
        predictor = workspace.Predictor(init, net)
        assert predictor.run([np.float32([1, 2]), np.float32([3, 4])])[0].tolist() == [4, 6]
        assert predictor.run({"w": np.float32([0, 0])})[0].tolist() == [1, 2]


def test_a_plan_in_the_background(net):
    plan = core.Plan("background")
    plan.AddStep(core.ExecutionStep("step", net))
    running = workspace.RunPlanInBackground(plan)
    assert running.is_succeeded() and running.is_done() and running.error is None
    assert workspace.FetchBlob("d").tolist() == [1, 1]
    failing = core.Net("failing")
    failing.Relu("no_such_blob", "y")
    running = workspace.RunPlanInBackground(core.ExecutionStep("step", failing))
    assert not running.is_succeeded() and "no_such_blob" in str(running.error)


def test_the_folder_of_the_immediate_mode():
    assert workspace._immediate_root_folder == ""
    workspace.StartImmediate(i_know=True)
    folder = workspace._immediate_root_folder
    assert os.path.isdir(folder)
    workspace.StopImmediate()
    assert workspace._immediate_root_folder == "" and not os.path.exists(folder)


def test_a_workspace_object_creates_nets_whose_inputs_it_has(net):
    own = workspace.C.Workspace()
    with pytest.raises(TypeError, match="the net must be a Net or NetDef, got 'simple'"):
        own.create_net("simple")
    reader = core.Net("reader")
    reader.Relu("nothing_fed", "y")
    with pytest.raises(RuntimeError, match="reads \\['nothing_fed'\\]"):
        own.create_net(reader)


def test_a_tensor_of_strings_cannot_be_made_empty():
    with pytest.raises(RuntimeError, match="a tensor of strings cannot be made empty"):
        workspace.C.Workspace().create_blob("s").as_tensor().init([2], core.DataType.STRING)


def test_the_cost_of_an_operator_whose_extents_are_in_a_blob():
    workspace.FeedBlob("x", np.zeros((3, 2), np.int32))
    workspace.FeedBlob("extents", np.int32([1, 2]))
    cost = workspace.GetOperatorCost(
        core.CreateOperator("Split", ["x", "extents"], ["a", "b"], axis=0), ["x", "extents"]
    )
    assert cost == (0, 24, 32)


@pytest.mark.parametrize("size, shape", [(0, [0]), (1, [1]), (2, None)])
def test_how_many_differ_is_known_of_none_and_of_one(size, shape):
    net = core.Net("unique")
    net.Unique("x", ["y", "places"])
    shapes, _ = workspace.InferShapesAndTypes([net], {"x": [size]}, blob_types={"x": core.DataType.INT64})
    assert shapes.get("y") == shape


def test_preferences_for_engines_are_kept():
    core.SetEnginePref({0: {"Conv": ["NNPACK"]}}, {0: ["EIGEN"], 1: ["CUDNN"]})
    core.SetOpEnginePref("Relu", {1: ["MINE"]})
    assert [engine_preferences(*key) for key in (("Conv", 0), ("Relu", 1), ("Relu", 0))] == [
        ["NNPACK", "EIGEN"],
        ["MINE", "CUDNN"],
        ["EIGEN"],
    ]
    with pytest.raises(ValueError, match="engines preferred for Conv must be a list of names, got 'CUDNN'"):
        core.SetPerOpEnginePref({0: {"Conv": "CUDNN"}})
    core.SetEnginePref({}, {})
    assert engine_preferences("Conv", 0) == []


def test_how_the_build_was_made():
    assert build.CAFFE2_NO_OPERATOR_SCHEMA is False and build.build_options["USE_TRT"] == ""
    assert build.build_options == workspace.C.get_build_options()
    assert "Relu" in core._REGISTERED_OPERATORS
