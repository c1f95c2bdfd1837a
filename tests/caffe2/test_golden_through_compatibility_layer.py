"""Golden data replayed by Caffe2's names alone, as a user who has such files would do it."""

import pytest

import golden_data
from golden_cases import of_each_operator
from golden_data import mismatch
from netbuilder.caffe2.proto import caffe2_pb2
from netbuilder.caffe2.python import core, data_parallel_model, model_helper, workspace
from netbuilder.caffe2.python.predictor import mobile_exporter

# Caffe2's own nets and cases overwrite what their gradient reads, here and there.

# Cases whose gradients differ from Caffe2's; tests/ops/test_golden.py says why.
OTHER_GRADIENTS = {"Mul-10", "IntegralImage-0"}
OTHER_OPERATORS = {"Sqr-0", "Sqr-1", "Sqr-3", "Pow-4", "Pow-5", "Pow-6", "RowMul-0", "RowMul-1"}


def known(ops):
    return all(core.IsOperator(op.type) for op in ops)


def sample():
    """The first, the middle and the last case of every operator that has cases."""
    for name in golden_data.operators():
        cases = [
            case
            for case in golden_data.cases(name)
            if case.check != "distribution" and f"{case.op}-{case.index}" not in golden_data.REFUSED
        ]
        if core.IsOperator(name):
            yield from dict.fromkeys([cases[0], cases[len(cases) // 2], cases[-1]] if cases else [])


SAMPLE = list(sample())
NETS = [name for name in golden_data.nets() if golden_data.net(name).runnable]
READY = [name for name in NETS if known(golden_data.net(name).main.op)]


def feed(arrays):
    for name, value in arrays.items():
        workspace.FeedBlob(name, value)


def wrong(arrays, check, rtol, atol):
    said = {name: mismatch(workspace.FetchBlob(name), value, check, rtol, atol) for name, value in arrays.items()}
    return {name: text for name, text in said.items() if text}


def test_the_sample_is_of_a_size():
    assert len(SAMPLE) > 200 and len(READY) >= 33


@pytest.mark.one_in(4)
@of_each_operator(SAMPLE)
def test_operators(case):
    workspace.ResetWorkspace()
    feed(case.inputs)
    workspace.RunOperatorOnce(case.operator)
    assert wrong(case.outputs, case.check, case.rtol, case.atol) == {}


@pytest.mark.one_in(4)
@of_each_operator([case for case in SAMPLE if case.has_gradient])
def test_gradients(case):
    workspace.ResetWorkspace()
    key = f"{case.op}-{case.index}"
    feed(case.inputs)
    workspace.RunOperatorOnce(case.operator.SerializeToString())
    feed(case.output_grads)
    workspace.RunOperatorsOnce(case.gradient_ops)
    if key not in OTHER_GRADIENTS:
        assert wrong(case.gradient_blobs, "close", case.grad_rtol, case.grad_atol) == {}
    net = core.Net("forward")
    net.Proto().op.extend([case.operator])
    seeds = {core.BlobReference(y): core.BlobReference(g) for y, g in case.meta["grad_of_outputs"].items()}
    net.AddGradientOperators(seeds)
    kept = ["Sum"] if key in golden_data.OVERWRITTEN else []
    assert [op.type for op in net.Proto().op[: 1 + len(kept)]] == [*kept, case.op]
    if key not in OTHER_OPERATORS:
        assert [op.type for op in net.Proto().op[1 + len(kept) :]] == [op.type for op in case.gradient_ops]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", READY)
def test_nets(name):
    golden = golden_data.net(name)
    on_cpu = "_on_cpu" if "net_on_cpu" in golden.protos else ""
    main, init = golden.protos["net" + on_cpu], golden.protos["param_init_net" + on_cpu]
    feed(golden.inputs(1))
    assert workspace.RunNetOnce(init.SerializeToString())
    feed(golden.start_values())
    assert workspace.CreateNet(main)
    for iteration in golden.iterations():
        feed(golden.inputs(iteration))
        assert workspace.RunNet(main.name)
        assert wrong(golden.expected(iteration), "close", golden.rtol, golden.atol) == {}, iteration


@pytest.mark.parametrize("name", [name for name in NETS if name not in READY])
def test_nets_with_operators_to_come_are_refused_by_name(name):
    golden = golden_data.net(name)
    with pytest.raises(RuntimeError, match="unknown operator"):
        workspace.CreateNet(golden.main, input_blobs=golden.main.external_input)


class TestExports:
    def test_a_pair_of_nets(self):
        export = golden_data.export("mobile_convnet")
        workspace.RunNetOnce(export.net("init_net"))
        feed(export.arrays["inputs"])
        workspace.RunNetOnce(export.net())
        assert wrong(export.arrays["expected"], "close", 1e-4, 1e-5) == {}

    def test_a_pair_of_nets_in_a_predictor(self):
        export = golden_data.export("mobile_convnet")
        nets = [export.net(name).SerializeToString() for name in ("init_net", "predict_net")]
        predictor = workspace.Predictor(*nets)
        for inputs in (export.arrays["inputs"], list(export.arrays["inputs"].values())):
            found = dict(zip(export.net().external_output, predictor.run(inputs)))
            for name, value in export.arrays["expected"].items():
                assert mismatch(found[name], value, "close", 1e-4, 1e-5) is None

    def test_every_type_of_parameter(self):
        export = golden_data.export("mobile_datatypes")
        workspace.RunNetOnce(export.net("init_net"))
        feed(export.arrays.get("inputs", {}))
        workspace.RunNetOnce(export.net())
        assert wrong(export.arrays["expected"], "close", 1e-4, 1e-5) == {}

    def test_exporting_gives_the_numbers_again(self):
        export = golden_data.export("mobile_convnet")
        workspace.RunNetOnce(export.net("init_net"))
        feed(export.arrays["inputs"])
        params = [op.output[0] for op in export.net("init_net").op if op.output[0] not in export.arrays["inputs"]]
        init_net, predict_net = mobile_exporter.Export(workspace, export.net(), params)
        workspace.ResetWorkspace()
        workspace.RunNetOnce(init_net)
        feed(export.arrays["inputs"])
        workspace.RunNetOnce(predict_net)
        assert wrong(export.arrays["expected"], "close", 1e-4, 1e-5) == {}

    @pytest.mark.parametrize("name", ["extract_data_parallel", "extract_db_input", "extract_dropout_bn"])
    def test_predictors_that_caffe2_extracted(self, name):
        export = golden_data.export(name)
        feed(export.arrays["params"])
        feed(export.arrays["inputs"])
        workspace.RunNetOnce(export.net())
        assert wrong(export.arrays["expected"], "close", export.meta["rtol"], export.meta["atol"]) == {}

    @pytest.mark.parametrize("name", ["extract_db_input", "extract_dropout_bn", "extract_pred_blob"])
    def test_predictors_extracted_here(self, name):
        export = golden_data.export(name)
        arguments = dict(export.meta["arguments"])
        if "device" in arguments:
            arguments["device"] = core.DeviceOption(caffe2_pb2.CPU)
        predict_net, blobs = model_helper.ExtractPredictorNet(export.net("train_net"), **arguments)
        assert set(blobs) == set(export.meta["export_blobs"]) - {"label"}
        feed(export.arrays["params"])
        feed(export.arrays["inputs"])
        workspace.RunNetOnce(predict_net)
        assert wrong(export.arrays["expected"], "close", export.meta["rtol"], export.meta["atol"]) == {}

    def test_a_predictor_extracted_from_a_parallel_net(self):
        export = golden_data.export("extract_data_parallel")
        train = core.Net(export.net("train_net"))
        device = core.DeviceOption(caffe2_pb2.CPU)
        predict_net, blobs = data_parallel_model.ExtractPredictorNet(train, ["data"], ["softmax"], device)
        scope = "cpu_0/"
        assert {scope + str(blob) for blob in blobs} == set(export.meta["export_blobs"]) - {scope + "label"}
        feed({name.removeprefix(scope): value for name, value in export.arrays["params"].items()})
        feed(export.arrays["inputs"])
        workspace.RunNetOnce(predict_net)
        assert wrong(export.arrays["expected"], "close", export.meta["rtol"], export.meta["atol"]) == {}
