"""The model helper of sequence-to-sequence nets."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.seq2seq.model_helper import Seq2SeqModelHelper

__all__ = ["Seq2SeqModelHelper"]

__getattr__ = names_of(__name__)
