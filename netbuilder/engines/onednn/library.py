"""Finding and loading the oneDNN library, checking its status codes, and setting its number of threads."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from netbuilder.data.forking import loading
from netbuilder.engines.brief_calls import brief_call
from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.signal_stack import give_signals_a_stack
from netbuilder.engines.openmp import RTLD_NODELETE, OpenMP, openmp
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.os_errors import is_out_of_memory

__all__ = [
    "AVX512_BF16",
    "AVX512_CORE",
    "OneDnnError",
    "available",
    "check",
    "describe",
    "dnnl",
    "limit_cache",
    "set_threads",
    "thread_setter",
    "threads",
    "why_unavailable",
]

PACKAGE = "onednn-cpu-gomp"
PATH_VARIABLE = "NETBUILDER_DNNL"
SWITCH_VARIABLE = "NETBUILDER_ONEDNN"

# The bits of instruction sets, which later ones include.
AVX512_CORE, AVX512_BF16 = 0x27, 0xE7
_INSTRUCTIONS = {"AVX-512 with bfloat16": AVX512_BF16, "AVX-512": AVX512_CORE, "AVX2": 0x7, "AVX": 0x3, "SSE4.1": 0x1}

_CACHED_PRIMITIVES = 128  # about 20 MB of code; plans keep the primitives that they use
_RTLD_NOW = 0x2


class OneDnnError(RuntimeError):
    """oneDNN refused or failed; the message names the primitive and the status."""

    def __init__(self, what: str, status: int) -> None:
        super().__init__(f"oneDNN, {what}: {c.STATUS_NAMES.get(status, f'status {status}')}")
        self.status = status


@dataclass(frozen=True)
class Library:
    """The loaded library, for the other modules of this package.

    Attributes:
        execute_briefly: ``dnnl_primitive_execute`` for primitives that take microseconds (see ``brief_calls``); its
            pointers are those that ``address`` returns.
        omp: its threads.
    """

    ffi: Any
    lib: Any
    omp: OpenMP
    engine: Any
    version: tuple[int, int, int]
    path: str
    execute_briefly: Callable[..., int]

    def address(self, pointer: Any) -> ctypes.c_void_p:
        """Return a pointer for ``execute_briefly``; the caller keeps what it points to."""
        return ctypes.c_void_p(int(self.ffi.cast("uintptr_t", pointer)))


def available() -> bool:
    """Whether oneDNN can be used: installed, loadable, and not turned off by ``NETBUILDER_ONEDNN=0``."""
    return not why_unavailable()


def why_unavailable() -> str:
    """Return why oneDNN cannot be used, and what to install; "" if it can."""
    if turned_off():
        return f"turned off by {SWITCH_VARIABLE}={os.environ[SWITCH_VARIABLE]}"
    loaded = _load()
    return loaded if isinstance(loaded, str) else ""


def describe() -> str:
    """Return the library's version, and the widest instructions that it uses here."""
    library = dnnl()
    isa = library.lib.dnnl_get_effective_cpu_isa()
    widest = next((name for name, bits in _INSTRUCTIONS.items() if isa & bits == bits), "no vector instructions")
    return f"oneDNN {'.'.join(map(str, library.version))}, {widest}, from {library.path}"


def turned_off() -> bool:
    return os.environ.get(SWITCH_VARIABLE, "1").strip().lower() in ("0", "off", "no", "false")


def dnnl() -> Library:
    """Return the loaded library.

    Raises:
        RuntimeError: it is not available.
    """
    loaded = _load()
    if isinstance(loaded, str):
        raise RuntimeError(f"oneDNN is not available: {loaded}")
    return loaded


def check(status: int, what: str) -> None:
    """Raise OneDnnError unless ``status`` is success."""
    if status:
        raise OneDnnError(what, status)


def set_threads(n: int) -> None:
    """Set how many threads OpenMP uses for calls made by this Python thread, and for primitives made on it."""
    dnnl().omp.set_threads(max(1, n))


def thread_setter(n: int) -> Callable[[], object]:
    """Return a call that does ``set_threads(n)`` on the thread that makes it."""
    return functools.partial(dnnl().omp.set_threads, max(1, n))


@contextlib.contextmanager
def threads(n: int) -> Iterator[None]:
    """Use ``n`` threads for primitives made inside: a primitive keeps the number of its creation."""
    before = dnnl().omp.max_threads()
    set_threads(n)
    try:
        yield
    finally:
        set_threads(before)


def limit_cache(primitives: int | None = None, *, library: Library | None = None) -> None:
    """Set how many unused primitives the library caches, unless its environment variable does; None: the default."""
    named = any(os.environ.get(f"{prefix}_PRIMITIVE_CACHE_CAPACITY") for prefix in ("ONEDNN", "DNNL"))
    if not named:
        count = _CACHED_PRIMITIVES if primitives is None else primitives
        check((library or dnnl()).lib.dnnl_set_primitive_cache_capacity(count), "capacity of the cache")


@functools.cache
def _load() -> Library | str:
    """Load and return the library, or return why that is not possible."""
    with loading:
        return _loaded()


def _loaded() -> Library | str:
    if importlib.util.find_spec("cffi") is None:
        return f"cffi is not installed (pip install cffi {PACKAGE})"
    path = _find()
    if path is None:
        if sys.platform != "linux" or os.uname().machine != "x86_64":
            return f"no library for {sys.platform}: set {PATH_VARIABLE} to a libdnnl of version 3"
        if _files():
            return (
                f"the package {PACKAGE} is installed, but its library is not: `pip install --target` leaves out what a "
                f"wheel has outside its packages; install into an environment, or set {PATH_VARIABLE} to a libdnnl.so.3"
            )
        return f"the package is not installed (pip install {PACKAGE})"
    from netbuilder.engines.onednn.interface import ffi

    omp = openmp()
    if isinstance(omp, OSError):
        if is_out_of_memory(omp):
            return f"there is not enough memory for it: {omp}"
        return "libgomp.so.1 is missing (Debian and Ubuntu: apt-get install libgomp1)"
    lib: Any
    try:
        lib = ffi.dlopen(path, _RTLD_NOW | RTLD_NODELETE)
        found = lib.dnnl_version()
    except (OSError, AttributeError) as error:
        if is_out_of_memory(error):
            return f"there is not enough memory for it: {error}"
        return f"{path} cannot be loaded: {error} (pip install {PACKAGE}, or set {PATH_VARIABLE})"
    version = (found.major, found.minor, found.patch)
    if version[0] != 3:
        return f"{path} is oneDNN {'.'.join(map(str, version))}, but version 3 is needed (pip install {PACKAGE})"
    engine = ffi.new("engine_t *")
    check(lib.dnnl_engine_create(engine, 1, 0), "engine")
    give_signals_a_stack()
    execute = brief_call(path, "dnnl_primitive_execute", ctypes.c_int)
    library = Library(ffi, lib, omp, engine[0], version, path, execute)
    limit_cache(library=library)
    return library


def _find() -> str | None:
    """Return the path of the library: the one the environment names, or that of the installed package."""
    named = os.environ.get(PATH_VARIABLE)
    if named:
        return named
    usual, other = (Path(prefix) / "lib" / "libdnnl.so.3" for prefix in (sys.prefix, sys.base_prefix))
    if not usual.exists():
        paths = [Path(str(file.locate())) for file in _files() if file.name == "libdnnl.so.3"]
        usual = next((path for path in [*paths, other] if path.exists()), usual)
    return str(usual.resolve()) if usual.exists() else None


def _files() -> list[importlib.metadata.PackagePath]:
    """Return what the package says that it has installed; nothing without the package."""
    try:
        return importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return []
