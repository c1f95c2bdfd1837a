"""The package onnx, loaded when it is needed."""

from __future__ import annotations

import importlib
from typing import Any

from netbuilder.proto import DeviceError
from netbuilder.proto.extras import how_to_install

__all__ = ["onnx_library"]


def onnx_library() -> Any:
    """Return the package onnx.

    Raises:
        DeviceError: it is not installed.
    """
    try:
        return importlib.import_module("onnx")
    except ImportError as error:
        raise DeviceError(f"ONNX needs the package onnx: {how_to_install('onnx')} ({error})") from error
