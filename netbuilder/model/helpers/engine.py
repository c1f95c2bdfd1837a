"""The arguments of Caffe2's helpers that choose the library for an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netbuilder.proto import ArgumentError

__all__ = ["convolution_arguments", "own_arguments", "with_engine"]

CUDNN = "CUDNN"

# Arguments for convolutions and similar layers that a model's arg_scope may have.
_LAYER_ARGUMENTS = frozenset({"cudnn_exhaustive_search", "order", "use_cudnn", "ws_nbytes_limit"})


def with_engine(kwargs: dict[str, Any], use_cudnn: bool) -> dict[str, Any]:
    """Return an operator's arguments, with cuDNN as its engine if ``use_cudnn``."""
    return {**kwargs, "engine": CUDNN} if use_cudnn else kwargs


def own_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without those that a model's arg_scope has for all layers."""
    return {name: value for name, value in kwargs.items() if name not in _LAYER_ARGUMENTS}


def convolution_arguments(
    *,
    use_cudnn: bool,
    order: str,
    cudnn_exhaustive_search: bool,
    ws_nbytes_limit: int | None,
    engine: str | None,
) -> dict[str, Any]:
    """Return the arguments of a convolution for its library and memory layout.

    Raises:
        ArgumentError: ``engine`` and ``use_cudnn`` contradict each other; ``order`` is invalid.
    """
    if order not in ("NCHW", "NHWC"):
        raise ArgumentError(f"order must be 'NCHW' or 'NHWC', got {order!r}")
    if not use_cudnn:
        if engine == CUDNN:
            raise ArgumentError("engine 'CUDNN' contradicts use_cudnn=False; omit one of them")
        return {"order": order, "engine": engine}
    if engine not in (None, CUDNN):
        raise ArgumentError(f"engine {engine!r} contradicts use_cudnn=True; give use_cudnn=False")
    arguments = {"order": order, "engine": CUDNN, "exhaustive_search": cudnn_exhaustive_search}
    if ws_nbytes_limit:
        arguments["ws_nbytes_limit"] = ws_nbytes_limit
    return arguments
