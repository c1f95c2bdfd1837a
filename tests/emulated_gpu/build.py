"""Builds the emulated GPU in a virtual environment that has requirements.txt, and pip: ``VENV/bin/python build.py``.

The folder of the environment gets the emulated libraries (``lib``), the headers of kernels (``include``), and later the
kernels that programs compile (``kernels``). CuPy's source of the same version comes from pip's package index, as one
module of the wheel in the environment is replaced: it has NVIDIA's runtime linked into it, and is rebuilt so that it
looks for the library. Use the environment for nothing else. Needs Linux, and g++ 11 or later.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from emulated_gpu.kernels import CHECKED, FLAGS  # noqa: E402
from emulated_gpu.stubs import stubs  # noqa: E402

FOLDER = Path(sys.prefix).parent
CUPY = version("cupy-cuda12x")
WORK = FOLDER / "work" / CUPY
SITE = Path(sysconfig.get_path("platlib"))
SOURCES = ("machine", "record", "checks", "blocks", "driver", "runtime", "blas")
HEADERS = [f"-I{folder}" for folder in sorted(SITE.glob("nvidia/*/include"))]


def run(*command: str | Path, log: str = "", **more: object) -> None:
    """Run a command; its output goes to a file, if it has a log."""
    text = [str(part) for part in command]
    if not log:
        subprocess.run(text, check=True, **more)  # type: ignore[call-overload]
        return
    with open(WORK / log, "w") as output:
        subprocess.run(text, stdout=output, stderr=output, check=True, **more)  # type: ignore[call-overload]


def cupy_source() -> Path:
    """Return the folder of CuPy's source.

    pip unpacks it, then fails because it finds no CUDA to build with; ``--no-clean`` makes it leave the folder.
    """
    options = ["-q", "--disable-pip-version-check", "--no-clean", "--no-deps", "--no-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--no-build-isolation", f"cupy=={CUPY}"]
    if not (found := list(WORK.glob("*/cupy_*/setup.py"))):
        with open(WORK / "pip.log", "w") as log:
            subprocess.run(
                [*command, "-d", str(WORK)], stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(WORK)}, cwd=WORK
            )
        found = list(WORK.glob("*/cupy_*/setup.py"))
    if not found:
        raise SystemExit(f"pip found no source of CuPy; see {WORK / 'pip.log'}")
    return found[0].parent


def rebuild_runtime() -> Path:
    """Replace CuPy's module of the runtime by one without NVIDIA's runtime in it; return it."""
    (module,) = (SITE / "cupy_backends/cuda/api").glob("runtime.*.so")
    done = WORK / "runtime.done"
    if not done.exists():
        source = cupy_source()
        run(sys.executable, HERE / "runtime_module.py", log="cython.log", cwd=source)
        api = source / "cupy_backends/cuda/api"
        includes = [f"-I{path}" for path in (sysconfig.get_path("include"), api, source / "cupy_backends", source)]
        options = ["-std=c++17", "-O0", "-fPIC", "-w", "-shared", "-DCUPY_CUDA_VERSION=12090"]
        run("g++", *options, *includes, *HEADERS, api / "runtime.cpp", "-o", WORK / module.name)
        shutil.copy(WORK / module.name, module)
        done.touch()
    return module


def compile_sources(names: Sequence[str]) -> list[Path]:
    """Compile files of library/."""
    for name in names:
        options = ["-std=c++17", "-O2", "-fPIC", "-w", *HEADERS, *(CHECKED if name == "blas" else ())]
        run("g++", *options, "-c", HERE / "library" / f"{name}.cpp", "-o", WORK / f"{name}.o")
    return [WORK / f"{name}.o" for name in names]


def link(library: str, prefix: str, answer: int, objects: list[Path], module: Path) -> None:
    """Link an emulated library, with stubs for what else a module of CuPy asks of it."""
    source, versions = WORK / f"{prefix}_stubs.c", WORK / f"{prefix}.map"
    source.write_text(stubs(prefix, answer, objects, module))
    versions.write_text(f"{library} {{ global: *; }};\n")  # CuPy's modules ask for symbols of this version
    options = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{library}", f"-Wl,--version-script,{versions}"]
    run("g++", *options, "-x", "c", source, "-x", "none", *objects, "-o", FOLDER / "lib" / library)


def precompile() -> None:
    """Precompile what all kernels begin with; kernels that were compiled with other headers are not used again."""
    include, cupy_include = FOLDER / "include", SITE / "cupy/_core/include"
    shutil.rmtree(include, ignore_errors=True)
    shutil.copytree(HERE / "include", include)
    (FOLDER / "cupy_include").write_text(str(cupy_include))
    prelude = include / "emulated_prelude.h"
    run("g++", *FLAGS, f"-I{include}", f"-I{cupy_include}", "-x", "c++-header", prelude, "-o", f"{prelude}.gch")
    texts = [path.read_bytes() for path in sorted((HERE / "include").rglob("*.h"))]
    parts = [*texts, repr(FLAGS).encode(), CUPY.encode()]
    (FOLDER / "digest").write_text(hashlib.sha256(b"\0".join(parts)).hexdigest())


def main() -> None:
    """Build all parts, two at a time."""
    if shutil.which("g++") is None:
        raise SystemExit("the emulated GPU needs g++: install it, or leave `make test-emulated` out")
    (FOLDER / "lib").mkdir(exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        module = pool.submit(rebuild_runtime)
        pool.submit(precompile).result()
        objects = {name: compile_sources([name]) for name in SOURCES}
    driver = [part for name in ("machine", "record", "checks", "blocks", "driver") for part in objects[name]]
    (of_driver,) = (SITE / "cupy_backends/cuda/api").glob("driver.*.so")
    (of_blas,) = (SITE / "cupy_backends/cuda/libs").glob("cublas.*.so")
    link("libcuda.so.1", "cu", 801, driver, of_driver)
    link("libcudart.so.12", "cuda", 801, objects["runtime"], module.result())
    link("libcublas.so.12", "cublas", 15, objects["blas"], of_blas)
    run(
        "g++",
        "-shared",
        "-x",
        "c",
        "/dev/null",
        "-Wl,-soname,libcublasLt.so.12",
        "-o",
        FOLDER / "lib/libcublasLt.so.12",
    )


if __name__ == "__main__":
    main()
