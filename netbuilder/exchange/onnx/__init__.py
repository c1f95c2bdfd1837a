"""ONNX: predictors written as ONNX models, and ONNX models read as nets. Needs the extra ``onnx``."""

from netbuilder.exchange.onnx.export import export_onnx, onnx_model
from netbuilder.exchange.onnx.read_model import ReadModel
from netbuilder.exchange.onnx.read_onnx_model import read_onnx
from netbuilder.exchange.onnx.reference import ReferenceNodeWarning

__all__ = ["ReadModel", "ReferenceNodeWarning", "export_onnx", "onnx_model", "read_onnx"]
