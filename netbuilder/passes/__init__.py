"""Graph passes: reductions over devices, device checks, extraction of predictors, folding of batch normalization.

A pass is a function ``name_pass(net, context, **options)`` decorated with ``@net_pass`` that returns a ``PassResult``,
the new net and named extras; see ``netbuilder.passes.net_pass``. Functions without the ending ``_pass`` are for users:
they take the fields of the context that the pass reads as arguments, and return its net and extras as a tuple.
"""

import typing as _typing

from netbuilder._lazy import names_on_first_use as _names_on_first_use
from netbuilder.graph.blob_devices import blob_devices
from netbuilder.graph.devices import Devices
from netbuilder.passes.device_check import DeviceFault, check_devices, device_faults
from netbuilder.passes.extract_predictor import ExtractPredictorNet, extract_predictor, parameter_sources
from netbuilder.passes.feature_maps import FeatureMap, feature_maps
from netbuilder.passes.fold_batch_norm import fold_batch_norm
from netbuilder.passes.join_parts import join_parts
from netbuilder.passes.net_pass import NetPass, PassContext, PassResult, net_pass
from netbuilder.passes.reductions import allreduce, broadcast, gather_sparse, nccl_allreduce, nccl_broadcast

__all__ = [
    "DeviceFault",
    "Devices",
    "FeatureMap",
    "ExtractPredictorNet",
    "NetPass",
    "PassContext",
    "PassResult",
    "allreduce",
    "blob_devices",
    "broadcast",
    "check_devices",
    "device_faults",
    "extract_predictor",
    "feature_maps",
    "fold_batch_norm",
    "gather_sparse",
    "join_parts",
    "nccl_allreduce",
    "nccl_broadcast",
    "net_pass",
    "parameter_sources",
]

if not _typing.TYPE_CHECKING:  # for which all names are known
    __getattr__, __dir__ = _names_on_first_use(__name__, {})
