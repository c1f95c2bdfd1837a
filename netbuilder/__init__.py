"""netbuilder: neural nets as protobuf graphs, differentiated, replicated over devices, planned and run.

The names in ``__all__`` are imported on first use, so that ``import netbuilder`` is fast and needs no other library.
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING

from netbuilder._lazy import names_on_first_use as _names_on_first_use

__version__ = "0.1.0"

# In a checkout ops/, proto/ and tools/ are next to this folder; in an installed copy they are inside it.
_root = _os.path.dirname(_os.path.dirname(_os.path.abspath(__file__)))
if _os.path.isfile(_os.path.join(_root, "setup.py")) and _os.path.isdir(_os.path.join(_root, "ops")):
    __path__.append(_root)
elif _other := [
    name
    for name in (_os.listdir(_root) if _os.access(_root, _os.R_OK) and _os.path.isdir(_root) else ())
    if name.startswith("netbuilder-") and name.endswith(".dist-info")
]:
    import warnings as _warnings

    _warnings.warn(
        f"another project's package, {_other[0].removesuffix('.dist-info')}, is installed too, and has files of the "
        "same names: pip uninstall netbuilder netbuilder-nn, then pip install netbuilder-nn",
        RuntimeWarning,
        stacklevel=2,
    )


# Module -> its public names that this package exports. The imports below are the same list for type checkers.
_EXPORTS = {
    "netbuilder.exchange": [
        "CheckpointFolder",
        "Predictor",
        "load_checkpoint",
        "load_predictor",
        "read_checkpoint",
        "save_checkpoint",
        "save_predictor",
    ],
    "netbuilder.graph": ["BlobReference", "DeviceScope", "ExecutionStep", "NameScope", "Net", "Plan"],
    "netbuilder.model": ["ModelHelper", "brew"],
    "netbuilder.parallel": [
        "DataParallel",
        "ExtractPredictorNet",
        "ParallelDo",
        "Parallelize",
        "Parallelize_CPU",
        "Parallelize_GPU",
        "Replicas",
    ],
    "netbuilder.proto": [
        "ArgumentError",
        "BlobError",
        "DeviceError",
        "DistributedError",
        "GradientError",
        "NetError",
        "OperatorError",
        "ParseError",
        "ShapeError",
        "StoreTimeoutError",
    ],
    "netbuilder.runtime": ["LossReader", "Prefetch", "Workspace"],
}

# Subpackages and modules that are imported on first use, for example by `netbuilder.optimizers.build_sgd`.
_PACKAGES = frozenset(
    {
        *("data", "distributed", "engines", "exchange", "graph", "metrics", "model", "ops", "optimizers"),
        *("parallel", "passes", "proto", "runtime", "zoo"),
    }
)

__all__ = ["__version__", *sorted(name for names in _EXPORTS.values() for name in names)]

if TYPE_CHECKING:
    from netbuilder.exchange import CheckpointFolder as CheckpointFolder
    from netbuilder.exchange import Predictor as Predictor
    from netbuilder.exchange import load_checkpoint as load_checkpoint
    from netbuilder.exchange import load_predictor as load_predictor
    from netbuilder.exchange import read_checkpoint as read_checkpoint
    from netbuilder.exchange import save_checkpoint as save_checkpoint
    from netbuilder.exchange import save_predictor as save_predictor
    from netbuilder.graph import BlobReference as BlobReference
    from netbuilder.graph import DeviceScope as DeviceScope
    from netbuilder.graph import ExecutionStep as ExecutionStep
    from netbuilder.graph import NameScope as NameScope
    from netbuilder.graph import Net as Net
    from netbuilder.graph import Plan as Plan
    from netbuilder.model import ModelHelper as ModelHelper
    from netbuilder.model import brew as brew
    from netbuilder.parallel import DataParallel as DataParallel
    from netbuilder.parallel import ExtractPredictorNet as ExtractPredictorNet
    from netbuilder.parallel import ParallelDo as ParallelDo
    from netbuilder.parallel import Parallelize as Parallelize
    from netbuilder.parallel import Parallelize_CPU as Parallelize_CPU
    from netbuilder.parallel import Parallelize_GPU as Parallelize_GPU
    from netbuilder.parallel import Replicas as Replicas
    from netbuilder.proto import ArgumentError as ArgumentError
    from netbuilder.proto import BlobError as BlobError
    from netbuilder.proto import DeviceError as DeviceError
    from netbuilder.proto import DistributedError as DistributedError
    from netbuilder.proto import GradientError as GradientError
    from netbuilder.proto import NetError as NetError
    from netbuilder.proto import OperatorError as OperatorError
    from netbuilder.proto import ParseError as ParseError
    from netbuilder.proto import ShapeError as ShapeError
    from netbuilder.proto import StoreTimeoutError as StoreTimeoutError
    from netbuilder.runtime import LossReader as LossReader
    from netbuilder.runtime import Prefetch as Prefetch
    from netbuilder.runtime import Workspace as Workspace


__getattr__, __dir__ = _names_on_first_use(__name__, _EXPORTS, _PACKAGES)


if "PMI_FD" in _os.environ:  # MPICH's mpiexec, or srun, has started this process
    from netbuilder.distributed.failure.abort import install_before_mpi as _install_before_mpi

    _install_before_mpi()
