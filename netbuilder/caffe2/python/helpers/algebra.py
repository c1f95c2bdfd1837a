"""Sums, products and the like."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.algebra import batch_mat_mul, mat_mul, reduce_sum, sub, sum, transpose
from netbuilder.model.helpers.outputs import arg_min
from netbuilder.model.helpers.quantization import sparse_lengths_sum_4bit_rowwise_sparse

__all__ = [
    "arg_min",
    "batch_mat_mul",
    "mat_mul",
    "reduce_sum",
    "sparse_lengths_sum_4bit_rowwise_sparse",
    "sub",
    "sum",
    "transpose",
]

__getattr__ = names_of(__name__)
