"""Machine code of this CPU from LLVM's IR, made by llvmlite and kept on file.

The files are in the folder ``machine_code`` of the folder ``NETBUILDER_CACHE`` (see ``ops.engines.choices``), one for
each function, named by a hash of its IR, of LLVM's version and of the CPU. A file that is damaged is ignored and
written again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

from netbuilder.data.forking import loading, new_lock
from netbuilder.ops.engines.choices import cache_folder

__all__ = ["address_of", "available", "brief", "compiled_here", "has_halves", "long"]

brief = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
"""The type of a function that takes microseconds: the caller keeps the interpreter's lock."""

long = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
"""The type of a function that takes longer: other threads of Python run meanwhile."""

_lock = new_lock()
_functions: dict[bytes, tuple[int, Any]] = {}  # hash -> address, and what keeps the code in memory
compiled_here: list[str] = []
"""The names of the files of the functions that this process has compiled, not loaded."""


def available() -> bool:
    """Whether llvmlite is installed; it is imported when the first function is made."""
    return _installed() and not _failed


_failed: list[str] = []


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("llvmlite") is not None


class _Compiler:
    """LLVM for this CPU."""

    def __init__(self, llvm: Any) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.llvm = llvm
        self.cpu = llvm.get_host_cpu_name()
        self.features = llvm.get_host_cpu_features().flatten()
        self.triple = llvm.get_process_triple()
        self.version = f"{importlib.import_module('llvmlite').__version__} {llvm.llvm_version_info}"
        self.target = llvm.Target.from_default_triple()

    def _machine(self) -> Any:
        return self.target.create_target_machine(cpu=self.cpu, features=self.features, opt=2, jit=True)

    def key(self, text: str) -> bytes:
        """Return the hash of a function, and of all that its machine code depends on."""
        parts = (text, self.version, self.triple, self.cpu, self.features)
        return hashlib.sha256("\0".join(parts).encode()).digest()

    def compile(self, text: str) -> bytes:
        """Return the object file of a module."""
        module = self.llvm.parse_assembly(text)
        module.verify()
        machine = self._machine()
        options = self.llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
        builder = self.llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        return bytes(machine.emit_object(module))

    def load(self, code: bytes) -> tuple[int, Any]:
        """Return the address of the function in an object file, and what keeps it in memory."""
        engine = self.llvm.create_mcjit_compiler(self.llvm.parse_assembly(""), self._machine())
        engine.add_object_file(self.llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        address = engine.get_function_address("kernel")
        if not address:
            raise RuntimeError("the object file has no function")
        return address, engine


@functools.cache
def _compiler() -> _Compiler:
    with loading:
        return _Compiler(importlib.import_module("llvmlite.binding"))


def _compiler_or_none() -> _Compiler | None:
    if not available():
        return None
    try:
        return _compiler()
    except (ImportError, OSError, RuntimeError) as error:  # built for another system
        _failed.append(str(error))
        return None


@functools.cache
def has_halves() -> bool:
    """Whether the CPU converts between float16 and float32."""
    compiler = _compiler_or_none()
    if compiler is None:
        return False
    return "+f16c" in compiler.features.split(",") or compiler.triple.startswith(("aarch64", "arm64"))


def address_of(text: str) -> int | None:
    """Return the address of a module's function ``kernel``; None without llvmlite."""
    compiler = _compiler_or_none()
    if compiler is None:
        return None
    key = compiler.key(text)
    with _lock:
        found = _functions.get(key)
        if found is None:
            found = _functions[key] = _made(compiler, key, text)
    return found[0]


def _made(compiler: _Compiler, key: bytes, text: str) -> tuple[int, Any]:
    path = _file(key)
    stored = _read(path)
    if stored is not None:
        with contextlib.suppress(RuntimeError):
            return compiler.load(stored)
    code = compiler.compile(text)
    compiled_here.append(key.hex())
    _write(path, code)
    return compiler.load(code)


def _file(key: bytes) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / "machine_code" / f"{key.hex()[:40]}.o"


def _read(path: Path | None) -> bytes | None:
    """Return the object file that is stored; None if there is none, or if it is damaged."""
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content[32:] if hashlib.sha256(content[32:]).digest() == content[:32] else None


def _write(path: Path | None, code: bytes) -> None:
    if path is None:
        return
    with contextlib.suppress(OSError):  # then each process compiles
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(name, path)
