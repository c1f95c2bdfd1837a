"""Reads and writes ONNX models; netbuilder.exchange.onnx has more options."""

from netbuilder.caffe2.missing import names_of

__all__: list[str] = []

__getattr__ = names_of(__name__)
