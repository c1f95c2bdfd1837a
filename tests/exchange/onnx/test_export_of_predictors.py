"""ONNX models of Predictor objects, as they run: folded, joined, with constants computed; against onnxruntime."""

import importlib.util

import numpy as np
import pytest

from netbuilder.exchange import load_predictor, save_predictor
from netbuilder.exchange.onnx import export_onnx
from netbuilder.model import ModelHelper
from netbuilder.passes import extract_predictor
from netbuilder.proto import ArgumentError, NetError
from netbuilder.runtime import Workspace
from netbuilder.tools.training.nets import NETS

if not all(importlib.util.find_spec(package) for package in ("onnx", "onnxruntime")):
    pytest.skip("needs the packages onnx and onnxruntime", allow_module_level=True)

import onnxruntime

SIDE = 32


def predictor_of(name, folder, **options):
    """Return a predictor of a net of the zoo that has been written and read."""
    model, workspace = ModelHelper(name, arg_scope={"order": "NCHW"}), Workspace(threads=1, seed=1)
    NETS[name](model, (3, SIDE, SIDE), 5, is_test=True)
    workspace.run_net_once(model.param_init_net)
    for blob in map(str, model.GetComputedParams()):
        low, high = (0.5, 1.5) if blob.endswith("riv") else (-0.2, 0.2)
        workspace.feed(
            blob, np.random.default_rng(0).uniform(low, high, workspace.fetch(blob).shape).astype(np.float32)
        )
    net, parameters = extract_predictor(model.net, inputs=["data"], outputs=["softmax"])
    save_predictor(folder, net, parameters, workspace=workspace, **options)
    return load_predictor(folder)


SHAPES = {"data": (1, 3, SIDE, SIDE)}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["resnet8-cifar", "densenet121", "vit-s16", "mobilenet-v3-small"])
def test_equal_to_onnxruntime(name, tmp_path):
    predictor, file = predictor_of(name, tmp_path / "p", shapes=SHAPES), tmp_path / "net.onnx"
    export_onnx(file, predictor)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for batch in (1, 3):
        data = np.random.default_rng(batch).standard_normal((batch, 3, SIDE, SIDE)).astype(np.float32)
        (found,) = session.run(None, {"data": data})
        np.testing.assert_allclose(found, predictor.run(data=data)["softmax"], 1e-4, 1e-6)


def test_shapes_that_are_not_known_have_to_be_given(tmp_path):
    predictor, file = predictor_of("resnet8-cifar", tmp_path / "p"), tmp_path / "net.onnx"
    with pytest.raises(ArgumentError, match=r"give shapes=\{input: shape\}, the batch first"):
        export_onnx(file, predictor)
    shape = SHAPES["data"]
    for shapes, said in (
        ({"date": shape}, "shapes: there is no input 'date'; did you mean 'data'"),
        ({"data": (None, *shape[1:])}, r"that of 'data' must be whole numbers, the batch first, got \(None, 3"),
        (shape, r"shapes must be .*, got \("),
    ):
        for exported in (predictor, predictor.net):
            with pytest.raises((ArgumentError, NetError), match=said):
                export_onnx(file, exported, shapes=shapes)
        with pytest.raises((ArgumentError, NetError), match=said):
            save_predictor(tmp_path / "q", predictor.net, inputs=["data"], workspace=predictor.workspace, shapes=shapes)
    assert not file.exists()
    export_onnx(file, predictor, shapes=SHAPES)
    assert file.stat().st_size > 100_000


def test_a_predictor_has_its_parameters(tmp_path):
    predictor = predictor_of("resnet8-cifar", tmp_path / "p", shapes=SHAPES)
    for more in ({"parameters": []}, {"workspace": Workspace()}):
        with pytest.raises(ArgumentError, match="has parameters and workspace; export it without giving these"):
            export_onnx(tmp_path / "net.onnx", predictor, **more)
