"""The model helper of sequence-to-sequence nets."""

from netbuilder.caffe2.lenient import LenientNet
from netbuilder.caffe2.missing import names_of
from netbuilder.model.seq2seq.model_helper import Seq2SeqModelHelper as _Seq2SeqModelHelper

__all__ = ["Seq2SeqModelHelper"]

__getattr__ = names_of(__name__)


class Seq2SeqModelHelper(_Seq2SeqModelHelper):
    """A sequence model whose nets are checked when they are created (see ``LenientNet``)."""

    net_class = LenientNet
