"""Asks cuDNN which graphs it has kernels for on an H100; run as a program of its own, without a GPU.

``python cudnn_program.py RECIPES PROPERTIES`` reads pickled recipes, and the properties of a GPU as JSON, and prints a
JSON object: the library's version; for each recipe how many plans cuDNN proposes, 0 if it supports none, and whether it
supports one that gives the same bits in each run; for each kind of recipe that one plan was built for, the plan's bytes
of scratch memory; the searches for the fastest plan, with times that are made up; what netbuilder calls that the
frontend does not have; and where the double of the frontend (``cudnn_double.py``) differs from it. The program needs a
library in the place of the driver (``libcuda.c``), which the dynamic linker must find first. Plans are built only where
cuDNN has the kernel: one that it has to compile takes seconds, and a GPU to load it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import json
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cudnn_double import OPTIONS, POINTWISE, CudnnDouble
from netbuilder.engines.choices import CACHE_VARIABLE
from netbuilder.engines.cudnn import compiled, graphs, library, plan_processes, plans
from netbuilder.engines.cudnn.compiled import CompiledGraph
from netbuilder.engines.cudnn.graphs import (
    CHANNELS_LAST,
    Builder,
    Convolution,
    DataGradient,
    FilterGradient,
    Recipe,
    Tensor,
    Window,
)
from netbuilder.proto.cores import core_count

_GRAPHS = ("g", "graph", "to.graph", "self.graph", "self._graph", "builder.graph")
_MODULES = ("cudnn", "cudnn()", "library.cudnn()", "self._cudnn", "module")


def main() -> None:
    recipes = pickle.loads(Path(sys.argv[1]).read_bytes())
    cudnn, gpu = library.cudnn(), described()
    with ProcessPoolExecutor(core_count(), mp_context=get_context("spawn")) as pool:  # each has a lock of Python's
        told = list(pool.map(asked, recipes, chunksize=40))
    found = {"version": library.version(), "plans": [count for count, _ in told], "workspaces": {}}
    found["repeatable"] = [repeatable for _, repeatable in told]
    for recipe, (count, _) in zip(recipes, told):
        if count and type(recipe).__name__ not in found["workspaces"] and _has_kernel(recipe):
            builder = plans.compile_graph(recipe, device_property=gpu)
            builder.graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
            found["workspaces"][type(recipe).__name__] = CompiledGraph(recipe, builder).workspace
    found["searches"] = list(searches(gpu))
    print(json.dumps({**found, "missing": sorted(missing(cudnn)), "differences": sorted(differences(cudnn))}))


@functools.cache
def described() -> Any:
    """Return the GPU that the file describes, for cuDNN."""
    return library.cudnn().create_device_properties(Path(sys.argv[2]).read_text())


def asked(recipe: Recipe) -> tuple[int, bool]:
    """Return how many plans cuDNN proposes, and whether it supports one that gives the same bits in each run."""
    builder = plans.compile_graph(recipe, device_property=described())
    repeatable = plans.compile_graph(recipe, deterministic=True, device_property=described()) is not None
    return 0 if builder is None else int(builder.graph.get_execution_plan_count()), repeatable


def _has_kernel(recipe: Recipe) -> bool:
    """Whether cuDNN need not compile the kernel."""
    fused = isinstance(recipe, Convolution) and (recipe.relu or recipe.b or recipe.z)
    return isinstance(recipe, (Convolution, DataGradient, FilterGradient)) and not fused


def searches(gpu: Any) -> Iterator[tuple[str, int | None, int, int, int]]:
    """Search for the fastest plan of a 3x3 convolution and of its gradients, as ``searched`` says.

    Yields:
        What was searched, the limit of scratch memory in bytes, and what ``searched`` returns.
    """
    for elements, tf32 in (("float32", False), ("float32", True), ("bfloat16", False), ("float16", False)):
        x, w = (Tensor(shape, CHANNELS_LAST, elements) for shape in ((32, 64, 56, 56), (64, 64, 3, 3)))
        places = {Convolution: (x, w, x), DataGradient: (x, w, x), FilterGradient: (x, x, w)}
        for (kind, tensors), limit in itertools.product(places.items(), (None, 1 << 20)):
            recipe = kind(*tensors, Window((1, 1), (1, 1), (1, 1), (1, 1)), tf32=tf32)
            yield f"{kind.__name__} {elements}{' tf32' if tf32 else ''}", limit, *searched(recipe, limit, gpu)


def searched(recipe: Recipe, limit: int | None, gpu: Any) -> tuple[int, int, int]:
    """Search for the fastest plan where later ones take less time, which is made up.

    Returns:
        How many plans cuDNN proposes, how many of them were measured, the bytes of scratch memory of the fastest one.
    """
    builder = plans.compile_graph(recipe, device_property=gpu)
    assert builder is not None
    if limit is not None:
        builder.graph.deselect_workspace_greater_than(limit)
    measured: list[int] = []

    def time(builder: Builder, index: int) -> float:
        measured.append(index)
        return 1 / (1 + index)

    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {CACHE_VARIABLE: folder}):
        with patch.object(plans, "machine", lambda: "described"), patch.object(plans, "_time", time):
            assert plans.build_fastest(builder, recipe, limit, False)
    graph = builder.graph
    scratch = graph.get_workspace_size_plan_at_index(measured[-1])
    return int(graph.get_execution_plan_count()), len(measured), int(scratch)


def differences(cudnn: Any) -> Iterator[str]:
    """Yield where the double differs from the frontend: bases of exceptions, members, methods, and their arguments."""
    ours, theirs = (each.cudnnGraphNotSupportedError for each in (CudnnDouble, cudnn))
    if ours.__bases__ != theirs.__bases__:
        yield f"cudnnGraphNotSupportedError{theirs.__bases__}"
    for kind in ("data_type", "numerical_note", "heur_mode", "build_plan_policy", "reduction_mode"):
        double, real = getattr(CudnnDouble, kind), getattr(cudnn, kind)
        names = getattr(double, "__members__", None) or vars(double)
        yield from (f"{kind}.{name}" for name in names if name not in real.__members__)
    for double, real in ((CudnnDouble, cudnn), (CudnnDouble.graph_class, cudnn.pygraph)):
        for name, method in inspect.getmembers(double, inspect.isfunction):
            if not name.startswith("_") and name not in double.own:
                given = inspect.signature(method).parameters.values()
                yield from lacking(real, name, [each.name for each in given if each.kind is each.KEYWORD_ONLY])
    for name, words in POINTWISE.items():
        yield from lacking(cudnn.pygraph, name, (*words, *OPTIONS.get(name, ())))


def lacking(owner: Any, name: str, words: Iterable[str]) -> Iterator[str]:
    """Yield a function that a class or module of the frontend does not have, or its arguments of these names."""
    found = getattr(owner, name, None)
    if found is None:
        yield name
        return
    called = found.__init__ if inspect.isclass(found) else found
    text = str(inspect.signature(called)) if inspect.isfunction(called) else called.__doc__ or ""
    yield from (f"{name}({word}=)" for word in words if not re.search(rf"\b{word}\b", text))


def missing(cudnn: Any) -> Iterator[str]:
    """Yield what netbuilder calls that the frontend does not have, or not with these named arguments."""
    for module in compiled, graphs, library, plan_processes, plans:
        nodes = list(ast.walk(ast.parse(inspect.getsource(module))))
        keywords = {
            id(each.func): [k.arg for k in each.keywords if k.arg] for each in nodes if isinstance(each, ast.Call)
        }
        for node in nodes:
            holder = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
            owner = cudnn.pygraph if holder in _GRAPHS else cudnn if holder in _MODULES else None
            if owner is None:
                continue
            yield from lacking(owner, node.attr, keywords.get(id(node), ()))


if __name__ == "__main__":
    main()
