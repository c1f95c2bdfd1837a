"""The build options, as scripts query them."""

from __future__ import annotations

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python import _import_c_extension as C

__all__ = ["CAFFE2_NO_OPERATOR_SCHEMA", "build_options"]

CAFFE2_NO_OPERATOR_SCHEMA = C.define_caffe2_no_operator_schema
build_options = C.get_build_options()

__getattr__ = names_of(__name__)
