"""Export all models, read them, compare with onnxruntime; print a table.

usage: python -m onnx_models FOLDER [PATTERN ...]

The exported files stay in FOLDER, and are not exported again. A pattern selects models by a part of their titles.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onnx_models.models import all_cases
from onnx_models.one import compare, export

SECONDS = 600
MEMORY = 8 << 30
CLOSE = 1e-3  # of the largest element of an output


def _one(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return what a function finds in a process of its own; or its error."""
    context = multiprocessing.get_context("fork")  # what has been imported is not imported again
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, function, *arguments))
    process.start()
    theirs.close()
    try:
        found: dict[str, Any] = ours.recv() if ours.poll(SECONDS) else {"error": f"more than {SECONDS} s"}
    except EOFError:
        found = {"error": "the process died"}
    process.kill()
    process.join()
    return found


def _child(pipe: Any, function: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    try:
        pipe.send(function(*arguments))
    except BaseException as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"[:600].replace("\n", " ")})


def _verdict(found: dict[str, Any]) -> str:
    for kind in ("error", "refused", "failed"):
        if kind in found:
            return f"{kind}: {found[kind]}"
    return "equal" if found["difference"] <= CLOSE else f"differs by {found['difference']:.1e}"


def main(folder: str, *patterns: str) -> None:
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    only_export, patterns = "--export" in patterns, tuple(each for each in patterns if each != "--export")
    for name in ("onnx", "onnxruntime", "netbuilder.exchange.onnx", "netbuilder.engines.onednn"):
        importlib.import_module(name)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for case in all_cases():
        if patterns and not any(pattern in case.title for pattern in patterns):
            continue
        path = Path(folder, case.title.replace("/", "_").replace(" ", "_") + ".onnx")
        skipped = path.with_suffix(".error")
        if not path.exists() and not skipped.exists():
            for name in ("torch", "torchvision", "timm", "transformers", "onnxscript"):
                importlib.import_module(name)
            made = _one(export, case, path)
            if "error" in made:
                skipped.write_text(made["error"])
        if skipped.exists():
            counts["not exported"] += 1
            print(f"{case.title:52} not exported: {skipped.read_text()[:200]}", flush=True)
            continue
        if only_export:
            continue
        found = _one(compare, path)
        verdict = _verdict(found)
        counts[verdict.split(":")[0].split(" by")[0]] += 1
        reference = found.get("reference", {})
        counts["with reference nodes"] += bool(reference)
        kinds.update(reference)
        sizes = f"{found.get('bytes', 0) / 1e6:6.0f} MB x{found.get('memory', 0) / max(found.get('bytes', 1), 1):4.1f}"
        print(f"{case.title:52} {sizes} {found.get('seconds', 0):6.1f} s {found.get('nodes', 0):5} {verdict[:600]} "
              f"{reference or ''}", flush=True)  # fmt: skip
    print(dict(counts))
    print("nodes in the reference implementation:", dict(kinds.most_common()))


if __name__ == "__main__":
    main(*sys.argv[1:])
