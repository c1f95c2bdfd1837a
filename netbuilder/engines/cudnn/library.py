"""The library cuDNN: its frontend, whether it can be used, and a handle for each GPU and thread."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from netbuilder.engines.arrays import array_module, gpu_count
from netbuilder.engines.cuda.handles import ThreadHandles
from netbuilder.engines.described_gpu import described_gpu
from netbuilder.engines.gpu import GPU, gpu
from netbuilder.engines.gpu_packages import how_to_install, wrong_cudnn
from netbuilder.proto import PROTO_CUDA, DeviceError
from netbuilder.proto.extras import CUDNN, FRONTEND

__all__ = [
    "OLDEST",
    "available",
    "cudnn",
    "found_library",
    "free_handles",
    "handle",
    "load",
    "missing",
    "new_handles",
    "thread_handles",
    "version",
    "why_unavailable",
]

OLDEST = 90800  # the first version that knows all engines that ``graphs`` counts on


def load() -> tuple[Any, str]:
    """Return the frontend, or None and what is missing."""
    remedy = wrong_cudnn() or how_to_install(CUDNN)
    try:
        module = importlib.import_module("cudnn")
    except ImportError as error:
        return None, f"the Python package cudnn cannot be imported ({error}); {how_to_install(FRONTEND)}"
    except Exception as error:  # the frontend loads the library: OSError without one, AssertionError if there are two
        return None, f"the library cuDNN cannot be loaded ({type(error).__name__}: {error}); {remedy}"
    try:
        found = int(module.backend_version())
    except Exception as error:  # the frontend's own type, if it finds no library
        return None, f"the library cuDNN cannot be loaded ({error}); {remedy}"
    if found < OLDEST:
        return None, f"cuDNN {found} is older than {OLDEST}; {remedy}"
    return module, ""


@functools.cache
def found_library() -> tuple[Any, str]:
    """Return cuDNN's Python module, or None and why it cannot be used; it is loaded once."""
    return load()


def available() -> bool:
    """Whether there is a GPU, and cuDNN for it, or a plan is made for a described one."""
    return described_gpu() is not None or gpu_count() > 0 and found_library()[0] is not None


def why_unavailable() -> str:
    """Return what is missing and how to install it; "" if nothing is."""
    if gpu_count() == 0:
        return f"cuDNN needs CuPy and an NVIDIA GPU; {how_to_install()}"
    return missing()


def missing() -> str:
    """Return what is missing and how to install it, whether or not there is a GPU; "" if nothing is."""
    return found_library()[1]


def cudnn() -> Any:
    """Return cuDNN's frontend.

    Raises:
        DeviceError: it is missing; the message says what to install.
    """
    module, reason = found_library()
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


def new_handles() -> ThreadHandles[_Handle]:
    """Return an empty table of the handles of threads."""
    return ThreadHandles(_Handle, lambda own: cudnn().destroy_handle(own.pointer))


thread_handles = new_handles()


def handle() -> Any:
    """Return this thread's handle for its current GPU, which works on the stream that is current now."""
    cuda = array_module(PROTO_CUDA).cuda
    own = thread_handles.get(gpu(cuda.get_device_id()))
    stream = cuda.get_current_stream().ptr
    if own.stream != stream:
        cudnn().set_stream(handle=own.pointer, stream=stream)
        own.stream = stream
    return own.pointer


def free_handles() -> None:
    """Free the handles of threads that have ended."""
    thread_handles.free_ended()
