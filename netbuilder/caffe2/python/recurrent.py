"""Operators that run a step net over a sequence."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.rnn.recurrent import recurrent_net, retrieve_step_blobs, set_rnn_executor_config

__all__ = ["recurrent_net", "retrieve_step_blobs", "set_rnn_executor_config"]

__getattr__ = names_of(__name__)
