"""Each argument of each layer helper with values of every kind: taken, or refused in words."""

import pytest

from netbuilder.model import ModelHelper, brew
from netbuilder.proto import NetError
from wrong_calls import bare_errors

_ONE = {"blob_in": "x", "blob_out": "y"}
_TWO = {"blob_in": ["a", "b"], "blob_out": "c"}
_CONV = {**_ONE, "dim_in": 4, "dim_out": 4, "kernel": 3, "weight_init": None, "bias_init": None}
_CLASSES = {"WeightInitializer": None, "BiasInitializer": None}
_LIBRARY = {"use_cudnn": False, "order": "NCHW"}

HELPERS = {
    "accuracy": {**_TWO, "top_k": 1},
    "add": {**_TWO, "broadcast": 1},
    "add_weight_decay": {"weight_decay": 0.1},
    "arg_max": {**_ONE, "axis": 1},
    "arg_min": {**_ONE, "axis": 1},
    "attention": {**_ONE, "dim": 8, "heads": 4, "memory": None, "memory_dim": None, "key_heads": 2, "causal": False,
                  "mask": None, "mask_gradient": False, "rotary": None, "bias": True, "dropout": 0.1, "is_test": False,
                  "weight_init": None, "out_init": None, "cache": None},
    "average_pool": {**_ONE, **_LIBRARY, "kernel": 2, "stride": 2},
    "batch_mat_mul": {**_TWO, "enable_tensor_core": False},
    "concat": {"blobs_in": ["a", "b"], "blob_out": "c"},
    "cond": {"cond_blob": "c", "external_blobs": ["x"], "then_model": None, "else_model": None},
    "conv": {**_CONV, **_CLASSES, **_LIBRARY, "group": 1, "transform_inputs": None, "no_bias": False, "engine": None,
             "cudnn_exhaustive_search": False, "ws_nbytes_limit": None, "stride": 1, "pad": 0, "bias": None},
    "conv_nd": {**_CONV, "kernel": [3], "group": 1, "order": "NCHW"},
    "conv_transpose": {**_CONV, **_LIBRARY, "no_bias": False, "engine": None, "stride": 1, "pad": 0},
    "db_input": {"blobs_out": ["a", "b"], "batch_size": 2, "db": "d", "db_type": "minidb"},
    "depth_concat": {"blobs_in": ["a", "b"], "blob_out": "c"},
    "depthwise": {**_ONE, "dim": 4, "kernel": 3, "weight_init": None, "bias_init": None, "stride": 1, "pad": 1},
    "dropout": {**_ONE, "ratio": 0.5, "is_test": 0, "use_cudnn": False},
    "einsum": {**_TWO, "subscripts": "ij,jk->ik"},
    "elementwise_linear": {**_ONE, "dim": 3, "weight_init": None, "bias_init": None, "axis": 1},
    "elu": {**_ONE, "alpha": 1.0},
    "embedding": {**_ONE, "num_rows": 5, "dim_out": 3, "weight_init": None, "table": None, "lengths": None,
                  "weights": None, "pooling": "sum"},
    "fc": {**_ONE, **_CLASSES, "dim_in": 4, "dim_out": 3, "weight_init": None, "bias_init": None, "axis": 1},
    "fused_8bit_rowwise_quantized_to_float": _ONE,
    "group_conv": {**_CONV, "group": 2},
    "group_conv_deprecated": {**_CONV, **_LIBRARY, "group": 2},
    "hard_swish": _ONE,
    "image_input": {"blob_in": "r", "blob_out": ["a", "b"], "order": "NCHW", "batch_size": 2, "crop": 8},
    "instance_norm": {**_ONE, "dim_in": 4, "order": "NCHW", "is_test": 0, "epsilon": 1e-5},
    "iter": {"blob_out": "i"},
    "layer_norm": {**_ONE, "dim_in": 4, "axis": 1, "epsilon": 1e-4, "initial_scale": 1.0, "initial_bias": 0.0},
    "loop": {"cond_blob": "c", "external_blobs": ["x"], "loop_model": None, "cond_model": None},
    "lrn": {**_ONE, **_LIBRARY, "size": 5, "alpha": 1e-4, "beta": 0.75, "bias": 1.0},
    "mat_mul": {**_TWO, "trans_a": 0},
    "max_pool": {**_ONE, **_LIBRARY, "kernel": 2, "stride": 2, "pad": 0},
    "max_pool_with_index": {**_ONE, "kernel": 2, "stride": 2, "order": "NCHW"},
    "moments_with_running_stats": {**_ONE, "dim_in": 4, "RunningMeanInitializer": None, "order": "NCHW"},
    "positions": {**_ONE, "dim": 4, "length": 3, "kind": "learned", "weight_init": None, "cache": None},
    "prelu": {**_ONE, "num_channels": 1, "slope_init": None},
    "reduce_sum": {**_ONE, "axes": [1], "keepdims": 1},
    "relu": {**_ONE, **_LIBRARY},
    "rms_norm": {**_ONE, "dim_in": 4, "axis": 1, "epsilon": 1e-5, "bias": False},
    "rotary_tables": {"blob_out": "y", "width": 4, "length": 3, "base": 10000.0},
    "sigmoid": _ONE,
    "softmax": {**_ONE, "use_cudnn": False, "axis": 1, "one_axis": False},
    "sparse_lengths_sum_4bit_rowwise_sparse": {"blob_in": ["a", "b", "c", "d"], "blob_out": "y"},
    "spatial_bn": {**_ONE, "dim_in": 4, "init_scale": 1.0, "init_bias": 0.0, "ScaleInitializer": None,
                   "RunningMeanInitializer": None, "order": "NCHW", "is_test": 0, "epsilon": 1e-5, "momentum": 0.9},
    "spatial_gn": {**_ONE, "dim_in": 4, "init_scale": 1.0, "ScaleInitializer": None, "order": "NCHW", "group": 2},
    "squeeze_excite": {**_ONE, "dim": 4, "squeezed": 2, "activation": "Relu", "gate": "Sigmoid", "weight_init": None},
    "stochastic_depth": {**_ONE, "ratio": 0.1, "ndim": 2, "is_test": False},
    "sub": _TWO,
    "sum": _TWO,
    "tanh": _ONE,
    "transformer_block": {**_ONE, "dim": 8, "heads": 4, "hidden": 16, "activation": "gelu", "norm": "layer",
                          "norm_first": True, "epsilon": 1e-5, "dropout": 0.1, "is_test": False, "weight_init": None,
                          "out_init": None, "causal": False},
    "transpose": {**_ONE, "axes": [1, 0], "use_cudnn": False},
    # Those that add one operator; its arguments are its own.
    "abs": _ONE, "clip": {**_ONE, "min": 0.0}, "gather": {**_TWO, "axis": 0}, "gelu": {**_ONE, "fast_gelu": True},
    "mul": _TWO, "reshape": {**_ONE, "shape": [0, -1]}, "split": {"blob_in": "x", "blob_out": ["a", "b"], "axis": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", HELPERS)
def test_no_bare_errors(name):
    def call(**arguments):
        return getattr(brew, name)(ModelHelper("model"), **arguments)

    assert not list(bare_errors(call, HELPERS[name]))


_LAYER = {**_ONE, "dim_in": 3, "dim_out": 3}
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "name, arguments",
    [
        *(("max_pool", {**_ONE, **wrong}) for wrong in (
            {"kernel": 0}, {"kernel": -1}, {"kernels": [2, 0]}, {"kernel": 2, "stride": 0}, {"kernel": 2, "pad": -1})),
        *(("conv", {**_LAYER, "kernel": 3, **wrong}) for wrong in (
            {"kernel": 0}, {"stride": 0}, {"dilation": 0}, {"order": "NCWH"}, {"bias": False}, {"no_bias": "no"},
            {"group": 0}, {"group": 2}, {"pad": 0.5})),
        *(("spatial_bn", {**_ONE, "dim_in": 3, **wrong}) for wrong in (
            {"is_test": "no"}, {"is_test": 2}, {"epsilon": -1.0}, {"epsilon": NAN}, {"momentum": 1.5}, {"dim_in": 0},
            {"init_scale": NAN}, {"init_bias": INF})),
        *(("dropout", {**_ONE, "is_test": 0, **wrong}) for wrong in (
            {"ratio": NAN}, {"ratio": 1.5}, {"ratio": -0.5}, {"is_test": "no"}, {"is_test": []})),
        *(("fc", {**_LAYER, "weight_init": fill}) for fill in (
            ("GaussianFill", {"std": NAN}), ("GaussianFill", {"std": INF}), ("GaussianFill", {"std": -1.0}),
            ("UniformFill", {"max": INF}), ("UniformFill", {"min": 1.0, "max": 0.0}), ("ConstantFill", {"value": NAN}),
            ("ConstantFill", {"value": INF}), ("XavierFill", {"shape": [1]}), "XavierFill", (), {})),
        ("softmax", {**_ONE, "axis": 0.5}),
        ("elu", {**_ONE, "alpha": NAN}),
        ("prelu", {**_ONE, "num_channels": 0}),
        ("relu", {**_ONE, "is_test": "no"}),
    ],
    ids=str,
)  # fmt: skip
def test_what_nobody_can_mean_is_refused(name, arguments):
    model = ModelHelper("model")
    with pytest.raises(NetError):
        getattr(brew, name)(model, **arguments)
    assert not model.net.op_len and not model.param_init_net.op_len  # nothing half-built
