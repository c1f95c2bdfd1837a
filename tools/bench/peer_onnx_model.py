"""The net of the benchmark of predictors as an ONNX model, for the peers, in whose environments onnx is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET, _IR_VERSION = 17, 8
_SAME_NAME = {"Relu", "Softmax", "Sum"}


def nodes_of(row: dict[str, Any]) -> list[Any]:
    """Return the ONNX nodes for one Caffe2 operator."""
    kind, inputs, outputs, given = row["type"], row["inputs"], row["outputs"], row["arguments"]
    if kind in _SAME_NAME:
        attributes = {"axis": given.get("axis", 1)} if kind == "Softmax" else {}
        return [helper.make_node(kind, inputs, outputs, **attributes)]
    if kind == "SpatialBN":
        return [helper.make_node("BatchNormalization", inputs, outputs, epsilon=given.get("epsilon", 1e-5))]
    if kind == "FC":
        flat = outputs[0] + "/rows"
        return [
            helper.make_node("Flatten", inputs[:1], [flat], axis=1),
            helper.make_node("Gemm", [flat, *inputs[1:]], outputs, transB=1),
        ]
    if kind == "AveragePool" and given.get("global_pooling"):
        return [helper.make_node("GlobalAveragePool", inputs, outputs)]
    if kind in ("Conv", "MaxPool"):
        attributes = {
            "kernel_shape": [given["kernel"]] * 2,
            "strides": [given.get("stride", 1)] * 2,
            "pads": [given.get("pad", 0)] * 4,
        }
        if kind == "Conv":
            attributes["group"] = given.get("group", 1)
        return [helper.make_node(kind, inputs, outputs, **attributes)]
    raise ValueError(f"operator {kind!r} is not in the nets of this benchmark")


def model_of(folder: Path) -> Any:
    """Return the net in a folder as an ONNX model; normalizations are not folded, since the peers do that.

    Args:
        folder: as ``our_predictor.export`` writes it.
    """
    graph = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
    with np.load(folder / "weights.npz") as weights:
        initial = [numpy_helper.from_array(weights[name], name) for name in weights.files]
    made = helper.make_graph(
        [node for row in graph["operators"] for node in nodes_of(row)],
        "predictor",
        [helper.make_tensor_value_info(graph["input"], TensorProto.FLOAT, graph["shape"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", "classes"]) for name in graph["outputs"]],
        initial,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    onnx.checker.check_model(model)
    return model
