"""Boxes sampled from images, in models for ONNX's operators before and after version 16."""

import pytest

from netbuilder.exchange.onnx import onnx_model
from netbuilder.proto import NetDef, OperatorError
from netbuilder.proto.arguments import make_op

pytest.importorskip("onnx")


@pytest.mark.parametrize(("opset", "mode"), [(15, []), (16, ["coordinate_transformation_mode"])])
def test_boxes_that_are_not_aligned(opset, mode):
    net = NetDef(name="boxes", op=[make_op("RoIAlign", ["x", "rois"], ["y"])])
    model = onnx_model(net, {}, shapes={"x": (1, 2, 8, 8), "rois": (3, 5)}, outputs=["y"], opset=opset)
    align = next(node for node in model.graph.node if node.op_type == "RoiAlign")
    assert [a.name for a in align.attribute if a.name == "coordinate_transformation_mode"] == mode


def test_aligned_boxes_need_a_later_opset():
    net = NetDef(name="boxes", op=[make_op("RoIAlign", ["x", "rois"], ["y"], aligned=1)])
    with pytest.raises(OperatorError, match="aligned needs opset 16 or later, got 15"):
        onnx_model(net, {}, shapes={"x": (1, 2, 8, 8), "rois": (3, 5)}, outputs=["y"], opset=15)
