"""Predictors as other programs write them: no outputs listed, the image filled by the init net, devices of a GPU."""

import numpy as np
import pytest

from netbuilder.exchange import Predictor, load_predictor
from netbuilder.exchange.fills import fill_operator
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, BlobError, NetDef, NetError, ParseError, files
from netbuilder.proto.arguments import make_device_option, make_op, set_argument
from netbuilder.runtime import Workspace
from netbuilder.zoo import create_squeezenet

CPU = make_device_option(PROTO_CPU, 0)


def translated(device=None, **model):
    """SqueezeNet as Caffe2's translator of Caffe models writes it: init net, predict net, images and their scores."""
    helper = ModelHelper("squeezenet", arg_scope={"order": "NCHW"})
    create_squeezenet(helper, "data", 3, 5, version="1.1", image_size=64, is_test=True)
    workspace = Workspace(seed=1, threads=1)
    workspace.run_net_once(helper.param_init_net)
    images = np.random.default_rng(0).standard_normal((2, 3, 64, 64)).astype(np.float32)
    workspace.feed("data", images)
    workspace.run_net_once(helper.net)
    init_net, predict_net = NetDef(name="init"), NetDef()
    for name in map(str, helper.GetParams()):
        init_net.op.append(fill_operator(name, workspace.fetch(name)))
    init_net.op.append(make_op("ConstantFill", [], ["data"], shape=[1]))
    predict_net.CopyFrom(helper.net.Proto())
    predict_net.external_input[:] = ["data", *map(str, helper.GetParams())]
    del predict_net.external_output[:]
    for op in [*predict_net.op, *init_net.op] if device is not None else ():
        op.device_option.CopyFrom(device)
    for op in predict_net.op:
        if op.type == "Conv":
            op.engine = "CUDNN"
            set_argument(op, "cudnn_exhaustive_search", 1)
    return init_net, predict_net, images, workspace.fetch("softmax")


def written(folder, init_net, predict_net, names=("init_net.pb", "predict_net.pb")):
    for name, net in zip(names, (init_net, predict_net)):
        (files.save_text if name.endswith(".pbtxt") else files.save)(folder / name, net)
    return folder


def test_a_translated_model_is_loaded_without_a_word(tmp_path):
    init_net, predict_net, images, want = translated()
    predictor = load_predictor(written(tmp_path, init_net, predict_net))
    assert (predictor.inputs, predictor.outputs) == (("data",), ("softmax",))
    np.testing.assert_allclose(predictor.run(data=images)["softmax"], want, rtol=1e-5, atol=1e-7)


def test_devices_of_a_gpu_are_replaced_in_both_nets(tmp_path):
    init_net, predict_net, images, want = translated(make_device_option(PROTO_CUDA, 3))
    predictor = load_predictor(written(tmp_path, init_net, predict_net), device=CPU)
    np.testing.assert_allclose(predictor.run(data=images)["softmax"], want, rtol=1e-5, atol=1e-7)
    assert {op.device_option.device_type for op in predictor.net.op} == {PROTO_CPU}


def test_copies_between_devices_are_copies_on_the_cpu(tmp_path):
    net = NetDef(name="copies", external_input=["x"])
    net.op.append(make_op("CopyCPUToGPU", ["x"], ["a"], device_option=make_device_option(PROTO_CUDA, 0)))
    net.op.append(make_op("Relu", ["a"], ["b"], device_option=make_device_option(PROTO_CUDA, 0)))
    net.op.append(make_op("CopyGPUToCPU", ["b"], ["y"], device_option=make_device_option(PROTO_CUDA, 0)))
    got = Predictor(NetDef(), net, device=CPU).run(x=np.float32([-1, 2]))
    np.testing.assert_array_equal(got["y"], [0, 2])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("names", [("squeeze_init_net.pb", "squeeze_predict_net.pb"), ("init.pb", "predict.pbtxt")])
def test_files_of_other_names(tmp_path, names):
    init_net, predict_net, images, want = translated()
    written(tmp_path, init_net, predict_net, names)
    predictor = load_predictor(tmp_path / names[1], init_net=tmp_path / names[0])
    np.testing.assert_allclose(predictor.run(data=images)["softmax"], want, rtol=1e-5, atol=1e-7)
    with pytest.raises(FileNotFoundError, match=f"does not hold a predictor: .*are missing; it holds {names[0]}"):
        load_predictor(tmp_path)
    with pytest.raises(FileNotFoundError, match="no_such"):
        load_predictor(tmp_path / names[1], init_net=tmp_path / "no_such.pb")
    (tmp_path / "cut.pb").write_bytes((tmp_path / names[0]).read_bytes()[:1000])
    with pytest.raises(ParseError, match="cut.pb"):
        load_predictor(tmp_path / names[1], init_net=tmp_path / "cut.pb")


def test_other_inputs_and_outputs_than_would_be_found(tmp_path):
    init_net, predict_net, images, want = translated()
    folder = written(tmp_path, init_net, predict_net)
    scores = predict_net.op[-1].input[0]
    assert load_predictor(folder, outputs=[scores]).run(data=images)[scores].size == want.size
    with pytest.raises(BlobError, match=r"no operator makes the outputs \['fc8'\]"):
        load_predictor(folder, outputs=["fc8"])
    with pytest.raises(BlobError, match=f"did you mean '{scores}'"):
        load_predictor(folder, outputs=[f"{scores}s"])
    with pytest.raises(BlobError, match=r"no operator reads the inputs \['image'\]"):
        load_predictor(folder, inputs=["image"])


def nets(*operators, init=(), external=()):
    init_net, net = NetDef(), NetDef(name="net")
    init_net.op.extend(init)
    net.op.extend(operators)
    net.external_input.extend(external)
    return init_net, net


W, B = np.ones((2, 2), np.float32), np.zeros(2, np.float32)
ZEROS = [make_op("ConstantFill", [], [name], shape=[1]) for name in ("x", "b")]


@pytest.mark.parametrize(
    ("operators", "init", "external", "inputs", "outputs"),
    [
        # The bias is filled with zeros, too, but is never what an operator reads first.
        ([make_op("FC", ["x", "w", "b"], ["y"])], [fill_operator("w", W), *ZEROS], "xwb", ["x"], ["y"]),
        ([make_op("FC", ["x", "w", "b"], ["y"])], [fill_operator("w", W), *ZEROS], "", ["x"], ["y"]),
        # If an input is not listed, zeros are values.
        ([make_op("Add", ["x", "z"], ["y"])], ZEROS[:1], "xz", ["z"], ["y"]),
        # A value other than 0 was chosen on purpose.
        ([make_op("Relu", ["x"], ["y"])], [make_op("ConstantFill", [], ["x"], shape=[2], value=3.0)], "x", [], ["y"]),
        # In place, several results, and the mask of a Dropout.
        ([make_op("Relu", ["x"], ["y"]), make_op("Relu", ["y"], ["y"])], [], "x", ["x"], ["y"]),
        ([make_op("TopK", ["x"], ["v", "i"], k=1)], [], "x", ["x"], ["v", "i"]),
        (
            [make_op("Dropout", ["x"], ["d", "m"], is_test=1), make_op("Relu", ["d"], ["y"])],
            [], "", ["x"], ["y"],
        ),
    ],
)  # fmt: skip
def test_what_is_found(operators, init, external, inputs, outputs):
    init_net, net = nets(*operators, init=init, external=external)
    predictor = Predictor(init_net, net)
    assert (list(predictor.inputs), list(predictor.outputs)) == (inputs, outputs)


def test_external_inputs_that_are_listed_have_to_be_complete():
    init_net, net = nets(make_op("Add", ["x", "w"], ["y"]), external="x")
    with pytest.raises(NetError, match=r"\['w'\] are neither inputs \(\['x'\]\) nor filled by the init net"):
        Predictor(init_net, net)


def test_a_net_without_a_result():
    init_net, net = nets()
    with pytest.raises(NetError, match="declares no external output; name the outputs"):
        Predictor(init_net, net)
    model = ModelHelper("kept")
    brew.relu(model, "x", "y")
    assert Predictor(NetDef(), model.net.Proto(), inputs=["x"], outputs=["y"]).outputs == ("y",)
