"""The table of our own kernels by operator."""

from __future__ import annotations

from collections.abc import Callable

from netbuilder.engines.cuda.all_finite import all_finite
from netbuilder.engines.cuda.channels import CHANNEL_FUSIONS, CHANNELS
from netbuilder.engines.cuda.copies import (
    channel_shuffle,
    concat,
    reshaped,
    slice_,
    slice_gradient,
    split,
    transpose,
)
from netbuilder.engines.cuda.dense import BY_CUBLAS
from netbuilder.engines.cuda.elementwise import elementwise
from netbuilder.engines.cuda.losses import ROWS
from netbuilder.engines.cuda.lrn import lrn, lrn_gradient
from netbuilder.engines.cuda.pixels import normalize_images
from netbuilder.engines.cuda.recurrent_units import gru_unit, gru_unit_gradient, lstm_unit, lstm_unit_gradient
from netbuilder.engines.cuda.row_sums import ADDED, add_rows, gather, scatter_weighted_sum, sum_repeated_rows
from netbuilder.engines.cuda.row_updates import joint_update, row_update
from netbuilder.engines.cuda.segments import REDUCTIONS, SPREADS, reduce_segments, spread_segments
from netbuilder.engines.cuda.sums import with_sums
from netbuilder.engines.fusion import Fusion
from netbuilder.engines.traced import ELEMENTWISE, WITH_SUMS
from netbuilder.ops.core.contexts import Prepared

__all__ = ["DENSE", "FUSIONS", "JOINT_UPDATES", "KERNELS", "ROW_UPDATES"]


ROW_UPDATES = frozenset(
    """
    Float16SparseNormalize RowWiseCounter RowWiseSparseAdagrad RowWiseSparseAdam SmartDecaySparseAdam SparseAdadelta
    SparseAdagrad SparseAdam SparseFtrl SparseLpRegularizer SparseMomentumSGDUpdate SparseNormalize
    """.split()
)
"""Operators that update rows of tables."""

JOINT_UPDATES = frozenset(("SparseStorm", "SparseWngrad"))
"""Those whose step depends on the gradients of all rows."""

DENSE: dict[str, Callable[..., Prepared | None]] = {
    "BatchMatMul": BY_CUBLAS.batch_matmul,
    **dict.fromkeys(("FC", "FCTransposed"), BY_CUBLAS.fc),
    **dict.fromkeys(("FCGradient", "FCTransposedGradient"), BY_CUBLAS.fc_gradient),
    "MatMul": BY_CUBLAS.matmul,
}
"""Operators that cuBLAS computes where cuDNN does not."""

KERNELS: dict[str, Callable[..., Prepared | None]] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(WITH_SUMS, with_sums),
    **CHANNELS,
    **DENSE,
    **ROWS,
    **dict.fromkeys(ROW_UPDATES, row_update),
    **dict.fromkeys(JOINT_UPDATES, joint_update),
    **dict.fromkeys(REDUCTIONS, reduce_segments),
    **dict.fromkeys(SPREADS, spread_segments),
    **dict.fromkeys(ADDED, add_rows),
    "AllFinite": all_finite,
    **dict.fromkeys(("ChannelShuffle", "ChannelShuffleGradient"), channel_shuffle),
    **dict.fromkeys(("Concat", "DepthConcat"), concat),
    **dict.fromkeys(("DepthSplit", "Split"), split),
    **dict.fromkeys(("NCHW2NHWC", "NHWC2NCHW", "Transpose"), transpose),
    **dict.fromkeys(("ExpandDims", "Flatten", "FlattenToVec", "ResizeLike", "Squeeze"), reshaped),
    "BatchGather": gather,
    "Gather": gather,
    "GRUUnit": gru_unit,
    "GRUUnitGradient": gru_unit_gradient,
    "LRN": lrn,
    "LRNGradient": lrn_gradient,
    "LSTMUnit": lstm_unit,
    "LSTMUnitGradient": lstm_unit_gradient,
    "NormalizeImages": normalize_images,
    "ScatterWeightedSum": scatter_weighted_sum,
    "Slice": slice_,
    "SliceGradient": slice_gradient,
    "SumRepeatedRows": sum_repeated_rows,
}

FUSIONS = (*CHANNEL_FUSIONS, Fusion("FC: *x -> a; Relu: a -> y", "*x -> y", BY_CUBLAS.fused_fc_relu, "fc_relu"))
