"""What PyTorch's two exporters write of normalization and attention becomes one operator; see ``onnx_models.parts``."""

import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import pytest

if importlib.util.find_spec("onnx") is None:
    pytest.skip("needs the package onnx", allow_module_level=True)

import onnx

from netbuilder.exchange.onnx import read_onnx

ARCHIVE = Path(__file__).resolve().parents[2] / "recorded" / "onnx" / "parts.zip"
NAMES = [name.removesuffix(".onnx") for name in zipfile.ZipFile(ARCHIVE).namelist()]
NORMALIZATIONS = ("layer_norm", "centered", "rms")


@pytest.mark.parametrize("name", NAMES)
def test_parts_become_operators(name):
    model = onnx.load_from_string(zipfile.ZipFile(ARCHIVE).read(f"{name}.onnx"))
    read = read_onnx(model, reference=False)
    types = {op.type for op in read.net.op}
    if name.startswith(NORMALIZATIONS):
        assert types == {"RMSNorm" if name.startswith("rms") else "LayerNorm"}
    else:
        assert "Attention" in types and types.isdisjoint({"Softmax", "Where", "NE", "Sqrt", "Expand"})
    x = np.random.default_rng(0).normal(size=(2, 6, 16)).astype(np.float32)
    (got,) = read.predictor().run(x=x).values()
    reference = pytest.importorskip("onnxruntime").InferenceSession(model.SerializeToString())
    np.testing.assert_allclose(got, reference.run(None, {"x": x})[0], 1e-5, 1e-5)


def test_forms_of_both_exporters():
    assert len(NAMES) >= 70 and {name.split("-", 1)[1] for name in NAMES} >= {"script-13", "script-20", "dynamo-21"}
