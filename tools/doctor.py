"""Say what netbuilder finds on this machine, and what is missing: ``netbuilder-doctor``."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import netbuilder
from netbuilder.distributed.launch.installed_mpi import installed_mpi
from netbuilder.engines.choices import cache_folder
from netbuilder.engines.engine import engine_names, find_engine
from netbuilder.engines.gpu_info import describe_gpus, missing_for_gpus
from netbuilder.engines.gpu_packages import several_cupys, wrong_cudnn
from netbuilder.proto import PROTO_CPU, DeviceError
from netbuilder.proto.cores import core_count
from netbuilder.proto.errors import bytes_text
from netbuilder.proto.extras import DISTRIBUTION, how_to_install
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.options import default_threads
from netbuilder.tools.bench.machine import busy_share, describe_machine
from netbuilder.tools.common_options import check_outputs
from netbuilder.tools.options import OptionsParser, option
from netbuilder.tools.reporting import reporting
from netbuilder.tools.results import write_json
from netbuilder.tools.terminal import print_line

__all__ = ["Finding", "findings", "main"]

_INSTRUCTIONS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")
_BUSY = 0.1  # share of the cores that others may use without a word


@dataclass(frozen=True)
class Finding:
    """What was found of one thing.

    Args:
        name: of the thing.
        text: what was found.
        state: "ok"; "missing", if something that may be used is not installed; "wrong", if it is installed and cannot
            be used.
        remedy: what to do about it; "": nothing.
    """

    name: str
    text: str
    state: str = "ok"
    remedy: str = ""


_STANDARD_OUTPUT = "-"


@reporting("netbuilder-doctor")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is found; return 1 if something is installed that cannot be used."""
    options = OptionsParser(_Options, prog="netbuilder-doctor").parse(arguments)
    alone = options.json == _STANDARD_OUTPUT
    if not alone:
        check_outputs(options, "json")
    found = []
    for each in findings():
        found.append(each)
        for line, style in _lines(each) if not alone else ():
            print_line(line, style)
    as_json = [asdict(each) for each in found]
    if alone:
        print(json.dumps(as_json, indent=1))
    else:
        write_json(options.json, as_json, announced=True)
    return int(any(each.state == "wrong" for each in found))


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Say what netbuilder finds on this machine: Python, processor, memory, libraries, GPUs, MPI; which extras are
    missing, with the commands that install them; and what keeps it from being fast. A bug report should hold this.
    """

    json: str | None = option(
        "also write the findings as JSON; without FILE, print them so instead",
        metavar="FILE", nargs="?", const=_STANDARD_OUTPUT,
    )  # fmt: skip


def findings() -> Iterator[Finding]:
    """Yield what is found of each thing; the longest takes a second or two."""
    for find in (_package, _python, _processor, _memory, _threads):
        yield find()
    yield from map(_engine, (name for name in engine_names() if PROTO_CPU in find_engine(name).device_types))
    yield from (_kept(), _gpus(), _mpi())
    yield from _extras()


def _lines(found: Finding) -> Iterator[tuple[str, str]]:
    """Yield the lines about a finding, each with its style on a terminal."""
    mark, style = {"ok": (" ", ""), "missing": ("-", "yellow"), "wrong": ("!", "bold red")}[found.state]
    name = found.name
    for line in found.text.split("\n"):
        yield f"{mark} {name:14} {line}", style
        mark, name = " ", ""
    if found.remedy:
        yield f"  {'':14} -> {found.remedy}", "cyan"


def _package() -> Finding:
    place = Path(netbuilder.__file__).parent
    try:
        installed = f"installed as {DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"
    except importlib.metadata.PackageNotFoundError:
        installed = "a checkout, not installed"
    return Finding("netbuilder", f"{netbuilder.__version__}, {installed}, in {place}")


def _python() -> Finding:
    names = ("numpy", "protobuf", "cffi", "llvmlite", "threadpoolctl")
    versions = ", ".join(f"{name} {version}" for name in names if (version := _version(name)))
    return Finding("Python", f"{platform.python_version()} ({platform.python_implementation()}); {versions}")


def _version(name: str) -> str:
    """Return the version of an installed package; "" if there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _processor() -> Finding:
    lines = _read("/proc/cpuinfo").partition("\n\n")[0].splitlines()
    flags = {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split()}
    known = " ".join(name.upper() for name in _INSTRUCTIONS if name in flags)
    return Finding("processor", f"{describe_machine()}, {platform.machine()}; {known or 'unknown instructions'}")


def _memory() -> Finding:
    lines = dict(re.findall(r"^(\w+): +(\d+) kB", _read("/proc/meminfo"), re.MULTILINE))
    if "MemTotal" not in lines:
        return Finding("memory", "of unknown size")
    sizes = [f"{bytes_text(int(lines[key]) * 1024)} {what}" for key, what in _SIZES if key in lines]
    limit = _read("/sys/fs/cgroup/memory.max").strip() or _read("/sys/fs/cgroup/memory/memory.limit_in_bytes").strip()
    if limit.isdigit() and int(limit) < int(lines["MemTotal"]) * 1024:
        sizes.append(f"{bytes_text(int(limit))} for this container")
    return Finding("memory", ", ".join(sizes))


_SIZES = (("MemTotal", "in all"), ("MemAvailable", "available"))


def _threads() -> Finding:
    threads, cores = default_threads(), core_count()
    given = os.environ.get("OMP_NUM_THREADS")
    text = f"{threads} for each net ({f'OMP_NUM_THREADS={given}' if given else 'one for each core'})"
    if cores < (of_all := os.cpu_count() or cores):
        text += f"; this process may use {cores} of {of_all} cores"
    busy = busy_share(0.5)
    text += f"; others use {busy:.0%} of the cores now"
    if threads > cores:
        return Finding("threads", text, "wrong", f"more threads than cores are slow: OMP_NUM_THREADS={cores}")
    remedy = "figures of speed are doubtful until the machine is idle" if busy > _BUSY else ""
    return Finding("threads", text, remedy=remedy)


def _engine(name: str) -> Finding:
    engine = find_engine(name)
    if engine.available():
        return Finding(name, engine.describe())
    why = engine.why_unavailable()
    off = why.startswith("turned off")
    return Finding(name, "not used: NumPy computes in its place, slower", "ok" if off else "wrong", why)


def _kept() -> Finding:
    folder = cache_folder()
    if folder is None:
        return Finding("kept on file", "nothing: there is no home folder", remedy="set XDG_CACHE_HOME")
    files = [each for pattern in _KEPT for each in folder.glob(pattern)]
    size = bytes_text(sum(each.stat().st_size for each in files))
    place = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(place, os.W_OK):
        text = f"{folder} cannot be written: each process compiles and measures anew"
        return Finding("kept on file", text, "wrong", "set XDG_CACHE_HOME to a folder that can be written")
    return Finding("kept on file", f"{len(files)} files, {size}: machine code and measured choices, in {folder}")


_KEPT = ("machine_code/*.o", "choices-*.json")


def _gpus() -> Finding:
    if several := several_cupys():
        return Finding("GPUs", "not used", "wrong", several)
    if not shutil.which("nvidia-smi") and not Path("/proc/driver/nvidia").exists():
        return Finding("GPUs", "no NVIDIA GPU or driver on this machine")
    missing = missing_for_gpus()
    state = "wrong" if wrong_cudnn() else "missing" if missing else "ok"
    return Finding("GPUs", "\n".join(describe_gpus()), state, "; ".join(missing))


def _mpi() -> Finding:
    if not _version("mpi4py"):
        return Finding("MPI", "mpi4py is not installed: one process only", "missing", how_to_install("mpi"))
    try:
        found = installed_mpi()
    except DeviceError as error:
        return Finding("MPI", "not usable", "wrong", str(error))
    start = "a store, netbuilder-launch or mpiexec" if found.starts_over_store else "its mpiexec or netbuilder-launch"
    return Finding(
        "MPI", f"{' '.join(found.name.split())}, mpi4py {_version('mpi4py')}; processes are started by {start}"
    )


def _extras() -> Iterator[Finding]:
    """Yield for each extra which of its packages are installed; none for a checkout, which does not say them."""
    needs: dict[str, list[str]] = {}
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for line in lines:
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)", marker)
        old = re.search(r"python_version < ['\"](\d+)\.(\d+)", marker)
        name = re.match(r"[\w.-]+", requirement)
        if extra and name and not (old and sys.version_info >= (int(old[1]), int(old[2]))):
            needs.setdefault(extra[1], []).append(name[0])
    for title, names in sorted(needs.items()):
        if title in _FOR_USERS:
            lacking = [each for each in names if not _version(each)]
            if lacking:
                yield Finding(f"extra {title}", f"without {', '.join(lacking)}", "missing", how_to_install(title))
            else:
                yield Finding(f"extra {title}", ", ".join(f"{each} {_version(each)}" for each in names))


_FOR_USERS = (
    "data",
    "draw",
    "hub",
    "onnx",
    "plot",
    "redis",
    "serve",
    "train",
)  # MPI and GPUs have findings of their own


def _read(path: str) -> str:
    """Return the text of a file of the system; "" where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
