"""What training nets keep beside their layers."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.outputs import accuracy
from netbuilder.model.helpers.train import add_weight_decay, iter

__all__ = ["accuracy", "add_weight_decay", "iter"]

__getattr__ = names_of(__name__)
