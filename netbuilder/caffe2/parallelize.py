"""Parallelize and Parallelize_BMUF as in Caffe2: losses may have several numbers; Nesterov's sign is the opposite.

Each device divides a weighted mean by the weights of its own share of a batch.
"""

from __future__ import annotations

import inspect
from typing import Any

from netbuilder import parallel
from netbuilder.caffe2 import data_parallel_helpers
from netbuilder.distributed import set_collective_timeout
from netbuilder.parallel import Replicas
from netbuilder.proto.suggestions import arguments_of

__all__ = [
    "Parallelize",
    "Parallelize_BMUF",
    "Parallelize_CPU",
    "Parallelize_CPU_BMUF",
    "Parallelize_GPU",
    "Parallelize_GPU_BMUF",
    "Parallelize_iDeep",
]

_CAFFE2_TIMEOUT_SEC = data_parallel_helpers._DEFAULT_TIMEOUT_SEC
_AS_IN_CAFFE2 = {"vector_losses": True, "combine_means": False}
_SIGNATURE = inspect.signature(parallel.Parallelize)
_BMUF_SIGNATURE = inspect.signature(parallel.Parallelize_BMUF)


@arguments_of(parallel.Parallelize)
def Parallelize(*args: Any, **kwargs: Any) -> Replicas:
    """``netbuilder.parallel.Parallelize``; without ``options`` losses may be vectors and means are not combined.

    Without parameter updates ``optimize_gradient_memory`` has no effect: scripts also give it for models that only
    evaluate. A script that has assigned ``data_parallel_model._DEFAULT_TIMEOUT_SEC`` sets the time limit of collectives
    with it.
    """
    _set_time_limit()
    given = _SIGNATURE.bind(*args, **kwargs)
    updates = (given.arguments.get(f"{name}_builder_fun") for name in ("param_update", "optimizer"))
    if "optimize_gradient_memory" in given.arguments and not any(updates):
        given.arguments["optimize_gradient_memory"] = False
        args, kwargs = given.args, given.kwargs
    return parallel.Parallelize(*args, **_as_in_caffe2(kwargs))


def _as_in_caffe2(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments with those for Caffe2's behaviour, unless they have an object with all options."""
    return kwargs if kwargs.get("options") is not None else {**_AS_IN_CAFFE2, **kwargs}


def _set_time_limit() -> None:
    seconds = data_parallel_helpers._DEFAULT_TIMEOUT_SEC
    if seconds != _CAFFE2_TIMEOUT_SEC:
        set_collective_timeout(seconds)


@arguments_of(Parallelize, "cpu_device")
def Parallelize_CPU(*args: Any, **kwargs: Any) -> Replicas:
    """``Parallelize`` on the CPU."""
    return Parallelize(*args, **{**kwargs, "cpu_device": True})


@arguments_of(Parallelize, "cpu_device")
def Parallelize_GPU(*args: Any, **kwargs: Any) -> Replicas:
    """``Parallelize`` on NVIDIA GPUs."""
    return Parallelize(*args, **{**kwargs, "cpu_device": False})


@arguments_of(Parallelize, "ideep")
def Parallelize_iDeep(*args: Any, **kwargs: Any) -> Replicas:
    """Raise NetError: iDeep is not supported; call ``Parallelize_CPU``, whose plans choose oneDNN automatically."""
    return Parallelize(*args, **{**kwargs, "ideep": True})


@arguments_of(parallel.Parallelize_BMUF)
def Parallelize_BMUF(*args: Any, **kwargs: Any) -> Replicas:
    """``netbuilder.parallel.Parallelize_BMUF``; with ``nesterov`` the look-ahead is Caffe2's, see ``lookahead``."""
    given = _BMUF_SIGNATURE.bind(*args, **kwargs).arguments
    if given.get("nesterov") is True and given.get("lookahead") is None:
        kwargs["lookahead"] = -1.0
    _set_time_limit()
    return parallel.Parallelize_BMUF(*args, **_as_in_caffe2(kwargs))


@arguments_of(Parallelize_BMUF, "cpu_device")
def Parallelize_CPU_BMUF(*args: Any, **kwargs: Any) -> Replicas:
    """``Parallelize_BMUF`` on the CPU."""
    return Parallelize_BMUF(*args, **{**kwargs, "cpu_device": True})


@arguments_of(Parallelize_BMUF, "cpu_device")
def Parallelize_GPU_BMUF(*args: Any, **kwargs: Any) -> Replicas:
    """``Parallelize_BMUF`` on NVIDIA GPUs."""
    return Parallelize_BMUF(*args, **{**kwargs, "cpu_device": False})
