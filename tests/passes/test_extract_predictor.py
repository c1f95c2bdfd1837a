"""Extraction of predictors: golden ones, which operators are kept, errors."""

import numpy as np
import pytest

import golden_data
from netbuilder.graph import Net
from netbuilder.ops.core.renaming import blob_names
from netbuilder.passes import ExtractPredictorNet, extract_predictor, parameter_sources
from netbuilder.proto import PROTO_CUDA, BlobError, NetDef, NetError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from structure import differences


def net(*ops, external=(), name="net"):
    return NetDef(name=name, op=ops, external_input=external)


def types(proto):
    return [op.type for op in proto.op]


GOLDEN = [
    ("extract_db_input", "train_net", "predict_net", {}),
    ("extract_db_input", "train_net", "predict_net_from_raw", {"inputs": ["data_raw"]}),
    ("extract_lstm", "train_net", "predict_net", {}),
    ("extract_pred_blob", "train_net", "predict_net", {}),
    ("extract_dropout_bn", "train_net", "predict_net", {"inputs": ["data", "label"]}),
]


@pytest.mark.parametrize("name, source, result, changed", GOLDEN, ids=lambda value: str(value))
def test_golden(name, source, result, changed):
    export = golden_data.export(name)
    given = export.meta["arguments"]
    inputs = changed.get("inputs", given["input_blobs"])
    net, want = export.net(source), export.net(result)
    before = net.SerializeToString()
    device = make_device_option(0, 0) if "device" in given else None
    got, parameters = extract_predictor(net, inputs, given["output_blobs"], renames=given.get("renames"), device=device)
    assert differences(got, want) == []
    assert list(got.external_output) == list(want.external_output)
    assert list(got.external_input[: len(inputs)]) == [(given.get("renames") or {}).get(b, b) for b in inputs]
    assert sorted(parameters) == sorted(set(export.meta["export_blobs"]) - set(inputs))
    assert net.SerializeToString() == before


RUNNABLE = [("extract_db_input", ["data"]), ("extract_dropout_bn", ["data"]), ("extract_pred_blob", ["data"])]


@pytest.mark.parametrize("name, inputs", RUNNABLE)
def test_golden_numbers(name, inputs):
    export = golden_data.export(name)
    given = export.meta["arguments"]
    got, parameters = extract_predictor(
        export.net("train_net"), inputs, given["output_blobs"], renames=given.get("renames")
    )
    workspace = Workspace(threads=1)
    for blob, value in {**export.arrays["params"], **export.arrays["inputs"]}.items():
        if blob in got.external_input:
            workspace.feed(blob, value)
    workspace.run_net_once(got)
    for blob, want in export.arrays["expected"].items():
        if blob in got.external_output:
            said = golden_data.mismatch(workspace.fetch(blob), want, "close", export.meta["rtol"], export.meta["atol"])
            assert said is None


def test_labels_that_only_the_loss_needs_are_no_parameters():
    """Caffe2 keeps SoftmaxWithLoss, and with it the label, as a parameter, which no user could supply."""
    export = golden_data.export("extract_dropout_bn")
    got, parameters = extract_predictor(export.net("train_net"), ["data"], ["softmax"])
    lines = differences(got, export.net("predict_net"))
    assert [line[1:].split(";")[0] for line in lines] == [
        "SoftmaxWithLoss(drop2, label) -> softmax, loss",
        "Softmax(drop2) -> softmax",
        " external input label",
    ]
    assert "label" in export.meta["export_blobs"] and "label" not in parameters


def test_a_loss_asked_for_keeps_its_labels():
    source = net(make_op("SoftmaxWithLoss", ["x", "label"], ["softmax", "loss"]), external=["x", "label"])
    got, parameters = extract_predictor(source, ["x", "label"], ["softmax", "loss"])
    assert (types(got), parameters) == (["SoftmaxWithLoss"], [])
    got, parameters = ExtractPredictorNet(source, ["x"], ["softmax", "loss"])  # as Caffe2 does
    assert (types(got.Proto()), parameters) == (["SoftmaxWithLoss"], ["label"])


def test_labels_from_a_reader_are_not_needed_either():
    source = net(
        make_op("TensorProtosDBInput", ["db"], ["x", "label"], batch_size=2),
        make_op("SoftmaxWithLoss", ["x", "label"], ["softmax", "loss"], axis=2),
    )
    got, parameters = extract_predictor(source, ["x"], ["softmax"])
    assert (types(got), parameters, got.op[0].arg[0].i) == (["Softmax"], [], 2)


def test_operators_that_no_output_needs_are_omitted():
    """Caffe2 keeps those it can compute between the first and the last operator."""
    source = Net("layers")
    h = source.FC(["x", "w", "b"], "h")
    source.Relu(h, "unneeded")
    source.ConstantFill([], "c", shape=[1], value=2.0)
    source.Mul([h, "c"], "y", broadcast=1)
    source.Relu("y", "behind")
    got, parameters = extract_predictor(source.Proto(), ["x"], ["y"])
    assert (types(got), parameters) == (["FC", "ConstantFill", "Mul"], ["w", "b"])


def test_the_last_version_of_an_output_counts():
    source = Net("inplace")
    source.FC(["x", "w", "b"], "y")
    source.Relu("y", "y")
    source.Sigmoid("y", "z")
    source.Tanh("y", "y")
    assert types(extract_predictor(source.Proto(), ["x"], ["y"])[0]) == ["FC", "Relu", "Tanh"]
    assert types(extract_predictor(source.Proto(), ["x"], ["z"])[0]) == ["FC", "Relu", "Sigmoid"]


def test_an_input_is_the_version_that_its_first_reader_sees():
    source = Net("versions")
    source.Scale("raw", "data", scale=0.5)
    source.StopGradient("data", "data")
    source.Relu("data", "data")
    source.FC(["data", "w", "b"], "y")
    assert types(extract_predictor(source.Proto(), ["data"], ["y"])[0]) == ["Relu", "FC"]
    assert types(extract_predictor(source.Proto(), ["raw"], ["y"])[0]) == ["Scale", "StopGradient", "Relu", "FC"]


def test_an_input_in_the_middle_cuts_what_comes_before():
    source = Net("middle")
    source.FC(["x", "w1", "b1"], "h")
    source.FC(["h", "w2", "b2"], "y")
    got, parameters = extract_predictor(source.Proto(), ["h", "x"], ["y"])
    assert (types(got), list(got.external_input), parameters) == (["FC"], ["h", "w2", "b2"], ["w2", "b2"])


def test_no_backward_pass_and_no_update_is_kept():
    golden = golden_data.net("mlp_momentum")
    softmax = next(op for op in golden.main.op if op.type == "SoftmaxWithLoss").output[0]
    got, parameters = extract_predictor(golden.main, ["data"], [softmax])
    assert not any(op.is_gradient_op or op.type.endswith("Update") for op in got.op)
    assert parameters == golden.meta["params"]


def test_a_device_is_given_to_all_operators():
    source = Net("device")
    source.Relu(source.Relu("x", "h"), "y")
    device = make_device_option(PROTO_CUDA, 1)
    got, _ = extract_predictor(source.Proto(), ["x"], ["y"], device=device)
    assert [op.device_option.device_id for op in got.op] == [1, 1]
    assert not any(op.HasField("device_option") for op in source.Proto().op)


def test_renamed_parameters_tell_where_their_values_are():
    source = Net("renamed")
    source.FC(["x", "scope/w", "scope/b"], "y")
    got, parameters = extract_predictor(source.Proto(), ["x"], ["y"], renames={"scope/w": "w", "y": "scores"})
    assert parameters == ["w", "scope/b"]
    assert (list(got.op[0].input), list(got.external_output)) == (["x", "w", "scope/b"], ["scores"])
    assert parameter_sources(got) == {"w": "scope/w", "scope/b": "scope/b"}
    assert parameter_sources(source.Proto()) == {}


def chain():
    source = Net("chain")
    source.FC(["x", "w", "b"], "h")
    source.Mul(["h", "y"], "side")
    source.Sum(["h", "z"], "out")
    return source.Proto()


def test_disabled_blobs_may_stand_in_branches_that_no_output_needs():
    got, parameters = extract_predictor(chain(), ["x"], ["out"], disabled=["y"])
    assert (types(got), parameters) == (["FC", "Sum"], ["w", "b", "z"])
    with pytest.raises(NetError, match="output 'side' depends on 'y', which is disabled, through operator 1 Mul"):
        extract_predictor(chain(), ["x"], ["out", "side"], disabled=["y"])


@pytest.mark.parametrize(
    "inputs, outputs, error, match",
    [
        (["nope"], ["out"], BlobError, "net 'chain.*': no operator reads 'nope', so it cannot be an input"),
        (["x"], ["outt"], BlobError, "no operator writes 'outt', so it cannot be an output; did you mean 'out'"),
        (["x"], ["w"], BlobError, "no operator writes 'w'"),
        (["x", "x"], ["out"], NetError, r"inputs of a predictor must all be different, got \['x', 'x'\]"),
        (["x"], ["out", "out"], NetError, "outputs of a predictor must all be different"),
        (["h"], ["h", "out"], NetError, r"both input and output of a predictor, got \['h'\]"),
        ([], ["out"], NetError, r"inputs of a predictor must be a list of at least one blob, got \[\]"),
        ("x", ["out"], NetError, "must be a list of at least one blob, got 'x'"),
        (["x"], [], NetError, "outputs of a predictor must be a list"),
        (["y"], ["out"], NetError, r"no output depends on an input; inputs \['y'\], outputs \['out'\]"),
        ([3], ["out"], TypeError, "got 3 of type int"),
    ],
)
def test_wrong_names_are_refused(inputs, outputs, error, match):
    with pytest.raises(error, match=match):
        extract_predictor(chain(), inputs, outputs)


@pytest.mark.parametrize("name", ["extract_dropout_bn", "extract_pred_blob"])
def test_a_net_in_training_mode_is_refused(name):
    export = golden_data.export(name)
    given = export.meta["arguments"]
    with pytest.raises(NetError, match=r"operator 1 SpatialBN .*: it is in training mode \(is_test=0\); extract from"):
        extract_predictor(export.net("train_mode_net"), given["input_blobs"], given["output_blobs"])


def test_training_mode_by_default_is_refused_too():
    source = net(make_op("Dropout", ["x"], ["y", "mask"], ratio=0.5))
    source.op[0].debug_info = "train.py:3 in model"
    with pytest.raises(NetError, match="operator 0 Dropout .* made at train.py:3 in model: it is in training mode"):
        extract_predictor(source, ["x"], ["y"])


def test_an_output_that_needs_a_reader_is_refused():
    source = net(
        make_op("TensorProtosDBInput", ["db"], ["x", "label"], batch_size=2),
        make_op("Relu", ["x"], ["h"]),
        make_op("Sum", ["h", "label"], ["y"]),
    )
    with pytest.raises(NetError, match="'y' depends on 'label', which operator 0 TensorProtosDBInput reads from its"):
        extract_predictor(source, ["x"], ["y"])


def test_a_gradient_is_no_output():
    golden = golden_data.net("mlp_sgd")
    with pytest.raises(NetError, match="of the backward pass writes"):
        extract_predictor(golden.main, ["data"], [golden.meta["param_to_grad"][golden.meta["params"][0]]])


def test_two_blobs_must_not_get_one_name():
    with pytest.raises(NetError, match="'w' and 'b' would both be named 'v'|'b' and 'w' would both be named 'v'"):
        extract_predictor(chain(), ["x"], ["out"], renames={"w": "v", "b": "v"})
    with pytest.raises(NetError, match="would both be named 'h'"):
        extract_predictor(chain(), ["x"], ["out"], renames={"w": "h"})


def test_renaming_inside_an_operator_with_a_net():
    export = golden_data.export("extract_lstm")
    given = export.meta["arguments"]
    renames = {"lstm/gates_t_w": "gates_w", "pred_w": "last_w"}
    got, parameters = extract_predictor(export.net("train_net"), given["input_blobs"], ["pred"], renames=renames)
    assert {"last_w", "gates_w"} <= set(parameters)
    (op,) = [op for op in got.op if op.type == "RecurrentNetwork"]
    (step,) = [argument.n for argument in op.arg if argument.name == "step_net"]
    assert "gates_w" in op.input and "gates_w" in step.op[0].input and "gates_w" in step.external_input
    assert not any("lstm/gates_t_w" in set(blob_names(op)) for op in got.op)


def test_running_means_come_along():
    """The statistics of batch normalization are parameters of the predictor, as trained ones are."""
    export = golden_data.export("extract_dropout_bn")
    _, parameters = extract_predictor(export.net("train_net"), ["data"], ["softmax"])
    assert {"conv1_bn_rm", "conv1_bn_riv"} <= set(parameters)


@pytest.mark.slow
def test_a_long_net_takes_no_recursion_and_little_time():
    source = NetDef(name="long")
    for k in range(20_000):
        source.op.append(make_op("Relu", [f"x{k}"], [f"x{k + 1}"]))
    got, _ = extract_predictor(source, ["x0"], ["x20000"])
    assert len(got.op) == 20_000
    assert np.all([op.type == "Relu" for op in got.op])


def with_loss():
    source = Net("losses")
    source.FC(["data", "w", "b"], "scores")
    source.SoftmaxWithLoss(["scores", "label"], ["softmax", "loss"])
    source.SquaredL2Distance(["scores", "wanted"], "distance")
    return source


@pytest.mark.parametrize(
    ("inputs", "outputs", "parameters", "message"),
    [
        (
            ["data"],
            ["loss"],
            None,
            "depend on 'label', read as 'label' by SoftmaxWithLoss, which is not among",
        ),
        (["data"], ["loss"], ["w", "b"], "depend on 'label', no parameter of the model, .* add 'label' to inputs"),
        (["data"], ["distance"], ["w", "b"], "depend on 'wanted', no parameter of the model"),
    ],
)
def test_labels_of_the_last_batch_are_no_parameters(inputs, outputs, parameters, message):
    with pytest.raises(BlobError, match=message):
        extract_predictor(with_loss(), inputs, outputs, parameters=parameters)
    given = [*inputs, "wanted" if outputs == ["distance"] else "label"]
    assert extract_predictor(with_loss(), given, outputs, parameters=parameters)[1] == ["w", "b"]
    assert extract_predictor(with_loss(), inputs, ["softmax"], parameters=parameters)[1] == ["w", "b"]


def test_an_output_that_is_listed_twice():
    source = Net("twice")
    source.FC(["x", "w", "b"], "h")
    source.Dropout(["h"], ["y", "y"], is_test=1, ratio=0.5)
    got, parameters = extract_predictor(source, ["x"], ["y"])
    assert types(got) == ["FC", "Dropout"] and parameters == ["w", "b"]
