"""Passes: nets in, nets out. Reductions over devices, device checks, predictors: extraction, folding."""

from netbuilder.passes.blob_devices import blob_devices
from netbuilder.passes.device_check import DeviceFault, check_devices, device_faults
from netbuilder.passes.devices import Devices
from netbuilder.passes.extract_predictor import ExtractPredictorNet, extract_predictor, parameter_sources
from netbuilder.passes.fold_batch_norm import fold_batch_norm
from netbuilder.passes.reductions import allreduce, broadcast, gather_sparse, nccl_allreduce, nccl_broadcast
from netbuilder.passes.tensor_cores import init_tt_cores, matrix_to_tt, tt_svd
from netbuilder.passes.tensor_train import fc_net_to_tt_net

__all__ = [
    "DeviceFault",
    "Devices",
    "ExtractPredictorNet",
    "allreduce",
    "blob_devices",
    "broadcast",
    "check_devices",
    "device_faults",
    "extract_predictor",
    "fc_net_to_tt_net",
    "fold_batch_norm",
    "gather_sparse",
    "init_tt_cores",
    "matrix_to_tt",
    "nccl_allreduce",
    "nccl_broadcast",
    "parameter_sources",
    "tt_svd",
]
