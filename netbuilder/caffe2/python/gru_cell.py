"""GRU cells and layers."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.rnn.gru import GRUCell
from netbuilder.model.rnn.layers import GRU

__all__ = ["GRU", "GRUCell"]

__getattr__ = names_of(__name__)
