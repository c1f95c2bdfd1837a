"""Predictors out of parallel models, and plain nets moved into a replica's scope."""

import warnings
from functools import partial

import numpy as np
import pytest

import golden_data
from netbuilder import parallel
from netbuilder.exchange import load_predictor, save_predictor
from netbuilder.graph import BlobReference, DeviceScope, Net
from netbuilder.model import ModelHelper, brew
from netbuilder.passes import parameter_sources
from netbuilder.proto import BlobError, NetDef, NetError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from parallel_models import Task, no_input, train
from structure import differences
from toy_models import normalized

CPU = make_device_option(0, 0)


def without_scope(net):
    text = NetDef.FromString(net.SerializeToString())
    for op in text.op:
        op.input[:] = [blob.removeprefix("cpu_0/") for blob in op.input]
        op.output[:] = [blob.removeprefix("cpu_0/") for blob in op.output]
    text.external_input[:] = [blob.removeprefix("cpu_0/") for blob in text.external_input]
    return text


def test_golden_up_to_scopes_and_labels():
    """Caffe2 leaves cpu_0/ on everything but inputs and outputs, and takes the label for a parameter."""
    export = golden_data.export("extract_data_parallel")
    source = export.net("train_net")
    before = source.SerializeToString()
    net, parameters = parallel.ExtractPredictorNet(source, ["data"], ["softmax"], CPU)
    lines = differences(net.Proto(), without_scope(export.net("predict_net")))
    assert [line[1:].split(";")[0] for line in lines] == [
        "SoftmaxWithLoss(drop2, label) -> softmax, loss",
        "Softmax(drop2) -> softmax",
        " external input label",
    ]
    assert source.SerializeToString() == before
    theirs = {name.removeprefix("cpu_0/") for name in export.meta["export_blobs"]}
    assert set(map(str, parameters)) == theirs - {"label"}
    assert parameter_sources(net.Proto()) == {name: "cpu_0/" + name for name in theirs - {"label"}}
    assert list(net.Proto().external_output) == ["softmax"]


def test_golden_numbers_through_files(tmp_path):
    export = golden_data.export("extract_data_parallel")
    net, parameters = parallel.ExtractPredictorNet(export.net("train_net"), ["data"], ["softmax"], CPU)
    workspace = Workspace(threads=1)
    for name, value in export.arrays["params"].items():
        workspace.feed(name, value)
    save_predictor(tmp_path, net, parameters, workspace=workspace)
    got = load_predictor(tmp_path).run(data=export.arrays["inputs"]["data"])["softmax"]
    want = export.arrays["expected"]["softmax"]
    assert golden_data.mismatch(got, want, "close", export.meta["rtol"], export.meta["atol"]) is None


def test_a_trained_model_is_evaluated_and_exported(tmp_path):
    """The predictor gives what the evaluation net gives, by running statistics and not those of the batch."""
    task = Task(normalized, (8, 3, 8, 8))
    trained, record, workspace = train([0, 1], task=task)
    evaluation = ModelHelper("evaluation", init_params=False)
    parallel.Parallelize_CPU(evaluation, no_input, partial(normalized, is_test=True), devices=[0, 1])
    parallel.CreateNet(evaluation, workspace=workspace)
    parallel.RunNet(evaluation, workspace=workspace)
    net, parameters = parallel.ExtractPredictorNet(evaluation, ["data"], ["softmax"], None)
    assert set(map(str, parameters)) == {*record.parameters, *record.computed}
    assert not [blob for op in net.Proto().op for blob in (*op.input, *op.output) if blob.startswith("cpu_")]
    save_predictor(tmp_path, net, parameters, workspace=workspace)
    predictor = load_predictor(tmp_path)
    for replica in range(2):
        got = predictor.run(data=workspace.fetch(f"cpu_{replica}/data"))["softmax"]
        assert np.allclose(got, workspace.fetch(f"cpu_{replica}/softmax"), rtol=1e-5, atol=1e-6)
    with pytest.raises(NetError, match=r"SpatialBN .* it is in training mode \(is_test=0\)"):
        parallel.ExtractPredictorNet(trained, ["data"], ["softmax"], None)


def test_names_may_have_the_first_replicas_scope():
    source = golden_data.export("extract_data_parallel").net("train_net")
    plain, _ = parallel.ExtractPredictorNet(source, ["data"], ["softmax"], None)
    scoped, _ = parallel.ExtractPredictorNet(source, ["cpu_0/data"], [BlobReference("cpu_0/softmax")], None)
    assert differences(plain.Proto(), scoped.Proto()) == []


def test_the_device_is_that_of_all_operators():
    source = golden_data.export("extract_data_parallel").net("train_net")
    net, _ = parallel.ExtractPredictorNet(source, ["data"], ["softmax"], make_device_option(1, 2))
    assert {(op.device_option.device_type, op.device_option.device_id) for op in net.Proto().op} == {(1, 2)}


def test_unknown_names_are_refused():
    source = golden_data.export("extract_data_parallel").net("train_net")
    with pytest.raises(BlobError, match="no operator reads 'cpu_0/image', so it cannot be an input"):
        parallel.ExtractPredictorNet(source, ["image"], ["softmax"], CPU)
    with pytest.raises(BlobError, match="no operator writes 'cpu_0/soft', so it cannot be an output; did you mean"):
        parallel.ExtractPredictorNet(source, ["data"], ["soft"], CPU)
    with pytest.raises(NetError, match="inputs must be a list, got 'data'"):
        parallel.ExtractPredictorNet(source, "data", ["softmax"])
    with pytest.raises(NetError, match="has no record of replicas"):
        parallel.ExtractPredictorNet(golden_data.net("mlp_sgd").main, ["data"], ["softmax"], CPU)


def test_a_table_outside_keeps_its_name():
    model = ModelHelper("tables", init_params=False)
    with DeviceScope(CPU):
        table = model.param_init_net.ConstantFill([], "table", shape=[5, 6], value=1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.AddParameter(table)

    def forward(model, loss_scale):
        rows = model.net.Gather([table, "indices"], "rows")
        return brew.softmax(model, brew.fc(model, rows, "fc", 6, 3), "scores")

    parallel.Parallelize_CPU(model, no_input, forward, devices=[0, 1])
    net, parameters = parallel.ExtractPredictorNet(model, ["indices"], ["scores"], None)
    assert sorted(map(str, parameters)) == ["fc_b", "fc_w", "table"]
    assert parameter_sources(net.Proto())["table"] == "table"


def test_converting_a_net_for_a_device():
    net = Net("plain")
    net.FC(["x", "w", "b"], "y")
    net.Relu("y", "y", control_input=["x"])
    net.AddExternalOutput("y")
    before = net.Proto().SerializeToString()
    moved = parallel.ConvertNetForDevice(net, make_device_option(1, 2)).Proto()
    assert [list(op.input) for op in moved.op] == [["gpu_2/x", "gpu_2/w", "gpu_2/b"], ["gpu_2/y"]]
    assert list(moved.op[1].control_input) == ["gpu_2/x"]
    assert list(moved.external_input) == ["gpu_2/x", "gpu_2/w", "gpu_2/b"]
    assert list(moved.external_output) == ["gpu_2/y"]
    assert {op.device_option.device_id for op in moved.op} == {2}
    assert net.Proto().SerializeToString() == before
    with DeviceScope(make_device_option(0, 3)):
        assert parallel.ConvertNetForDevice(net).Proto().op[1].output[0] == "cpu_3/y"
    with pytest.raises(NetError, match="ConvertNetForDevice: give a device, or call it inside a DeviceScope"):
        parallel.ConvertNetForDevice(net)


def test_nets_that_operators_hold_are_converted_too():
    inner = NetDef(name="step", op=[make_op("Relu", ["h"], ["g"])], external_input=["h", "timestep"])
    given = {"link_internal": ["h", "g"], "link_external": ["x", "states"], "alias_dst": ["y"], "step_net": inner}
    op = make_op("RecurrentNetwork", ["x"], ["y"], timestep="timestep", param_grads=["w_grad"], **given)
    (moved,) = parallel.ConvertNetForDevice(Net(NetDef(name="outer", op=[op])), make_device_option(0, 3)).Proto().op
    held = {argument.name: argument for argument in moved.arg}
    assert list(held["link_internal"].strings) == [b"cpu_3/h", b"cpu_3/g"]
    assert list(held["link_external"].strings) == [b"cpu_3/x", b"cpu_3/states"]
    assert list(held["alias_dst"].strings) == [b"cpu_3/y"]
    assert held["timestep"].s == b"cpu_3/timestep"
    assert list(held["param_grads"].strings) == [b"cpu_3/w_grad"]
    step = held["step_net"].n
    assert list(step.external_input) == ["cpu_3/h", "cpu_3/timestep"]
    assert (step.op[0].input[0], step.op[0].output[0], step.op[0].device_option.device_id) == ("cpu_3/h", "cpu_3/g", 3)


def test_an_unknown_operator_that_holds_a_net_is_not_converted():
    net = Net(NetDef(name="outer", op=[make_op("Unknown", ["x"], ["y"], step_net=NetDef(name="step"))]))
    with pytest.raises(NotImplementedError, match="operator 'Unknown' .* is unknown and has a subgraph"):
        parallel.ConvertNetForDevice(net, CPU)
