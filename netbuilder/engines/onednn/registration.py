"""The table of oneDNN's prepared kernels by operator, and their registration."""

from __future__ import annotations

import warnings
from typing import Any

from netbuilder.engines.convolution_tables import with_fixed_ranks
from netbuilder.engines.onednn.library import available, turned_off, why_unavailable
from netbuilder.ops.core.registry import CPU, prepare_table

__all__ = ["kernel_table", "register_kernels"]

_warned: list[str] = []


def register_kernels() -> bool:
    """Register prepared kernels for all operators registered so far; a later call adds those of later operators.

    Returns:
        Whether oneDNN is available. If it is missing, a warning, once per process, tells what to install; if it is
        turned off, there is no warning.
    """
    if not available():
        if not turned_off() and not _warned:
            _warned.append(why_unavailable())
            warnings.warn(
                f"oneDNN is not available, so operators run on NumPy alone, many times slower: {_warned[0]}",
                RuntimeWarning,
                stacklevel=2,
            )
        return False
    prepare_table(kernel_table(), device=CPU, engine="ONEDNN", priority=10)
    return True


# The modules of gradients are imported when one is asked for: a predictor starts sooner without them.


def _conv_gradient(*arguments: Any) -> Any:
    from netbuilder.engines.onednn.deferred_gradients import conv_gradient

    return conv_gradient(*arguments)


def _conv_transpose_gradient(*arguments: Any) -> Any:
    from netbuilder.engines.onednn.deferred_gradients import conv_transpose_gradient

    return conv_transpose_gradient(*arguments)


def kernel_table() -> dict[str, Any]:
    """Return the function that makes each operator's prepared kernel, by operator type."""
    from netbuilder.engines.onednn import kernels_conv as conv
    from netbuilder.engines.onednn import kernels_dense as dense
    from netbuilder.engines.onednn import kernels_join as join
    from netbuilder.engines.onednn import kernels_lrn as lrn
    from netbuilder.engines.onednn import kernels_norm as norm
    from netbuilder.engines.onednn import kernels_parts as parts
    from netbuilder.engines.onednn import kernels_pool as pool
    from netbuilder.engines.onednn.widened import widened_where_faster

    table: dict[str, Any] = {
        "Alias": join.copy,
        "AveragePool": pool.average_pool,
        "AveragePoolGradient": pool.average_pool_gradient,
        "BatchMatMul": dense.batch_matmul,
        "ChannelBackpropStats": parts.channel_backprop_stats,
        "ChannelStats": parts.channel_stats,
        "Concat": join.concat,
        "Conv": widened_where_faster(conv.conv, lambda op: (0,)),
        "ConvGradient": _conv_gradient,
        "ConvRelu": conv.conv_relu,
        "ConvTranspose": widened_where_faster(conv.conv_transpose, lambda op: (0,)),
        "ConvTransposeGradient": _conv_transpose_gradient,
        "Copy": join.copy,
        "CopyFromCPUInput": join.copy,
        "CopyOnDeviceLike": join.copy,
        "DepthConcat": join.concat,
        "DepthSplit": join.split,
        "EnsureCPUOutput": join.copy,
        "FC": dense.fc,
        "FCGradient": dense.fc_gradient,
        "FCTransposed": dense.fc,
        "FCTransposedGradient": dense.fc_gradient,
        "LRN": lrn.lrn,
        "LRNGradient": lrn.lrn_gradient,
        "MatMul": dense.matmul,
        "MaxPool": pool.max_pool,
        "MaxPoolGradient": pool.max_pool_gradient,
        "ReduceMean": pool.mean_of_images,
        "SpatialBN": norm.spatial_bn,
        "SpatialBNGradient": norm.spatial_bn_gradient,
        "Split": join.split,
        "StopGradient": join.copy,
    }
    return with_fixed_ranks(table)
