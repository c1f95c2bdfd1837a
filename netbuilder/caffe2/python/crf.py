"""Linear-chain conditional random fields."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.rnn.crf import CRFWithLoss

__all__ = ["CRFWithLoss"]

__getattr__ = names_of(__name__)
