"""Tables of few bits as numbers."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.quantization import fused_8bit_rowwise_quantized_to_float

__all__ = ["fused_8bit_rowwise_quantized_to_float"]

__getattr__ = names_of(__name__)
