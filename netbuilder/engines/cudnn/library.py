"""The library cuDNN: its frontend, whether it can be used, and a handle for each GPU and thread."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from netbuilder.engines.arrays import array_module, cuda_major, gpu_count
from netbuilder.engines.cuda.handles import ThreadHandles
from netbuilder.engines.gpu import GPU, gpu
from netbuilder.proto import PROTO_CUDA, DeviceError

__all__ = ["available", "cudnn", "free_handles", "handle", "missing", "version", "why_unavailable"]

_FRONTEND = "nvidia-cudnn-frontend>=1.14,<1.19"
_LIBRARY = "nvidia-cudnn-cu12>=9.8,<10"
_OLDEST = 90800  # the first version that knows all engines that ``graphs`` counts on


def _load() -> tuple[Any, str]:
    """Return the frontend, or None and what is missing."""
    try:
        module = importlib.import_module("cudnn")
    except ImportError as error:
        return None, f"the Python package cudnn cannot be imported ({error}); pip install '{_FRONTEND}'"
    except Exception as error:  # the frontend loads the library: OSError without one, AssertionError if there are two
        return None, f"the library cuDNN cannot be loaded ({type(error).__name__}: {error}); {_install()}"
    try:
        found = int(module.backend_version())
    except Exception as error:  # the frontend's own type, if it finds no library
        return None, f"the library cuDNN cannot be loaded ({error}); {_install()}"
    if found < _OLDEST:
        return None, f"cuDNN {found} is older than {_OLDEST}; {_install()}"
    return module, ""


def _install() -> str:
    return f"pip install '{_LIBRARY.replace('cu12', f'cu{cuda_major()}')}'"


@functools.cache
def _found() -> tuple[Any, str]:
    return _load()


def available() -> bool:
    """Whether there is a GPU, and cuDNN for it."""
    return gpu_count() > 0 and _found()[0] is not None


def why_unavailable() -> str:
    """Return what is missing and how to install it; "" if nothing is."""
    if gpu_count() == 0:
        return "cuDNN needs CuPy and an NVIDIA GPU; pip install 'netbuilder[gpu]'"
    return missing()


def missing() -> str:
    """Return what is missing and how to install it, whether or not there is a GPU; "" if nothing is."""
    return _found()[1]


def cudnn() -> Any:
    """Return cuDNN's frontend.

    Raises:
        DeviceError: it is missing; the message says what to install.
    """
    module, reason = _found()
    if module is None:
        raise DeviceError(reason)
    return module


def version() -> str:
    """Return the version of the library, as "9.28.0"."""
    number = int(cudnn().backend_version())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


class _Handle:
    """A handle of one thread for one GPU, and the stream that it was given last."""

    def __init__(self, here: GPU) -> None:
        self.pointer = cudnn().create_handle()
        self.stream: int | None = None


def _new_handles() -> ThreadHandles[_Handle]:
    return ThreadHandles(_Handle, lambda own: cudnn().destroy_handle(own.pointer))


_handles = _new_handles()


def handle() -> Any:
    """Return this thread's handle for its current GPU, which works on the stream that is current now."""
    cuda = array_module(PROTO_CUDA).cuda
    own = _handles.get(gpu(cuda.get_device_id()))
    stream = cuda.get_current_stream().ptr
    if own.stream != stream:
        cudnn().set_stream(handle=own.pointer, stream=stream)
        own.stream = stream
    return own.pointer


def free_handles() -> None:
    """Free the handles of threads that have ended."""
    _handles.free_ended()
