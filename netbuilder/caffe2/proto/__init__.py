"""The messages, under the names of Caffe2's modules."""

from functools import partial
from importlib import import_module

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.proto import caffe2_pb2

__all__ = ["caffe2_pb2"]

_REEXPORTED = ("metanet_pb2", "predictor_consts_pb2")  # Caffe2 imports them with the package

__getattr__ = names_of(__name__, {name: partial(import_module, f"{__name__}.{name}") for name in _REEXPORTED})
