"""Beam search as a part of a net."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.seq2seq.beam_net import BeamSearchForwardOnly

__all__ = ["BeamSearchForwardOnly"]

__getattr__ = names_of(__name__)
