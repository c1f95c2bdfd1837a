"""The modules ``core``, ``scope``, ``utils`` and ``dyndep``, compared with Caffe2's results."""

import pdb

import numpy as np
import pytest
from google.protobuf import text_format
from google.protobuf.message import DecodeError

from netbuilder.caffe2.proto import caffe2_pb2, metanet_pb2, predictor_consts_pb2
from netbuilder.caffe2.python import core, dyndep, model_helper, scope, utils, workspace
from netbuilder.graph import Net
from netbuilder.proto import ArgumentError, MetaNetDef, NetError, ParseError, PredictorConsts


class TestDevices:
    def test_options(self):
        option = core.DeviceOption(caffe2_pb2.CPU, node_name="host", random_seed=3, numa_node_id=1, extra_info=["a"])
        assert (option.device_type, option.device_id, option.random_seed) == (0, 0, 3)
        assert (option.node_name, option.numa_node_id, list(option.extra_info)) == ("host", 1, ["a"])
        assert core.DeviceOption(1, 2) == caffe2_pb2.DeviceOption(device_type=caffe2_pb2.CUDA, device_id=2)
        assert not core.DeviceOption(caffe2_pb2.CPU).HasField("random_seed")

    def test_kinds(self):
        found = [core.IsGPUDeviceType(n) for n in (caffe2_pb2.CPU, caffe2_pb2.CUDA, caffe2_pb2.HIP, caffe2_pb2.IDEEP)]
        assert found == [False, True, True, False]

    def test_comparisons(self):
        one, other = core.DeviceOption(0, 1), core.DeviceOption(0, 2)
        assert core.device_equal(one, core.DeviceOption(0, 1)) and not core.device_equal(one, other)
        seeded, hosted = core.DeviceOption(0, 1, random_seed=2), core.DeviceOption(0, 1, node_name="host")
        assert core.device_option_equal(one, seeded) and core.device_option_equal(one, hosted)
        assert not core.device_option_equal(one, seeded, ignore_random_seed=False)
        assert not core.device_option_equal(one, hosted, ignore_node_name=False)
        assert core.device_option_equal(one, other) and core.device_option_equal(one, caffe2_pb2.DeviceOption())
        assert not core.device_option_equal(core.DeviceOption(1, 1), core.DeviceOption(1, 2))
        assert not core.device_option_equal(one, None) and core.device_option_equal(None, None)

    def test_blobs(self):
        net = core.Net("placed")
        with core.DeviceScope(core.DeviceOption(caffe2_pb2.CUDA, 1)):
            net.Relu("x", "y")
        assert {name: option.device_id for name, option in core.InferBlobDevices(net).items()} == {"x": 1, "y": 1}


class TestOperators:
    def test_known_ones(self):
        assert core.IsOperator("Relu") and not core.IsOperator("Rleu")
        assert core.IsOperatorWithEngine("Conv", "") and core.IsOperatorWithEngine("Conv", "DEFAULT")
        assert not core.IsOperatorWithEngine("Rleu", "") and not core.IsOperatorWithEngine("Conv", "NOTHING")
        assert core.RefreshRegisteredOperators() is None

    def test_data_types(self):
        kinds = {name: value for name, value in vars(core.DataType).items() if not name.startswith("_")}
        assert kinds == dict(caffe2_pb2.TensorProto.DataType.items())

    def test_python_operators(self):
        class Doubled:
            def __init__(self, factor):
                self.factor = factor

            def forward(self, inputs, outputs):
                outputs[0].feed(inputs[0].data * self.factor)

        workspace.FeedBlob("x", np.float32([1, 2]))
        workspace.RunOperatorOnce(core.CreatePythonOperator(3, ["x"], ["y"], python_func_type=Doubled, name="named"))
        assert workspace.FetchBlob("y").tolist() == [3, 6]
        assert core.CreatePythonOperator(print, ["x"], ["y"], name="named").name == "named"

    def test_renamed_inputs(self):
        op = core.CreateOperator("Add", ["a", "b"], ["a"])
        assert core.remap_input(op, {"a": core.BlobReference("z")}) is None
        assert (op.input, op.output) == (["z", "b"], ["a"])

    def test_renamed_in_held_nets(self):
        inner = core.Net("inner")
        inner.Relu("x", "y")
        op = core.CreateOperator("If", ["cond", "x"], ["y"], then_net=inner.Proto())
        assert core.control_op_remap(op, "p/", {"x": core.BlobReference("z")}) is None
        assert (op.input, op.output) == (["cond", "x"], ["y"])
        assert op.arg[0].n.op[0].input == ["z"] and op.arg[0].n.external_input == ["z"]
        core.remap_proto(op.arg[0], {"z": "w"})
        assert op.arg[0].n.op[0].input == ["w"]
        op = core.CreateOperator(
            "RecurrentNetwork",
            ["s", "first", "W"],
            ["s_all", "memory"],
            step_net=core.Net("step").Proto(),
            link_internal=["s_t"],
            link_external=["s"],
            link_offset=[0],
            recurrent_states=["h"],
            initial_recurrent_state_ids=[1],
            alias_src=["h"],
            alias_dst=["s_all"],
            alias_offset=[1],
        )
        core.recurrent_network_op_remap(op, "", {"s_t": "t_t", "s": "t"})
        named = {a.name: list(a.strings) for a in op.arg if a.strings}
        assert named["link_internal"] == [b"t_t"] and named["link_external"] == [b"t"] and op.input[0] == "s"

    def test_lists_of_gradients(self):
        gradients = [core.BlobReference("a_grad"), None, core.GradientSlice("b", "c")]
        found = [core.GetIndexFromGradientList(gradients, name) for name in ("a_grad", "c", "b", "d")]
        assert found == [0, 2, 2, None]

    def test_outputs_as_lists(self):
        x = core.BlobReference("x")
        assert core.output_to_list(x) == core.output_to_list([x]) == core.output_to_list((x,)) == [x]

    def test_names_of_nets(self):
        net = core.Net("named")
        assert (
            core.get_net_name(net)
            == core.get_net_name(net.Proto())
            == core.get_net_name(str(net))
            == net.Name()
            == str(net)
        )
        assert core.get_net_name(3) == 3
        assert str(net) == "%s" % net == f"{net}" == net.Name()  # noqa: UP031
        model = model_helper.ModelHelper("of a model")
        model.net.Relu("x", "y")
        assert str(model.net) == model.net.Name() and str(model.net.Clone("copy")) == "copy"


def test_the_same_things_under_both_names():
    assert issubclass(core.Net, Net) and isinstance(Net("native"), core.Net)
    assert scope.NameScope is core.NameScope
    assert metanet_pb2.MetaNetDef is MetaNetDef and predictor_consts_pb2.PredictorConsts is PredictorConsts
    with core.NameScope("a"):
        assert scope.CurrentNameScope() == workspace.GetNameScope() == "a" + scope._NAMESCOPE_SEPARATOR


class TestUtils:
    def test_arguments(self):
        values = {"i": 1, "f": 0.5, "s": b"text", "ints": [1, 2], "floats": [0.5, 1.0], "strings": [b"a"], "none": None}
        arguments = [utils.MakeArgument(key, [] if value is None else value) for key, value in values.items()]
        assert utils.ArgsToDict(arguments) == values
        net = core.Net("argument").Proto()
        assert utils.ArgsToDict([utils.MakeArgument("net", net)]) == {"net": net}
        with pytest.raises(ArgumentError, match="argument 'key': cannot hold"):
            utils.MakeArgument("key", {"a": 1})

    @pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "i8", "u1", "i1", "?"])
    def test_tensors(self, dtype):
        array = np.array([[0, 1], [2, 3]]).astype(dtype)
        tensor = utils.NumpyArrayToCaffe2Tensor(array, "name")
        assert tensor.name == "name" and not utils.NumpyArrayToCaffe2Tensor(array).HasField("name")
        back = utils.Caffe2TensorToNumpyArray(tensor)
        assert back.dtype == array.dtype and np.array_equal(back, array)

    def test_orders_of_axes(self):
        array = np.arange(24).reshape(1, 2, 3, 4)
        assert np.array_equal(utils.NCHW2NHWC(array), array.transpose(0, 2, 3, 1))
        assert np.array_equal(utils.NHWC2NCHW(utils.NCHW2NHWC(array)), array)
        assert utils.NHWC2NCHW(np.zeros((1, 2, 3))).shape == (1, 3, 2)

    def test_messages_from_text_and_bytes(self):
        net = caffe2_pb2.NetDef(name="net", op=[core.CreateOperator("Relu", ["x"], ["y"])])
        for form in (net.SerializeToString(), text_format.MessageToString(net), str(net).encode()):
            assert utils.TryReadProtoWithClass(caffe2_pb2.NetDef, form) == net
        with pytest.raises(ParseError, match="cannot be read as a NetDef"):
            utils.TryReadProtoWithClass(caffe2_pb2.NetDef, b"\xff\xfe")

    def test_content_of_messages(self):
        op = core.CreateOperator("Relu", ["x"], ["y"])
        functions = {caffe2_pb2.TensorProtos: len, caffe2_pb2.OperatorDef: lambda op: op.type}
        assert utils.GetContentFromProto(op, functions) == "Relu"
        assert utils.GetContentFromProto(caffe2_pb2.NetDef(), functions) is None
        assert utils.GetContentFromProtoString(text_format.MessageToString(op), functions) == "Relu"
        with pytest.raises(DecodeError, match="must be one of the messages .'OperatorDef'."):
            utils.GetContentFromProtoString(b"\xff\xfe", {caffe2_pb2.OperatorDef: str})

    def test_files(self, tmp_path):
        net = caffe2_pb2.NetDef(name="net")
        (tmp_path / "net.pbtxt").write_text(text_format.MessageToString(net))
        utils.ConvertProtoToBinary(caffe2_pb2.NetDef, tmp_path / "net.pbtxt", tmp_path / "net.pb")
        assert caffe2_pb2.NetDef.FromString((tmp_path / "net.pb").read_bytes()) == net

    def test_operators_compared(self):
        one, other = core.CreateOperator("Relu", ["x"], ["y"]), core.CreateOperator("Relu", ["x"], ["y"])
        other.debug_info = "elsewhere"
        assert utils.OpAlmostEqual(one, other) and one.debug_info
        assert not utils.OpAlmostEqual(one, other, ignore_fields=[])
        other.engine = "CUDNN"
        assert not utils.OpAlmostEqual(one, other) and utils.OpAlmostEqual(one, other, ["engine", "debug_info"])

    def test_the_counter_of_iterations(self):
        init, main = core.Net("init"), core.Net("main")
        assert utils.BuildUniqueMutexIter(init, main, iter_val=5) == utils.OPTIMIZER_ITERATION_NAME
        assert utils.BuildUniqueMutexIter(init, main) == utils.OPTIMIZER_ITERATION_NAME
        assert utils.BuildUniqueMutexIter(init, main, iter="mine", iter_mutex="lock") == "mine"
        assert [op.type for op in init.Proto().op] == ["ConstantFill", "CreateMutex"] * 2
        assert [list(op.input) for op in main.Proto().op] == [
            [utils.ITERATION_MUTEX_NAME, utils.OPTIMIZER_ITERATION_NAME],
            ["lock", "mine"],
        ]
        workspace.RunNetOnce(init)
        workspace.RunNetOnce(main)
        assert workspace.FetchBlob(utils.OPTIMIZER_ITERATION_NAME).tolist() == [6]

    def test_small_ones(self):
        assert utils.raiseIfNotEqual(1, 1, "fine") is None
        with pytest.raises(NetError, match="lengths. 1 != 2"):
            utils.raiseIfNotEqual(1, 2, "lengths")
        assert utils.EnumClassKeyVals(type("Kinds", (), {"A": "a", "B": 1})) == {"A": "a"}
        workspace.FeedBlob("x", np.ones(1))
        utils.ResetBlobs(["x"])
        with pytest.raises(RuntimeError, match="holds no value"):
            workspace.FetchBlob("x")

    def test_the_debugger_starts_where_something_raises(self, monkeypatch, caplog):
        stopped = []
        monkeypatch.setattr(pdb, "post_mortem", stopped.append)

        @utils.debug
        def fails(divisor):
            """Divides."""
            return 1 / divisor

        assert fails(2) == 0.5 and not stopped and fails.__doc__ == "Divides."
        with pytest.raises(ZeroDivisionError):
            fails(0)
        assert len(stopped) == 1 and "starting the debugger because of" in caplog.text


def test_libraries_of_operators_are_remembered():
    assert dyndep.InitOpsLibrary("@/caffe2/caffe2/contrib/nccl:nccl_ops") is None
    dyndep.InitOpsLibrary("/nowhere/lib.so", trigger_lazy=False)
    assert dyndep.GetImportedOpsLibraries() >= {"@/caffe2/caffe2/contrib/nccl:nccl_ops", "/nowhere/lib.so"}


def test_the_extension_is_one_module():
    from caffe2.python import workspace

    assert core.C is workspace.C
