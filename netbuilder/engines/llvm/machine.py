"""Machine code of this CPU from LLVM's IR, made by llvmlite and kept on file.

The files are in the folder ``machine_code`` of the folder ``NETBUILDER_CACHE`` (see ``netbuilder.engines.choices``),
one for each function, named by a hash of its IR, of the installed llvmlite and of the CPU. A file that is damaged is
ignored and written again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from netbuilder.data.forking import loading, new_lock
from netbuilder.engines.choices import cache_folder
from netbuilder.engines.kept_files import mark_of, read_kept, write_kept
from netbuilder.engines.llvm import object_file

__all__ = [
    "address_of",
    "available",
    "compiled_functions",
    "compiled_here",
    "describe",
    "failed",
    "function_at",
    "has_halves",
    "has_wide_registers",
    "installed",
    "new_compiler",
]

_FORM = "2"
"""Changes with how IR is compiled, so that files of other versions are not used."""

_NAME = "kernel"
"""Of the function of each module."""

_lock = new_lock()
compiled_functions: dict[bytes, tuple[int, Any]] = {}  # hash -> address, and what keeps the code in memory
compiled_here: list[str] = []
"""The names of the files of the functions that this process has compiled, not loaded."""


def available() -> bool:
    """Whether llvmlite is installed; it is imported when the first function is made."""
    return installed() and not failed


failed: list[str] = []


@functools.cache
def installed() -> bool:
    """Return whether llvmlite can be imported."""
    return importlib.util.find_spec("llvmlite") is not None


def describe() -> str:
    """Return the versions, and the processor that code is compiled for; this loads llvmlite."""
    compiler = _compiler_or_none()
    if compiler is None:
        return f"llvmlite cannot be loaded: {failed[-1]}"
    llvm = ".".join(map(str, compiler.llvm.llvm_version_info))
    return f"LLVM {llvm} by llvmlite {importlib.metadata.version('llvmlite')}, for {compiler.cpu}"


class _Compiler:
    """LLVM for this CPU."""

    def __init__(self, llvm: Any) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.llvm = llvm
        self.cpu = llvm.get_host_cpu_name()
        self.features = llvm.get_host_cpu_features().flatten()
        self._target = llvm.Target.from_default_triple()

    def _machine(self) -> Any:
        return self._target.create_target_machine(cpu=self.cpu, features=self.features, opt=2, jit=True)

    def compile(self, text: str) -> bytes:
        """Return the object file of a module."""
        module = self.llvm.parse_assembly(text)
        module.verify()
        machine = self._machine()
        builder = self.llvm.create_pass_builder(machine, self.llvm.create_pipeline_tuning_options(speed_level=2))
        passes = self.llvm.create_new_function_pass_manager()  # few: the loops are written with vectors already
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_new_gvn_pass()
        passes.add_dead_code_elimination_pass()
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)
        return bytes(machine.emit_object(module))

    def load(self, code: bytes) -> tuple[int, Any]:
        """Return the address of the function in an object file, and what keeps it in memory."""
        engine = self.llvm.create_mcjit_compiler(self.llvm.parse_assembly(""), self._machine())
        engine.add_object_file(self.llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        address = engine.get_function_address(_NAME)
        if not address:
            raise RuntimeError("the object file has no function")
        return address, engine


@functools.cache
def new_compiler() -> _Compiler:
    """Load llvmlite; return its compiler for this CPU."""
    with loading:  # reentrant
        return _Compiler(importlib.import_module("llvmlite.binding"))


def _compiler_or_none() -> _Compiler | None:
    if not available():
        return None
    try:
        return new_compiler()
    except (ImportError, OSError, RuntimeError) as error:  # built for another system
        failed.append(str(error))
        return None


@functools.cache
def _processor() -> str:
    """Return what the system says of the CPU: its name, and the instructions that it has; "" where it says nothing."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
        wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")
        return "\n".join(line for line in lines if line.partition(":")[0].strip() in wanted)
    return ""


@functools.cache
def _surroundings() -> str | None:
    """Return all that machine code depends on besides the IR; None without llvmlite.

    LLVM, whose import takes time, is not asked where the system describes the CPU.
    """
    parts = [_FORM, platform.system(), platform.machine(), mark_of("llvmlite"), _processor()]
    if not parts[-1]:
        compiler = _compiler_or_none()
        if compiler is None:
            return None
        parts += [compiler.cpu, compiler.features]
    return "\0".join(parts)


@functools.cache
def has_halves() -> bool:
    """Whether the CPU converts between float16 and float32."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return True
    compiler = None if _processor() else _compiler_or_none()
    return "f16c" in _processor().split() or (compiler is not None and "+f16c" in compiler.features.split(","))


@functools.cache
def has_wide_registers() -> bool:
    """Whether the CPU has vectors of 512 bits (AVX-512)."""
    compiler = None if _processor() else _compiler_or_none()
    return "avx512f" in _processor().split() or (compiler is not None and "+avx512f" in compiler.features.split(","))


def address_of(text: str) -> int | None:
    """Return the address of a module's function ``kernel``; None without llvmlite."""
    surroundings = _surroundings() if available() else None
    if surroundings is None:
        return None
    key = hashlib.sha256(f"{surroundings}\0{text}".encode()).digest()
    with loading, _lock:
        found = compiled_functions.get(key)
        if found is None:
            found = _made(key, text)
            if found is None:
                return None
            compiled_functions[key] = found
    return found[0]


def function_at(address: int, *, brief: bool, of_team: bool = False) -> Callable[..., None]:
    """Return a function that is called with the address of its arguments.

    Args:
        address: of the function.
        brief: it takes microseconds, so the caller keeps the interpreter's lock; else other threads run meanwhile.
        of_team: it is ``GOMP_parallel``: called with the address of a function, that of its arguments, the number of
            threads, and 0.
    """
    arguments = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint] if of_team else [ctypes.c_void_p]
    return (ctypes.PYFUNCTYPE if brief else ctypes.CFUNCTYPE)(None, *arguments)(address)


def _made(key: bytes, text: str) -> tuple[int, Any] | None:
    path = _file(key)
    code = read_kept(path)
    if code is not None:
        loaded = _loaded(code)
        if loaded is not None:
            return loaded
    compiler = _compiler_or_none()
    if compiler is None:
        return None
    code = compiler.compile(text)
    compiled_here.append(key.hex())
    write_kept(path, code)
    return _loaded(code)


def _loaded(code: bytes) -> tuple[int, Any] | None:
    found = object_file.load(code, _NAME) if object_file.serves() else None
    if found is not None:
        return found
    compiler = _compiler_or_none()
    try:
        return None if compiler is None else compiler.load(code)
    except RuntimeError:
        return None


def _file(key: bytes) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / "machine_code" / f"{key.hex()[:40]}.o"
