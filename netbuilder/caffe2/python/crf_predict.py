"""The best path of a conditional random field."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.rnn.crf import apply_crf, crf_update_predictions

__all__ = ["apply_crf", "crf_update_predictions"]

__getattr__ = names_of(__name__)
