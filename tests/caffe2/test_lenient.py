"""What Caffe2 lets a script build is built here too, with the error at creation; the native API is strict."""

import warnings

import numpy as np
import pytest

import netbuilder
from netbuilder.caffe2 import lenient
from netbuilder.caffe2.lenient import IgnoredArgumentWarning
from netbuilder.caffe2.python import brew, cnn, core, model_helper, schema, workspace
from netbuilder.caffe2.python.net_builder import NetBuilder, ops
from netbuilder.data import read_records
from netbuilder.graph import CreateOperator
from netbuilder.proto import ArgumentError, NetError


@pytest.fixture(autouse=True)
def _no_warnings_given_yet(monkeypatch):
    monkeypatch.setattr(lenient, "warned", set())


WRONG = {
    "unknown operator": ("NoSuchOperator", ["x"], ["y"], {}, "unknown operator 'NoSuchOperator'"),
    "too few inputs": ("FC", ["x", "w"], ["y"], {}, "FC takes 3 inputs"),
    "too many inputs": ("Relu", ["x", "w"], ["y"], {}, "Relu takes 1 input "),
    "no outputs": ("Relu", ["x"], [], {}, "Relu makes 1 output "),
    "in place": ("FC", ["x", "w", "b"], ["x"], {}, "FC: output 0 .*may not overwrite input 0"),
    "must be in place": ("Iter", ["x"], ["y"], {}, "Iter: output 0 must overwrite input 0"),
    "type of an argument": ("Softmax", ["x"], ["y"], {"axis": "one"}, "Softmax: argument 'axis' must be int"),
    "range of an argument": ("Dropout", ["x"], ["y", "m"], {"ratio": 2.0}, "Dropout: ratio"),
}


@pytest.mark.parametrize(("op_type", "inputs", "outputs", "arguments", "message"), WRONG.values(), ids=WRONG)
class TestWhatNeverRuns:
    def test_is_built_and_refused_at_creation(self, op_type, inputs, outputs, arguments, message):
        for blob in ("x", "w", "b"):
            workspace.FeedBlob(blob, np.ones((2, 2), np.float32))
        op = core.CreateOperator(op_type, inputs, outputs, **arguments)
        with pytest.raises(NetError, match=message):
            workspace.RunOperatorOnce(op)
        net = core.Net("never_runs")
        net.Proto().op.append(op)
        with pytest.raises(RuntimeError, match=message):
            workspace.CreateNet(net)
        assert not workspace.HasBlob("y")

    def test_is_refused_at_once_natively(self, op_type, inputs, outputs, arguments, message):
        with pytest.raises(NetError, match=message):
            CreateOperator(op_type, inputs, outputs, **arguments)
        net = netbuilder.Net("strict")
        with pytest.raises((NetError, AttributeError), match=message.replace("unknown operator ", "")):
            getattr(net, op_type)(inputs, outputs, **arguments)
        assert not net.Proto().op


def test_a_method_of_an_unknown_operator_is_refused_as_in_caffe2():
    with pytest.raises(AttributeError, match="'NoSuchOperator' is neither an operator nor a method"):
        core.Net("methods").NoSuchOperator("x", "y")


class TestIgnoredArguments:
    def test_one_warning_for_each_operator_type_and_argument(self):
        net = core.Net("fills")
        with pytest.warns(IgnoredArgumentWarning) as given:
            net.MSRAFill([], "a", shape=[2, 3], std=0.1)
            net.MSRAFill([], "b", shape=[2, 3], std=0.2, mode="fan_in")
            net.XavierFill([], "c", shape=[2, 3], std=0.1)
        texts = [str(warning.message) for warning in given]
        assert [text.partition(";")[0] for text in texts] == [
            "MSRAFill: ignored argument 'std'",
            "MSRAFill: ignored argument 'mode'",
            "XavierFill: ignored argument 'std'",
        ]
        assert "it takes [" in texts[0] and {warning.filename for warning in given} == {__file__}
        workspace.RunNetOnce(net)
        assert workspace.FetchBlob("a").shape == (2, 3)
        assert [argument.name for argument in net.Proto().op[0].arg] == ["shape", "std", "random_stream"]

    @pytest.mark.parametrize("kind", ["minidb", "lmdb"])
    def test_options_of_a_database_have_no_effect_as_in_caffe2(self, kind, tmp_path):
        """Caffe2 passes them to DB::SetOptions, which none of its databases of these types implements."""
        pytest.importorskip("lmdb" if kind == "lmdb" else "numpy")
        workspace.FeedBlob("x", np.arange(6, dtype=np.float32))
        places = [str(tmp_path / name) for name in ("plain", "given")]
        options = {"db_type": kind, "absolute_path": 1}
        workspace.RunOperatorOnce(core.CreateOperator("Save", ["x"], [], db=places[0], **options))
        with pytest.warns(IgnoredArgumentWarning, match="Save: ignored argument 'db_options'"):
            save = core.CreateOperator("Save", ["x"], [], db=places[1], db_options=b"sync=0", **options)
        workspace.RunOperatorOnce(save)
        plain, given = (list(read_records(place, kind)) for place in places)
        assert plain == given
        with pytest.warns(IgnoredArgumentWarning, match="Load: ignored argument 'db_options'"):
            load = core.CreateOperator(
                "Load", [], ["y"], db=places[1], db_options=b"x", source_blob_names=["x"], **options
            )
        workspace.RunOperatorOnce(load)
        np.testing.assert_array_equal(workspace.FetchBlob("y"), np.arange(6))

    def test_a_name_near_to_an_argument_is_suggested(self):
        with pytest.warns(IgnoredArgumentWarning, match="Softmax: ignored argument 'axes'; did you mean 'axis'"):
            core.CreateOperator("Softmax", "x", "y", axes=1)

    def test_a_warning_that_is_an_error_is_one_each_time(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(2):
                with pytest.raises(IgnoredArgumentWarning, match="Relu: ignored argument 'slope'"):
                    core.Net("strict").Relu("x", "y", slope=1)

    @pytest.mark.parametrize("make", [model_helper.ModelHelper, cnn.CNNModelHelper])
    def test_models(self, make):
        model = make(name="lenient")
        with pytest.warns(IgnoredArgumentWarning, match="Relu: ignored argument 'slope'"):
            model.Relu("x", "y", slope=1) if make is model_helper.ModelHelper else model.net.Relu("x", "y", slope=1)
        with pytest.warns(IgnoredArgumentWarning, match="MSRAFill: ignored argument 'std'"):
            brew.fc(model, "y", "z", 2, 2, weight_init=("MSRAFill", {"std": 0.1}))
        shares = netbuilder.ModelHelper("shares", param_model=model)
        assert type(shares.net) is type(shares.param_init_net) is core.Net

    def test_builders_of_nets(self):
        with pytest.warns(IgnoredArgumentWarning, match="Relu: ignored argument 'slope'"), NetBuilder() as builder:
            ops.Relu("x", "y", slope=1)
        assert isinstance(builder.get()[0], core.Net)

    def test_the_native_api_refuses_them(self):
        model = netbuilder.ModelHelper("strict")
        for build in (model.Relu, model.net.Relu, netbuilder.Net("strict").Relu):
            with pytest.raises(ArgumentError, match="Relu: unknown argument 'slope'"):
                build("x", "y", slope=1)


def test_copies_stay_lenient_and_native_nets_strict():
    assert type(core.Net("one").Clone("two")) is type(core.Net(core.Net("one").Proto())) is core.Net
    native = netbuilder.Net("native")
    assert isinstance(native, core.Net) and not issubclass(netbuilder.Net, core.Net)
    assert type(native.Clone("copy")) is netbuilder.Net


class TestNets:
    def test_lists_and_records_are_external_inputs(self):
        net = core.Net("inputs")
        record = schema.NewRecord(net, schema.Struct(("r", schema.Scalar(np.float32))))
        net.AddExternalInputs(["a", "b"], record)
        net.AddExternalInput(schema.Struct(("s", schema.Scalar(np.float32))))
        assert list(map(str, net.external_inputs)) == ["a", "b", str(record.r()), "s"]
        with pytest.raises(AssertionError, match="'s' is an external input already"):
            net.AddExternalInput(schema.Struct(("s", schema.Scalar(np.float32))))

    def test_part_of_a_net_that_would_make_its_own_inputs(self):
        net = core.Net("whole")
        net.Concat(["x", "y"], ["b1", "b2"], axis=0)
        net.Sum(["b1", net.Relu("b2", "c2")], "d")
        with pytest.raises(
            AssertionError, match="operator 0 Concat .* is needed for the outputs, and these inputs depend on it"
        ):
            net.ClonePartial("part", ["x", "y", "c2"], ["d"])
        part, outputs = net.ClonePartial("part", ["b1", "c2"], ["d"])
        assert [op.type for op in part.Proto().op] == ["Sum"] and outputs == ["part/d"]

    def test_reroute_tensor(self):
        net = core.Net("rerouted")
        net.Conv(["x", "w"], "c", kernel=3)
        net.Relu("c", "r")
        net.Softmax("c", "s")
        net.AddExternalOutput(core.BlobReference("c"))
        new = core.CreateOperator("Tanh", "c", "t")
        assert net.reroute_tensor("c", new, [net.Proto().op[1]]) == 1
        assert [(op.type, op.input[0]) for op in net.Proto().op[1:]] == [("Tanh", "c"), ("Relu", "t"), ("Softmax", "c")]
        assert list(net.Proto().external_output) == ["t"]
        assert net.reroute_tensor("x", core.CreateOperator("Copy", "x", "x2")) == 0
        assert net.Proto().op[0].type == "Copy"
        with pytest.raises(AssertionError, match=r"Tanh must read 'x'"):
            net.reroute_tensor("x", new)

    def test_operators_are_named_after_their_lines(self):
        net = core.Net("named")
        net.Relu("x", "y")
        net.PopulateProtoWithFileName()
        path, line, function = net.Proto().op[0].name.rsplit(":", 2)
        assert (path, function) == (__file__, "test_operators_are_named_after_their_lines") and line.isdigit()

    def test_step_nets_run_on_the_gpu_too(self):
        step = core.Net("step")
        step.Relu("a", "b")
        net = core.Net("recurrent")
        net.RecurrentNetwork(["x"], ["x"], step_net=step.Proto())
        net.RunAllOnGPU(gpu_id=2)
        assert net.Proto().op[0].arg[0].n.device_option.device_id == 2

    def test_what_is_known_of_parameters(self):
        model = model_helper.ModelHelper("listed")
        model.params += ["a", "b"]
        assert model._Validate() == []
        model.params += ["c", "b"]
        assert model._Validate() == ["b"]
        assert model_helper.ModelHelper("shares", param_model=model)._parameters_info == model._parameters_info

    def test_layer_norm_takes_the_extents_of_its_features(self):
        model = model_helper.ModelHelper("normalized")
        brew.layer_norm(model, "x", "y", dim_in=(3, 4))
        assert [list(op.arg[0].ints) for op in model.param_init_net.Proto().op] == [[3, 4]] * 2
