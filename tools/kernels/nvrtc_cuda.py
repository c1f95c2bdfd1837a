"""NVRTC, NVIDIA's compiler for CUDA C++ at run time: it needs neither a GPU nor a driver."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netbuilder.proto import DeviceError

__all__ = ["Nvrtc", "has_cupy_headers", "include_folders", "wheel_folders"]


def wheel_folders(part: str) -> list[Path]:
    """Return the folders that NVIDIA's wheels have for a part, such as ``cuda_nvrtc/lib``."""
    found = importlib.util.find_spec("nvidia")
    places = [] if found is None else found.submodule_search_locations or []
    return [folder for place in places if (folder := Path(place) / part).is_dir()]


def include_folders() -> list[Path]:
    """Return the folders of CUDA's headers and of CuPy's, as far as they are installed."""
    folders = [*wheel_folders("cuda_runtime/include")]
    cupy = importlib.util.find_spec("cupy")
    if cupy is not None and cupy.origin is not None:
        own = Path(cupy.origin).parent / "_core" / "include"
        folders += [own, *(own / "cupy" / "_cccl" / name for name in ("libcudacxx", "thrust", "cub"))]
    return [folder for folder in folders if folder.is_dir()]


def has_cupy_headers() -> bool:
    """Whether the headers that CuPy's kernels include are installed."""
    return importlib.util.find_spec("cupy") is not None


class Nvrtc:
    """The compiler.

    Raises:
        DeviceError: it is not installed.
    """

    def __init__(self) -> None:
        names = [str(file) for folder in wheel_folders("cuda_nvrtc/lib") for file in folder.glob("libnvrtc.so.*")]
        for name in (*names, "libnvrtc.so.12", "libnvrtc.so"):
            try:
                self._library: Any = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            raise DeviceError(
                "NVRTC is not installed; pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12 (no GPU is needed)"
            )

    @property
    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def compile(
        self, source: str, architecture: str, options: Sequence[str] = (), names: Sequence[str] = ()
    ) -> str | None:
        """Compile a source to machine code.

        Args:
            source: CUDA C++.
            architecture: such as "sm_90".
            options: of the compiler, besides those for the architecture and for headers.
            names: name expressions of the templates to instantiate.

        Returns:
            The compiler's messages if it refuses the source, else None.
        """
        program = ctypes.c_void_p()
        self._check(
            self._library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
        )
        try:
            for name in names:
                self._check(self._library.nvrtcAddNameExpression(program, name.encode()))
            given = [f"--gpu-architecture={architecture}", "-default-device", *options]
            given += [f"-I{folder}" for folder in include_folders()]
            array = (ctypes.c_char_p * len(given))(*(option.encode() for option in given))
            if self._library.nvrtcCompileProgram(program, len(given), array) == 0:
                return None
            size = ctypes.c_size_t()
            self._check(self._library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
            log = ctypes.create_string_buffer(size.value)
            self._check(self._library.nvrtcGetProgramLog(program, log))
            return log.value.decode(errors="replace")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _check(self, status: int) -> None:
        if status:
            get = self._library.nvrtcGetErrorString
            get.restype = ctypes.c_char_p
            raise DeviceError(f"NVRTC: {get(status).decode()}")
