"""Asks cuDNN which graphs it has kernels for on an H100; run as a program of its own, without a GPU.

``python cudnn_program.py RECIPES PROPERTIES`` reads pickled recipes, and the properties of a GPU as JSON, and prints a
JSON object: the library's version; for each recipe how many plans cuDNN proposes, 0 if it supports none, and whether it
supports one that gives the same bits in each run; for each kind of recipe that one plan was built for, the plan's bytes
of scratch memory; and what netbuilder calls that the frontend does not have. The program needs a library in the place
of the driver (``libcuda.c``), which the dynamic linker must find first. Plans are built only where cuDNN has the
kernel: one that it has to compile takes seconds, and a GPU to load it.
"""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from netbuilder.ops.engines.cudnn import compiled, graphs, library
from netbuilder.ops.engines.cudnn.compiled import CompiledGraph, compile_graph
from netbuilder.ops.engines.cudnn.graphs import Convolution, DataGradient, FilterGradient, Recipe

_GRAPHS = ("g", "graph", "to.graph", "self.graph", "self._graph", "builder.graph")
_MODULES = ("cudnn", "cudnn()", "library.cudnn()", "self._cudnn", "module")


def main() -> None:
    recipes = pickle.loads(Path(sys.argv[1]).read_bytes())
    cudnn = library.cudnn()
    gpu = cudnn.create_device_properties(Path(sys.argv[2]).read_text())
    plans, repeatable, workspaces = [], [], {}
    for recipe in recipes:
        builder = compile_graph(recipe, device_property=gpu)
        plans.append(0 if builder is None else int(builder.graph.get_execution_plan_count()))
        repeatable.append(compile_graph(recipe, deterministic=True, device_property=gpu) is not None)
        if builder is not None and type(recipe).__name__ not in workspaces and _has_kernel(recipe):
            builder.graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
            workspaces[type(recipe).__name__] = CompiledGraph(recipe, builder).workspace
    found = {"version": library.version(), "plans": plans, "repeatable": repeatable, "workspaces": workspaces}
    print(json.dumps({**found, "missing": sorted(missing(cudnn))}))


def _has_kernel(recipe: Recipe) -> bool:
    """Whether cuDNN need not compile the kernel."""
    fused = isinstance(recipe, Convolution) and (recipe.relu or recipe.b or recipe.z)
    return isinstance(recipe, (Convolution, DataGradient, FilterGradient)) and not fused


def missing(cudnn: Any) -> Iterator[str]:
    """Yield what netbuilder calls that the frontend does not have, or not with these named arguments."""
    for module in compiled, graphs, library:
        nodes = list(ast.walk(ast.parse(inspect.getsource(module))))
        keywords = {
            id(each.func): [k.arg for k in each.keywords if k.arg] for each in nodes if isinstance(each, ast.Call)
        }
        for node in nodes:
            holder = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
            owner = cudnn.pygraph if holder in _GRAPHS else cudnn if holder in _MODULES else None
            if owner is None:
                continue
            found = getattr(owner, node.attr, None)
            if found is None:
                yield node.attr
                continue
            called = found.__init__ if inspect.isclass(found) else found
            text = str(inspect.signature(called)) if inspect.isfunction(called) else called.__doc__ or ""
            yield from (
                f"{node.attr}({word}=)" for word in keywords.get(id(node), ()) if not re.search(rf"\b{word}\b", text)
            )


if __name__ == "__main__":
    main()
