"""Arguments that layer helpers get from a block around their calls."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.arg_scope import arg_scope

__all__ = ["arg_scope"]

__getattr__ = names_of(__name__)
