"""The arguments that choose a library for an operator, as Caffe2's helpers take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netbuilder.proto import ArgumentError

__all__ = ["convolution_arguments", "own_arguments", "with_engine"]

CUDNN = "CUDNN"

# What every model's arg_scope may hold for convolutions and their like.
_LAYER_ARGUMENTS = frozenset({"cudnn_exhaustive_search", "order", "use_cudnn", "ws_nbytes_limit"})


def with_engine(kwargs: dict[str, Any], use_cudnn: bool) -> dict[str, Any]:
    """Return an operator's arguments, with cuDNN as its engine if ``use_cudnn``."""
    return {**kwargs, "engine": CUDNN} if use_cudnn else kwargs


def own_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without those that a model gives to all layers, for an operator that reads none of them."""
    return {name: value for name, value in kwargs.items() if name not in _LAYER_ARGUMENTS}


def convolution_arguments(
    *,
    use_cudnn: bool,
    order: str,
    cudnn_exhaustive_search: bool,
    ws_nbytes_limit: int | None,
    engine: str | None,
) -> dict[str, Any]:
    """Return the arguments of a convolution that say which library computes it and how.

    Raises:
        ArgumentError: another engine than cuDNN is named while ``use_cudnn`` holds, or cuDNN while it does not;
            ``order`` is none.
    """
    if order not in ("NCHW", "NHWC"):
        raise ArgumentError(f"order must be 'NCHW' or 'NHWC', got {order!r}")
    if not use_cudnn:
        if engine == CUDNN:
            raise ArgumentError("engine 'CUDNN' contradicts use_cudnn=False; leave one of them out")
        return {"order": order, "engine": engine}
    if engine not in (None, CUDNN):
        raise ArgumentError(f"engine {engine!r} cannot serve with use_cudnn=True; give use_cudnn=False")
    arguments = {"order": order, "engine": CUDNN, "exhaustive_search": cudnn_exhaustive_search}
    if ws_nbytes_limit:
        arguments["ws_nbytes_limit"] = ws_nbytes_limit
    return arguments
